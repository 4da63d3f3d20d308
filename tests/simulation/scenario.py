"""What happens in a simulation: plain values, all drawn from one seed, so that fewer of them can be tried as well."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from jaxengine.contract.adapters import Adapter
from jaxengine.contract.media import PromptMedia
from jaxengine.contract.pooling import Pooled
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from tests.fakes import named_grammar
from tests.grammar.characters import CHARACTERS, character_grammars
from tests.harness import EOS, FILES, VOCAB
from tests.media_items import PLACEHOLDER, make_item

PLAIN = ((None,),)
KEEPS = (PLAIN, PLAIN, PLAIN, ((None, 6),), ((None,), (6,)))
"""What the cache groups of each pool keep; most models have one that keeps everything."""
STEMS = tuple(tuple((3 + stem * 31 + i * (5 + stem)) % EOS for i in range(40)) for stem in range(3))
"""Prompts begin with one of these."""
PICTURES = ("cat", "dog", "house")
MOST_ITEMS, MOST_PLACES = 4, 8
"""Of a prompt, and of an item."""
PATTERNS = ("[a-z]{3,9}", '\\{"a": [0-9]{1,4}\\}', "(yes|no|maybe)( indeed)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of every engine, and of what surrounds them; times in seconds.

    Pipes of `loses` lose what was written before a death. Engines that are `stubborn` die after the step in progress. A step that
    hangs takes `hang_s`. Behind the pages are `host_blocks`, and with `outer` a store that all engines share: a transfer takes
    `tier_delay_s`, and a share of `tier_failing` of those of the store fails.
    There are `adapter_slots`, and room on the host for `adapters_on_host`. Embeddings of what prompts show have `media_pages` of
    `media_page_size`; items may have `sight` of themselves, and a step's encoders a budget of patches.
    With `recurrent` layers there are so many `snapshots` of states, at ends of `block` pages and `every` so many blocks.
    """

    engines: int = 1
    num_pages: int = 60
    page_size: int = 4
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 32
    max_model_len: int = 64
    max_in_flight: int = 2
    turns: int = 1
    keeps: tuple[tuple[int | None, ...], ...] = PLAIN
    recurrent: bool = False
    snapshots: int = 0
    block: int = 1
    every: int = 0
    policy: str = "fcfs"
    caching: bool = True
    deterministic: bool = False
    drafts: int = 0
    device_drafts: bool = False
    delay_s: float = 0.0005
    step_s: float = 0.005
    loses: bool = False
    stubborn: bool = False
    hang_s: float = 10.0
    read_s: float = 1e-6
    start_s: float = 2.0
    timeout_s: float = 0.0
    max_requests: int = 0
    max_tokens: int = 0
    max_unread: int = 0
    disk_full: bool = False
    max_restarts: int = 100
    host_blocks: int = 0
    outer: bool = False
    tier_delay_s: float = 0.0
    tier_failing: float = 0.0
    adapter_slots: int = 0
    adapters_on_host: int = 0
    media_pages: int = 0
    media_page_size: int = 1
    sight: bool = False
    encoder_budget: int | None = None
    silence_s: float = 3.0
    step_timeout_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A client's requests, handed in together at the time `at`, and how it reads.

    It sleeps `pause_s` between two outputs, leaves its stream after `leaves_after` of them, and is cancelled at the time
    `cancelled_at`, wherever it waits then. As soon as it is done it comes back with `again`, other requests under the same ids.
    """

    at: float
    requests: tuple[Request, ...]
    pause_s: float = 0.0
    leaves_after: int | None = None
    cancelled_at: float = math.inf
    again: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something goes wrong with one engine: at the time `at`, or in the `step`th of its steps, restarts included.

    `kill` ends its process; `raise` lets the step fail; `hang` lets it take `hang_s` while the process goes on; `freeze` stops
    the whole process for `seconds`, and `stall` the front. `reset`, `sleep` and `wake` are what an operator asks for meanwhile,
    and with requests kept `doze`, `pause` and `clear` (of prefixes), and `resume`; `restart` gives requests `seconds`.
    """

    kind: str
    engine: int = 0
    at: float = math.inf
    step: int = 0
    seconds: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """A request that no engine survives: the step after its `after`th token is a fault of this `kind`."""

    request_id: str
    kind: str
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One history, but for the order and delays that `seed` decides while it runs."""

    seed: int
    sizes: Sizes
    visits: tuple[Visit, ...]
    faults: tuple[Fault, ...] = ()
    poison: tuple[Poison, ...] = ()

    def __str__(self) -> str:
        lines = [f"seed {self.seed}", _told(self.sizes)]
        for visit in self.visits:
            lines.append(_told(visit, without=("requests", "again")))
            lines += [f"    {_told_request(request)}" for request in visit.requests]
            lines += [f"    again {_told_request(request)}" for request in visit.again]
        lines += [_told(fault) for fault in self.faults]
        return "\n".join([*lines, *map(_told, self.poison)])


def draw_scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(seed)
    sizes = _with_tiers(Random(f"tiers {seed}"), _draw_sizes(random))
    sizes = _with_states(Random(f"states {seed}"), sizes)
    sizes = replace(sizes, turns=Random(f"turns {seed}").randint(1, max(1, sizes.max_in_flight - 1)))
    span = random.choice([0.05, 0.3, 2.0])
    visits = tuple(_draw_visits(random, sizes, span))
    faults = tuple(_draw_faults(random, sizes, span))
    poison = tuple(_draw_poison(random, visits))
    sizes, visits = _with_adapters(Random(f"adapters {seed}"), sizes, visits)
    sizes, visits = _with_media(Random(f"media {seed}"), sizes, visits)
    return Scenario(seed=seed, sizes=sizes, visits=visits, faults=faults, poison=poison)


def _draw_sizes(random: Random) -> Sizes:
    keeps = random.choice(KEEPS)
    max_num_seqs = random.randint(1, 6)
    deterministic = random.random() < 0.25
    return Sizes(
        engines=random.choice([1, 1, 2, 3]),
        num_pages=random.choice([14, 20, 40, 100]) * max(map(len, keeps)),
        page_size=random.choice([1, 2, 4, 4, 8]),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=random.randint(max_num_seqs, 40),
        max_model_len=random.choice([32, 64, 64, 96]),
        max_in_flight=random.randint(1, 3),
        keeps=keeps,
        policy=random.choice(["fcfs", "fcfs", "priority", "fair"]),
        caching=random.random() < 0.8,
        deterministic=deterministic,
        drafts=(drafts := 0 if deterministic or random.random() < 0.7 else random.randint(1, 4)),
        device_drafts=drafts in (2, 4),  # the others are looked up
        delay_s=random.choice([0.0001, 0.002, 0.02]),
        loses=random.random() < 0.25,
        stubborn=random.random() < 0.25,
        hang_s=random.choice([random.uniform(1, 7), 9.0]),
        read_s=random.choice([1e-6, 1e-6, 5e-4]),
        start_s=random.choice([0.0, 0.05, 1.0]),
        timeout_s=random.choice([0.0] * 6 + [0.5, 3.0]),
        max_requests=random.choice([0] * 7 + [8]),
        max_tokens=random.choice([0] * 7 + [150]),
        max_unread=random.choice([0, 0, 1, 10]),
        disk_full=random.random() < 0.1,
        max_restarts=random.choice([100] * 7 + [1]),
    )


def _with_tiers(random: Random, sizes: Sizes) -> Sizes:
    """The same with something behind the pages, or without."""
    if random.random() < 0.4:
        return sizes
    return replace(
        sizes,
        num_pages=random.choice([sizes.num_pages, 14 * max(map(len, sizes.keeps))]),
        host_blocks=random.choice([4, 20, 100]),
        outer=random.random() < 0.5,
        tier_delay_s=random.choice([0.0, 0.005, 0.03]),
        tier_failing=random.choice([0.0, 0.1, 0.5]),
    )


def _with_states(random: Random, sizes: Sizes) -> Sizes:
    """Or without."""
    if random.random() < 0.7:
        return sizes
    block, every = random.choice([1, 1, 2]), random.choice([0, 0, 1, 3])
    return replace(
        sizes,
        recurrent=True,
        drafts=0,
        device_drafts=False,
        snapshots=random.choice([0, 1, 3, 10]),
        block=block,
        every=every,
    )


def _with_adapters(random: Random, sizes: Sizes, visits: tuple[Visit, ...]) -> tuple[Sizes, tuple[Visit, ...]]:
    """The same with adapters that most requests run with, or without."""
    if random.random() < 0.6:
        return sizes, visits
    slots = random.randint(1, 3)
    names = list(FILES)[: random.choice([2, 4, 8])]

    def adapted(request: Request) -> Request:
        name = random.choice([None, *names])
        if name is None or request.pooling is not None:
            return request
        return replace(request, adapter=Adapter(name, name, FILES[name]))

    return replace(sizes, adapter_slots=slots, adapters_on_host=slots + random.choice([0, 0, 2, 8])), tuple(
        replace(visit, requests=tuple(map(adapted, visit.requests)), again=tuple(map(adapted, visit.again)))
        for visit in visits
    )


def _with_media(random: Random, sizes: Sizes, visits: tuple[Visit, ...]) -> tuple[Sizes, tuple[Visit, ...]]:
    """The same with pictures or sounds that most prompts show, or without."""
    if random.random() < 0.6:
        return sizes, visits
    hears = random.random() < 0.15
    sight = not (hears or sizes.recurrent) and random.random() < 0.4
    page_size = random.choice([1, 2, 4])
    longest = MOST_PLACES
    if sight:  # an item and what may not be left alone beside it go into one step
        longest = min(longest, sizes.max_num_batched_tokens, 8 * sizes.max_num_seqs)
        longest = max(1, longest - 2 * sizes.deterministic)
    sizes = replace(
        sizes,
        media_pages=1 + MOST_ITEMS * -(-longest // page_size) + random.choice([0, 0, 3, 30]),
        media_page_size=page_size,
        sight=sight,
        encoder_budget=random.choice([None, None, 1, 20, 200]),
    )

    def showing(request: Request) -> Request:
        if random.random() < 0.25 or (sight and request.sampling.prompt_logprobs is not None):
            return request
        if hears:
            return replace(request, media=PromptMedia(items=(make_item(random.choice(PICTURES), unplaced=longest),)))
        return _with_pictures(random, request, longest)

    return sizes, tuple(
        replace(visit, requests=tuple(map(showing, visit.requests)), again=tuple(map(showing, visit.again)))
        for visit in visits
    )


def _with_pictures(random: Random, request: Request, longest: int) -> Request:
    """The request with pictures in the place of some of its prompt's tokens."""
    tokens, items, at = list(request.prompt_token_ids), [], 0
    for _ in range(random.randint(1, MOST_ITEMS)):
        at += random.choice([0, 1, 2, 2, 5])
        count = random.randint(1, longest)
        if at + count > len(tokens):
            break
        places = [*range(at, at + count)]
        if count > 3 and random.random() < 0.3:  # with a token between its rows
            del places[count // 2]
        for place in places:
            tokens[place] = PLACEHOLDER
        items.append(make_item(random.choice(PICTURES), places, rows=random.choice([1, 1, 2]), patches=2 * len(places)))
        at += count
    if not items:
        return request
    return replace(request, prompt_token_ids=tuple(tokens), media=PromptMedia(items=tuple(items)))


def _draw_visits(random: Random, sizes: Sizes, span: float) -> Iterator[Visit]:
    def requests_under(request_ids: list[str]) -> tuple[Request, ...]:
        return tuple(_draw_request(random, request_id, sizes) for request_id in request_ids)

    number = 0
    for _ in range(random.randint(2, 9)):
        count = random.choice([1, 1, 1, 2, 3])
        request_ids = [f"r{number + index}" for index in range(count)]
        number += count
        at = random.uniform(0, span)
        yield Visit(
            at=at,
            requests=requests_under(request_ids),
            pause_s=random.choice([0.0, 0.0, 0.0, 0.03]),
            leaves_after=random.choice([None, None, None, None, random.randint(0, 4)]),
            cancelled_at=at + random.expovariate(random.choice([5, 50])) if random.random() < 0.2 else math.inf,
            again=requests_under(request_ids) if random.random() < 0.35 else (),
        )


def _draw_request(random: Random, request_id: str, sizes: Sizes) -> Request:
    stem = random.choice(STEMS)
    prompt = [*stem[: random.randint(0, 30)], *(random.randrange(EOS) for _ in range(random.randint(1, 4)))]
    if random.random() < 0.2:
        prompt = (prompt * 6)[:30]  # something to look up, for drafts
    prompt = prompt[: sizes.max_model_len - 1]
    seed = random.randrange(1 << 32)
    priority = random.randint(0, 2) if sizes.policy == "priority" else 0
    room = sizes.max_model_len - len(prompt)
    if sizes.keeps == PLAIN and not sizes.recurrent and random.random() < 0.08:
        return Request(
            request_id=request_id,
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(temperature=0.0, max_tokens=1),
            max_tokens=1,
            pooling=Pooled(task="embed"),
            priority=priority,
        )
    max_tokens = min(room, random.choice([1, 3, 8, 16, 30]))
    grammar = random.random() < 0.12
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(
            **_draw_sampling(random, max_tokens), output_kind=random.choice(list(RequestOutputKind))
        ),
        max_tokens=max_tokens,
        eos_token_id=EOS if grammar else random.choice([None, EOS, 1, 2]),
        bad_words_token_ids=random.choice([(), (), ((7,),), ((8, 9), (10, 11, 12))]),
        grammar=random.choice(_grammars()) if grammar else None,
        cache_salt=random.choice([None, None, "tenant"]),
        priority=priority,
        share=random.choice(["heavy", "heavy", "light"]),
        data_parallel_rank=random.choice([None, None, None, 0]),
        seed=seed,
        resume=random.random() < 0.9,
    )


def _draw_sampling(random: Random, max_tokens: int) -> dict[str, Any]:
    """Fields of `SamplingParams`."""
    n = random.choice([1, 1, 1, 2, 4])
    drawn: dict[str, Any] = {
        "n": n,
        "max_tokens": max_tokens,
        "temperature": 0.7 if n > 1 or random.random() < 0.5 else 0.0,
    }

    def perhaps(chance: float, name: str, value: Any) -> None:
        if random.random() < chance:
            drawn[name] = value

    perhaps(0.25, "prompt_logprobs", 1)
    perhaps(0.25, "logprobs", 0)
    perhaps(0.25, "frequency_penalty", 0.5)
    perhaps(0.1, "allowed_token_ids", random.sample(range(VOCAB), 12))
    perhaps(0.2, "min_tokens", random.randint(0, min(3, max_tokens)))
    perhaps(0.2, "stop_token_ids", [random.randrange(VOCAB) for _ in range(6)])
    perhaps(0.2, "logit_bias", {random.randrange(VOCAB): random.choice([-100.0, 4.0, 100.0])})
    if random.random() < (0.3 if n == 1 else 0.6):
        stop = random.sample(CHARACTERS, random.randint(1, 16))
        drawn["stop"] = [*stop, random.choice(stop), random.choice(stop) + random.choice(stop)]
        drawn["include_stop_str_in_output"] = random.random() < 0.5
        drawn["min_tokens"] = 0
    return drawn


def _draw_faults(random: Random, sizes: Sizes, span: float) -> Iterator[Fault]:
    if random.random() < 0.15:  # a storm
        for step in random.sample(range(1, 120), 8):
            yield Fault(kind=random.choice(["kill", "raise"]), engine=random.randrange(sizes.engines), step=step)
    for _ in range(random.choice([0, 1, 1, 2, 3, 5])):
        kind = random.choice(["kill", "kill", "kill", "raise", "hang", "freeze", "stall", "reset", "sleep"])
        engine = random.randrange(sizes.engines)
        if kind in ("raise", "hang") or (kind == "kill" and random.random() < 0.5):
            yield Fault(kind=kind, engine=engine, step=random.randint(1, 60))
            continue
        at = random.uniform(0, 2 * span)
        seconds = random.uniform(0, 2 * sizes.silence_s) if kind in ("freeze", "stall") else math.inf
        yield Fault(kind=kind, engine=engine, at=at, seconds=seconds)
        if kind == "sleep":
            yield Fault(kind="wake", engine=engine, at=at + random.uniform(0, 0.5))


def _draw_poison(random: Random, visits: tuple[Visit, ...]) -> Iterator[Poison]:
    for visit in visits:
        for request in visit.requests:
            if random.random() < 0.02:
                kind = random.choice(["raise", "kill", "hang"])
                yield Poison(request_id=request.request_id, kind=kind, after=random.choice([0, 0, 1, 5]))


_compiled: list[str] = []


def _grammars() -> list[str]:
    """Names of compiled grammars, made once."""
    if not _compiled:
        from jaxengine.contract.structured_outputs import StructuredOutputsParams

        made = character_grammars()
        _compiled.extend(named_grammar(made.compile(StructuredOutputsParams(regex=pattern))) for pattern in PATTERNS)
        made.close()
    return _compiled


def _told(value: Any, *, without: tuple[str, ...] = ()) -> str:
    """A dataclass by those of its fields that are not as usual."""
    said = ((field, getattr(value, field.name)) for field in fields(value) if field.name not in without)
    told = ", ".join(f"{field.name}={each!r}" for field, each in said if each != field.default)
    return f"{type(value).__name__}({told})"


def _told_request(request: Request) -> str:
    sampling, usual = request.sampling, SamplingParams()
    said = ((field.name, getattr(sampling, field.name)) for field in fields(sampling))
    told = ", ".join(f"{name}={each!r}" for name, each in said if each != getattr(usual, name))
    return f"{_told(request, without=('sampling',))} with {told}"
