"""What a benchmark asks for: requests of given or random lengths, of a ShareGPT file, or of recorded traffic."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxengine.bench import traffic
from jaxengine.errors import ConfigError

DATASETS = ("random", "sharegpt", "trace")
IDS = range(100, 1000)
"""Token ids of made prompts, unless a vocabulary is given: every model has so many."""
SHAREGPT_LONGEST = (1024, 2048)
"""Tokens of a prompt, and of a prompt and its answer, above which vLLM leaves a conversation out; below 4 too."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A prompt, as text or as token ids, of `prompt_len` tokens; `output_len` tokens are generated whatever they are.

    `time_s` is when it came where traffic was recorded, in seconds since the first one.
    """

    prompt: str | tuple[int, ...]
    prompt_len: int
    output_len: int
    time_s: float | None = None


def random_requests(
    count: int,
    input_len: int,
    output_len: int,
    *,
    range_ratio: float = 0.0,
    prefix_len: int = 0,
    ids: range = IDS,
    seed: int = 0,
) -> list[BenchRequest]:
    """Prompts of random ids. Lengths are within `range_ratio` of those given; `prefix_len` further ids are the same in all."""
    if not 0 <= range_ratio < 1:
        raise ConfigError(f"random_range_ratio must be at least 0 and below 1, got {range_ratio}")
    if min(count, input_len, output_len) < 1 or prefix_len < 0:
        raise ConfigError(
            "numbers of prompts and their lengths must be 1 or more, a prefix's 0 or more, "
            f"got {count}, {input_len}, {output_len}, {prefix_len}"
        )
    chance = random.Random(seed)
    prefix = tuple(chance.choices(ids, k=prefix_len))

    def length(mean: int) -> int:
        return max(1, chance.randint(round(mean * (1 - range_ratio)), round(mean * (1 + range_ratio))))

    requests = []
    for _ in range(count):
        prompt = prefix + tuple(chance.choices(ids, k=length(input_len)))
        requests.append(BenchRequest(prompt, len(prompt), length(output_len)))
    return requests


def sharegpt_requests(
    path: Path, count: int, tokens: Callable[[str], int], *, output_len: int | None = None, seed: int = 0
) -> list[BenchRequest]:
    """First questions of conversations in random order; outputs are as long as the answers, or `output_len`.

    Args:
        path: a JSON list of `{"conversations": [{"value": question}, {"value": answer}, ...]}`.
        tokens: counts the tokens of a text.

    Raises:
        ConfigError: the file is of another form, or has no conversation that can be used.
    """
    try:
        conversations = [entry["conversations"] for entry in json.loads(path.read_text())]
        turns = [(turns[0]["value"], turns[1]["value"]) for turns in conversations if len(turns) >= 2]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no ShareGPT file (a JSON list of conversations): {error!r}") from None
    random.Random(seed).shuffle(turns)
    requests: list[BenchRequest] = []
    for question, answer in turns:
        if len(requests) == count:
            break
        asked, answered = tokens(question), output_len or tokens(answer)
        longest, longest_both = SHAREGPT_LONGEST
        if min(asked, answered) >= 4 and asked <= longest and asked + answered <= longest_both:
            requests.append(BenchRequest(question, asked, answered))
    if not requests:
        raise ConfigError(f"{path} has no conversation of 4 to {SHAREGPT_LONGEST[1]} tokens")
    return requests


def trace_requests(source: str, count: int, *, ids: range = IDS) -> list[BenchRequest]:
    """The first `count` requests of recorded traffic (`traffic.read`): prompts that began alike begin with the same ids."""
    try:
        arrivals = traffic.read(source)[:count]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{source} is no trace that is known: {error!r}") from None
    return [
        BenchRequest(prompt := _ids_of(arrival.runs, ids), len(prompt), arrival.output, arrival.time_s)
        for arrival in arrivals
    ]


def _ids_of(runs: Sequence[tuple[int, int]], ids: range) -> tuple[int, ...]:
    """Each content is a sequence of ids of its own."""
    return tuple(token for content, count in runs for token in random.Random(content).choices(ids, k=count))
