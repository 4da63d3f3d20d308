"""When drafts pay on a TPU, by the compiler's own figures and from config.json alone: no TPU, nothing is run. JSON out.

    python -m benchmarks.draft_break_even --config CONFIG_JSON --target v6e-1 --rows 1 8 64 --drafts 1 3 5

What drafts is an EAGLE-3 head of one layer as wide as the model's, with `--draft-vocab` tokens. All programs of a step in which
each row has all its drafts are compiled, greedy ones for sampling: `forward` of two of the model's layers, which stand for all,
`sample`, `place` and `draft`. A program takes the larger one of XLA's estimate and of reading its matrices at the rate that XLA
assumes where it waits for them (`benchmarks/tpu_steps.py`). All guesses but the first are passes of one loop, which is
estimated as one: a pass is what programs with a loop take more than that of a single guess. Attention, of which XLA estimates
nothing, is reading keys and values of `--context` positions at the published bandwidth: once for the step, and once for each
pass of the draft. The host is in none of it.

`times` is the step over that of as many rows without drafts. They pay where a row brings more tokens than that; `accepted` is how
many of its drafts have to be right, and `acceptance` how often each one, where those before it were.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.tpu_steps import CONTEXT, PAGES, STREAMED
from buckets import Bucket
from jaxengine.bench import machine
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.runtime.drafting import draft_programs
from jaxengine.device.runtime.forward_programs import forward_programs, hidden_struct
from jaxengine.device.runtime.programs import programs_of_shape
from jaxengine.device.runtime.sampling_shapes import SampleShape
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import find_target
from jaxengine.device.sampling import Variant
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from xla_cache import Program
from xla_cache.chips import Chip
from xla_cache.cycles import estimated_cycles

LAYERS = 2
"""That are compiled. What is around them is as good as nothing beside them."""
TAPS = (0, 1, 2)
"""Of these the states are read; a real head's lie further apart."""


@dataclass(frozen=True)
class Settings:
    """What all steps of a run share: the model, its chip, what drafts, and how many positions a row has."""

    config: str
    target: str
    draft: str
    context: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="config.json of the model")
    parser.add_argument("--target", default="v6e-1", help="one device")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 3, 5], help="of a row")
    parser.add_argument("--draft-vocab", type=int, default=32_000)
    parser.add_argument("--context", type=int, default=1024, help="positions of a row")
    arguments = parser.parse_args()
    cases = [(rows, drafts) for rows in arguments.rows for drafts in (0, 1, *arguments.drafts)]
    with tempfile.TemporaryDirectory() as folder:
        draft = head_config(json.loads(Path(arguments.config).read_text()), arguments.draft_vocab)
        (Path(folder) / "config.json").write_text(json.dumps(draft))
        settings = Settings(arguments.config, arguments.target, folder, arguments.context)
        steps = {case: Step.measured(settings, *case) for case in tqdm(dict.fromkeys(cases))}
    found = [
        {"rows": rows, "drafts": drafts, **told(steps, rows, drafts)}
        for rows in arguments.rows
        for drafts in (0, *arguments.drafts)
    ]
    print(
        json.dumps(
            {"kind": "static estimate", "machine": machine.describe(), **vars(arguments), "steps": found}, indent=1
        )
    )


def head_config(values: dict[str, Any], draft_vocab: int) -> dict[str, Any]:
    """The config.json of an EAGLE-3 head of one layer for the model of these values."""
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": TAPS,
    }
    return values | own


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of the programs of a step; `draft` of a program whose loop passes once. `attention` is of all layers of the model,
    `draft_attention` of the draft's one."""

    forward: float
    sample: float
    place: float = 0.0
    draft: float = 0.0
    attention: float
    draft_attention: float = 0.0
    compile_cpu_s: float = 0.0

    @classmethod
    def measured(cls, settings: Settings, rows: int, drafts: int) -> Step:
        """Of so many rows that decode, with so many drafts each."""
        target = find_target(settings.target)
        assert target.chip is not None
        bucket = Bucket(rows, 1 + drafts)
        speculation = {"method": "eagle3", "model": settings.draft, "num_speculative_tokens": drafts} if drafts else {}
        prepared = prepare(
            EngineConfig.from_options(
                model=settings.config,
                load_format="dummy",
                hf_overrides={"num_hidden_layers": LAYERS},
                speculative_config=speculation,
                max_model_len=CONTEXT,
                num_pages=PAGES,
                bucket_planner="explicit",
                buckets=(str(bucket),),
                max_num_seqs=rows,
                max_num_batched_tokens=bucket.tokens,
            ),
            Progress(),
            target=target,
        )
        space, chip, model = plan_space(prepared, measure=False).space, target.chip, prepared.model
        assert isinstance(model.config, DecoderConfig)
        layers = json.loads(Path(settings.config).read_text())["num_hidden_layers"]
        hidden = hidden_struct(space)
        (forward,) = forward_programs(space, bucket)
        [sample] = programs_of_shape(space, SampleShape(space.kept, Variant.GREEDY), hidden)
        keys = 2 * 2 * model.config.num_kv_heads * model.config.head_dim * rows * settings.context
        of_layer = keys / chip.memory_bandwidth
        head = _bytes(space, ("head.", "embed.") if model.config.tie_word_embeddings else ("head.",))
        further = {}
        if drafts:
            place, draft = draft_programs(space, bucket, hidden)
            further = {
                "place": seconds(place, chip),
                "draft": seconds(draft, chip, read=_draft_bytes(space, passes=min(2, drafts))),
                "draft_attention": of_layer,
            }
        return cls(
            forward=seconds(forward, chip, read=model.roofline(chip).layer_bytes) / LAYERS * layers,
            sample=seconds(sample, chip, read=head),
            attention=of_layer * layers,
            **further,
        )

    def all(self, drafts: int, guess: float) -> dict[str, float]:
        """Its parts with so many drafts, each further one than the second taking `guess`."""
        return {
            "forward": self.forward,
            "attention": self.attention + drafts * self.draft_attention,
            "sample": self.sample,
            "place": self.place,
            "draft": self.draft + max(0, drafts - 2) * guess,
        }


def told(steps: dict[tuple[int, int], Step], rows: int, drafts: int) -> dict[str, Any]:
    """Milliseconds of a step and its parts, and what a row has to bring for it."""
    guess = min((step.draft for (of, count), step in steps.items() if of == rows and count > 1), default=0.0)
    guess = max(0.0, guess - steps[rows, 1].draft)
    parts, plain = steps[rows, drafts].all(drafts, guess), steps[rows, 0].all(0, 0.0)
    result: dict[str, Any] = {name: round(1e3 * taken, 3) for name, taken in parts.items()}
    result["step"] = round(1e3 * sum(parts.values()), 3)
    if not drafts:
        return result
    times = sum(parts.values()) / sum(plain.values())
    return result | {
        "times": round(times, 3),
        "accepted": round(times - 1, 3),
        "acceptance": break_even(times, drafts),
    }


def break_even(times: float, drafts: int) -> float | None:
    """How often a draft has to be right where those before it were, for a row to bring so many times a token; None: always and
    more."""
    if times > 1 + drafts:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        enough = math.fsum(middle**number for number in range(1 + drafts)) >= times
        low, high = (low, middle) if enough else (middle, high)
    return round(high, 3)


def seconds(program: Program, chip: Chip, *, read: float = 0.0) -> float:
    """What a program takes that reads matrices of so many bytes."""
    compiled = program.lower().compile(program.compiler_options)
    return max((estimated_cycles(compiled) or 0) / chip.clock_hz, read / chip.memory_bandwidth / STREAMED)


def _bytes(space: ProgramSpace, prefixes: Sequence[str]) -> int:
    structs = [struct for path, struct in space.parameters.items() if path.startswith(tuple(prefixes))]
    return sum(struct.size * struct.dtype.itemsize for struct in structs)


def _draft_bytes(space: ProgramSpace, *, passes: int) -> int:
    """The head reads its layers and its own head in each pass, the matrix that fuses states once."""
    assert space.draft is not None
    sizes = {path: struct.size * struct.dtype.itemsize for path, struct in space.draft.own.items()}
    once = sum(size for path, size in sizes.items() if path.startswith("fuse."))
    return once + passes * (sum(sizes.values()) - once)


if __name__ == "__main__":
    main()
