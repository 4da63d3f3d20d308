"""A long prefix found on disk against computing it: seconds to the first token. JSON out.

An engine computes each prefix and writes its pages to a directory; another process with the same directory finds them, once with
the page cache dropped (which needs root; else `cold` is null) and once from the page cache. The tokens that follow have to be the
same. With `--made-up` pages of random numbers are put there, and nothing is computed: to find them takes as long.

    python benchmarks/prefix_on_disk.py --config shared/data/configs/hf/Qwen--Qwen3-0.6B.json --tokens 8192 32768
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.bench import machine

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: PYTHONPATH may name another commit

from benchmarks.disk_store import drop_page_cache

TAIL, OUTPUT = 16, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="config.json of a model; its weights are random")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--host-gib", type=float, default=6.0)
    parser.add_argument("--options", type=json.loads, default={}, help="more of the engine, as JSON")
    parser.add_argument("--made-up", action="store_true", help="do not compute the prefixes")
    parser.add_argument("--fill", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine is not None:
        print(json.dumps(measure(arguments, Path(arguments.engine))))
        return
    folder = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        shutil.copy(arguments.config, folder / "config.json")
        computed = in_process(folder, "--fill") if arguments.made_up else in_process(folder)
        cold = in_process(folder) if drop_page_cache() else None
        warm = in_process(folder)
        size = sum(file.stat().st_size for file in (folder / "pages").rglob("*") if file.is_file())
    finally:
        shutil.rmtree(folder)
    for found in filter(None, (cold, warm)):
        for one, other in zip(found, computed or warm, strict=True):
            assert one["output"] == other["output"], "the tokens differ"
    result = {"computed": computed, "found_cold": cold, "found_in_page_cache": warm, "bytes_on_disk": size}
    print(json.dumps({"benchmark": "python " + " ".join(sys.argv), "machine": machine.describe(), **result}, indent=2))


def in_process(folder: Path, *more: str) -> list[dict[str, Any]]:
    """What an engine of its own measures."""
    command = [sys.executable, *sys.argv, "--engine", str(folder), *more]
    environment = {"JAXENGINE_CACHE_DIR": str(folder / "programs"), **os.environ}
    finished = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(finished.stdout.splitlines()[-1])
    return found


def measure(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Of each prefix the seconds to its first token, and how many of its tokens were found."""
    from jaxengine import LLM, SamplingParams
    from jaxengine.options.config import EngineConfig
    from jaxengine.startup.build import build_engine

    options = {
        "model": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": max(arguments.tokens) + TAIL + OUTPUT,
        "max_num_seqs": 1,
        "kv_offloading_size": arguments.host_gib,
        "kv_offloading_directory": str(folder / "pages"),
        **arguments.options,
    }
    engine = build_engine(EngineConfig.from_options(**options))
    draw, found = np.random.default_rng(0), []
    with LLM.from_engine(engine) as llm:
        for count in arguments.tokens:
            prompt = draw.integers(100, 100_000, count + TAIL).tolist()
            if arguments.fill:
                fill(engine, prompt)
                continue
            tokens, before = {"prompt_token_ids": prompt}, engine.core.tier_stats.traffic
            begin = time.perf_counter()
            first = llm.generate(tokens, SamplingParams(max_tokens=1, temperature=0.0), use_tqdm=False)[0]
            seconds = time.perf_counter() - begin
            after = engine.core.tier_stats.traffic
            greedy = SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True)
            again = llm.generate(tokens, greedy, use_tqdm=False)[0]
            moved = {
                way: (part.bytes - before[way].bytes if way in before else part.bytes) for way, part in after.items()
            }
            busy = {way: part.seconds - (before[way].seconds if way in before else 0.0) for way, part in after.items()}
            found.append(
                {
                    "tokens": count,
                    "first_token_s": round(seconds, 3),
                    "num_cached_tokens": first.num_cached_tokens,
                    "moved_bytes": moved,
                    "moving_s": {way: round(took, 3) for way, took in busy.items()},
                    "output": list(again.outputs[0].token_ids),
                }
            )
    return found


def fill(engine: Any, prompt: list[int]) -> None:
    """Put pages of random numbers under the names of this prompt's."""
    from jaxengine.contract.page_name import PageName
    from jaxengine.device.runtime.block_moves import all_moved

    chain, size = engine.ledger.chain(None), engine.ledger.page_size
    stores = engine.outer.stores
    [moved] = all_moved(engine.space)
    draw = np.random.default_rng(1)
    for number in range(len(prompt) // size):
        parts = {
            bounds: (draw.random(shape, np.float32) - 0.5).astype(dtype)
            for bounds, (shape, dtype) in moved.parts.items()
        }
        kept = stores.store(PageName(0, *chain.entry(number, prompt)), parts, stores.keys)
        assert kept, "the disk is full"


if __name__ == "__main__":
    main()
