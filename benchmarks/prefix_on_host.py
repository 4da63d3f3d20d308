"""A long prefix found in the host's memory against computing it: seconds to the first token. JSON out.

An engine computes each prefix, another prompt pushes its pages to the host, and the engine is asked for it again. The tokens
that follow have to be the same. Beside that, by the figures of chips and links: what computing takes at the least, and what
copying takes.

    python benchmarks/prefix_on_host.py --config shared/data/configs/hf/Qwen--Qwen3-0.6B.json --tokens 8192 32768
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.bench import machine

TAIL, OUTPUT = 16, 4
LINKS = {"v6e": 32e9, "h100": 55e9}
"""Bytes a second between chip and host: what PCIe 5 x16 reaches for an H100; of a v6e nothing is published, this is assumed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="config.json of a model; its weights are random")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--host-gib", type=float, default=6.0)
    parser.add_argument("--by-figures-only", action="store_true", help="run nothing")
    parser.add_argument("--options", type=json.loads, default={}, help="more of the engine, as JSON")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "python " + " ".join(sys.argv),
        "machine": machine.describe(),
        "by_figures": [by_figures(arguments, count, chip) for count in arguments.tokens for chip in LINKS],
    }
    if not arguments.by_figures_only:
        result["measured"] = [measure(arguments, count) for count in arguments.tokens]
    print(json.dumps(result, indent=2))


def measure(arguments: argparse.Namespace, count: int) -> dict[str, Any]:
    """Of a prefix of so many tokens the seconds to the first token, computed and found on the host."""
    from jaxengine import LLM, SamplingParams

    def ask(prompt: list[int], max_tokens: int) -> tuple[float, Any]:
        begun = time.perf_counter()
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        output = llm.generate({"prompt_token_ids": prompt}, params)[0]
        return time.perf_counter() - begun, output

    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(arguments.config, Path(folder) / "config.json")
        options = {"page_size": 32, "max_model_len": count + TAIL + OUTPUT, "max_num_seqs": 1, **arguments.options}
        pages = -(-options["max_model_len"] // options["page_size"]) + 2
        llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            num_pages=pages,
            kv_offloading_size=arguments.host_gib,
            **options,
        )
        draw = np.random.default_rng(count)
        prompt, other = (draw.integers(100, 100_000, count + TAIL).tolist() for _ in range(2))
        computed_s, _ = ask(prompt, 1)
        _, expected = ask([*prompt], OUTPUT)
        ask(other, 1)  # takes all pages
        found_s, found = ask(prompt, 1)
        _, again = ask(prompt, OUTPUT)
        assert again.outputs[0].token_ids == expected.outputs[0].token_ids, "the tokens differ"
        traffic = llm._engine.host.statistics.tiers.traffic["host to device"]
        llm.close()
    return {
        "tokens": count,
        "computed_s": round(computed_s, 3),
        "found_s": round(found_s, 3),
        "num_cached_tokens": found.num_cached_tokens,
        "host_to_device_gb_s": round(traffic.bytes / traffic.seconds / 1e9, 2),
    }


def by_figures(arguments: argparse.Namespace, count: int, chip: str) -> dict[str, Any]:
    """The least time that a chip takes to compute a prefix, and the time of its pages' bytes on the link."""
    from jaxengine.bench.work import Work
    from jaxengine.options.config import EngineConfig
    from jaxengine.startup.model_plan import plan_model
    from xla_cache.chips import CHIPS

    config = EngineConfig.from_options(model=arguments.config, load_format="dummy", skip_tokenizer_init=True)
    work = Work.of(plan_model(config, weights=False), CHIPS[chip])
    pairs = count * (count + 1) // 2
    computed = work.roofline.floor(count, sampling=False)[0] + pairs * work.pair_flops / CHIPS[chip].matrix_flops
    return {
        "chip": chip,
        "tokens": count,
        "gb": round(count * work.token_bytes / 1e9, 3),
        "computed_ms_at_least": round(1e3 * computed, 1),
        "copied_ms": round(1e3 * count * work.token_bytes / LINKS[chip], 1),
    }


if __name__ == "__main__":
    main()
