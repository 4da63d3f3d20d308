"""Processes of this machine as the hosts of one engine, each with CPU devices of its own.

`python -m tests.integration.hosts SPEC` is the first host: it answers what the JSON of SPEC asks for, and prints what came of it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600


@dataclass(frozen=True)
class Answers:
    """The tokens of each request, what they were pooled to, how many programs were compiled while they ran; and how many
    tokens of drafts were right."""

    tokens: list[list[int]]
    pooled: list[list[float]]
    num_compilations: int
    num_preemptions: int
    num_cached_tokens: list[int] = field(default_factory=list)
    num_accepted: int = 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def environment(devices: int, **more: str) -> dict[str, str]:
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    flags.append(f"--xla_force_host_platform_device_count={devices}")
    return {**os.environ, "XLA_FLAGS": " ".join(flags), "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **more}


def words(options: dict[str, Any]) -> list[str]:
    """Options as a command line has them."""
    found: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (list, tuple)):
            found += [f"--{flag}", *map(str, value)]
        else:
            found += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return found


@contextmanager
def followers(options: dict[str, Any], *, hosts: int, devices: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """All hosts but the first, which the options say how to find."""
    command = [sys.executable, "-m", "jaxengine", "serve", "--headless", *words(options)]
    found = [
        subprocess.Popen([*command, "--node-rank", str(rank)], env=environment(devices)) for rank in range(1, hosts)
    ]
    try:
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


def ask(
    options: dict[str, Any], requests: Sequence[dict[str, Any]], *, hosts: int, devices: int, drafts: bool = False
) -> Answers:
    """What an engine of so many hosts, with so many devices each, makes of requests that come together, and then once more.

    With `drafts` it makes as many as it may, also where they do not pay.
    """
    shared = dict(options)
    if hosts > 1:
        shared |= {"nnodes": hosts, "master_port": free_port()}
    spec = json.dumps({"options": shared, "requests": list(requests), "drafts": drafts})
    with followers(shared, hosts=hosts, devices=devices):
        done = subprocess.run(
            [sys.executable, "-m", "tests.integration.hosts", spec],
            env=environment(devices),
            stdout=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=True,
            text=True,
        )
    return Answers(**json.loads(done.stdout.splitlines()[-1]))


def _main(spec: dict[str, Any]) -> None:
    import numpy as np

    from jaxengine.api.llm import LLM
    from jaxengine.contract.lora_request import LoRARequest
    from jaxengine.contract.outputs import RequestOutput
    from jaxengine.contract.pooling_params import PoolingParams
    from jaxengine.contract.sampling_params import SamplingParams, StructuredOutputsParams
    from jaxengine.host.scheduler.draft_length import DraftLength
    from jaxengine.options.config import EngineConfig
    from jaxengine.startup.build import build_engine
    from tests.integration.engines import run
    from tests.integration.test_draft_heads import Drafts

    def params(request: dict[str, Any]) -> Any:
        options = dict(request.get("params", {}))
        if "regex" in options:
            options["structured_outputs"] = StructuredOutputsParams(regex=options.pop("regex"))
        return PoolingParams() if request.get("pool") else SamplingParams(**options)

    def adapter(path: str | None) -> LoRARequest | None:
        return None if path is None else LoRARequest(path, 1 + adapters.index(path), path)

    if spec["drafts"]:
        DraftLength.choose = lambda self, *args, **kwargs: self.most  # type: ignore[method-assign]
    engine = build_engine(EngineConfig.from_options(**spec["options"]))
    steps: list[Any] = []
    engine.core.recorder.listen(Drafts(steps))
    prompts, each = [request["prompt"] for request in spec["requests"]], list(map(params, spec["requests"]))
    adapters = sorted({request["adapter"] for request in spec["requests"] if "adapter" in request})
    if adapters:
        chosen = [adapter(request.get("adapter")) for request in spec["requests"]]
        llm, given = LLM.from_engine(engine), [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = [
            output for _ in range(2) for output in llm.generate(given, each, lora_request=chosen, use_tqdm=False)
        ]
    else:
        outputs = [*run(engine, prompts, each), *run(engine, prompts, each)]
    generated = [output for output in outputs if isinstance(output, RequestOutput)]
    pooled = [output for output in outputs if not isinstance(output, RequestOutput)]
    answers = {
        "tokens": [list(output.outputs[0].token_ids) for output in generated],
        "pooled": [np.asarray(output.outputs.data).reshape(-1).tolist() for output in pooled],
        "num_compilations": engine.compile_counter.count,
        "num_preemptions": engine.host.statistics.scheduler.num_preemptions,
        "num_accepted": sum(step.num_accepted_tokens for step in steps),
        "num_cached_tokens": [output.num_cached_tokens or 0 for output in generated],
    }
    engine.close()
    print(json.dumps(answers))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
