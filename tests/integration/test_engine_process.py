"""The embedded model in a process of its own: it says what the library says, and whatever reaches into an engine works."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxengine import LLM, AsyncLLM, PoolingParams, SamplingParams
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.embedded import checkpoint_path
from jaxengine.errors import CheckpointError, ConfigError, RequestError

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_model_len": 400,
    "bucket_planner": "explicit",
    "buckets": ("1x16", "4x16", "1x1", "4x1"),
}
STORY = "Once upon a time"
LONG = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
PARAMS = (
    LONG,
    LONG.replace(temperature=1.0, seed=3, n=2, top_p=0.9),
    LONG.replace(logprobs=2, prompt_logprobs=1, presence_penalty=0.5),
    LONG.replace(structured_outputs=StructuredOutputsParams(regex="[a-f]{4}(,[0-9]{2}){2}"), ignore_eos=False),
    LONG.replace(stop=["a"], ignore_eos=False),
)


async def last(outputs: AsyncIterator[Any]) -> Any:
    return [output async for output in outputs][-1]


def shown(output: Any) -> list[Any]:
    """All that a request came to, log probabilities to the last bit."""
    return [
        output.prompt_logprobs,
        *((one.text, one.token_ids, one.finish_reason, one.stop_reason, one.logprobs) for one in output.outputs),
    ]


def test_a_program_has_the_same_answers_from_another_process(tmp_path: Path) -> None:
    with LLM(**SMALL) as library:
        wanted = [shown(library.generate([STORY], params, use_tqdm=False)[0]) for params in PARAMS]
        vector = library.embed([STORY], use_tqdm=False)[0].outputs.embedding
    record, traces = tmp_path / "traffic.jsonl", tmp_path / "traces"
    llm = AsyncLLM(enable_multiprocessing=True, record_traffic=str(record), profile=str(traces), **SMALL)

    async def scenario() -> None:
        async with llm:
            asked = [last(llm.generate(STORY, params, str(index))) for index, params in enumerate(PARAMS)]
            assert [shown(output) for output in await asyncio.gather(*asked)] == wanted
            pooled = await last(llm.encode(STORY, PoolingParams(), "pooled"))
            assert [float(x) for x in pooled.outputs.data] == vector
            with pytest.raises(RequestError, match="maximum context length"):
                await last(llm.generate("word " * 1000, LONG, "long"))
            await llm.start_profile()
            assert shown(await last(llm.generate(STORY, LONG, "traced"))) == wanted[0]
            await llm.stop_profile()
            assert await llm.reset_prefix_cache()
            await llm.sleep()
            assert await llm.is_sleeping()
            await llm.wake_up()
            with pytest.raises(CheckpointError, match="nowhere"):
                await llm.update_weights("nowhere")
            await llm.update_weights(checkpoint_path())
            assert shown(await last(llm.generate(STORY, LONG, "again"))) == wanted[0]
            await llm.check_health()

    asyncio.run(scenario())
    assert any(path.is_file() for path in traces.rglob("*"))
    assert len(record.read_text().splitlines()) >= len(PARAMS)


def test_a_mistake_that_the_engine_finds_is_the_callers_error() -> None:
    with pytest.raises(ConfigError, match="more than the model was made for"):
        AsyncLLM(enable_multiprocessing=True, max_model_len=4_000_000)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def serve(*words: str) -> subprocess.Popen[str]:
    options = [f"--max-num-seqs={SMALL['max_num_seqs']}", "--max-model-len=400", "--bucket-planner=explicit"]
    command = [sys.executable, "-m", "jaxengine.serve", *options, "--buckets", *SMALL["buckets"], *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_the_command_serves_and_ends_without_an_orphan() -> None:
    port = free_port()
    server = serve(f"--port={port}")
    url = f"http://127.0.0.1:{port}"
    statuses = set()
    deadline = time.monotonic() + 180
    while 200 not in statuses:
        assert server.poll() is None
        assert time.monotonic() < deadline
        try:
            statuses.add(httpx.get(f"{url}/health").status_code)
        except httpx.ConnectError:
            time.sleep(0.02)
    assert statuses == {503, 200}
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": STORY, "max_tokens": 4}, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 4
    metrics = httpx.get(f"{url}/metrics").text
    assert 'jaxengine:startup_phase_seconds{engine="0",model_name="embedded",phase="compile"}' in metrics
    os.killpg(server.pid, signal.SIGINT)
    log = server.communicate(timeout=60)[1]
    assert server.returncode == 0, log
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_a_mistake_that_the_engine_finds_ends_the_command_in_one_line() -> None:
    server = serve(f"--port={free_port()}", "--max-model-len=4000000")
    log = server.communicate(timeout=180)[1]
    assert server.returncode == 1
    assert log.splitlines()[-1].startswith("jaxengine: error: max_model_len (4000000) is more than the model was made")
    assert "Traceback" not in log


def test_the_front_of_the_command_never_loads_jax() -> None:
    script = f"""
import sys, threading, os, signal, json, urllib.request, time
from jaxengine.cli import main

def stop():
    while True:
        try:
            urllib.request.urlopen("http://127.0.0.1:{{port}}/health").read()
            break
        except OSError:
            time.sleep(0.05)
    body = json.dumps({{"messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 3}}).encode()
    headers = {{"Content-Type": "application/json"}}
    urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:{{port}}/v1/chat/completions", body, headers)).read()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=stop).start()
status = main(["serve", "--port={{port}}", "--max-num-seqs=4", "--max-model-len=400", "--bucket-planner=explicit", "--buckets",
               *{SMALL["buckets"]!r}])
print(status, sorted({{name.partition(".")[0] for name in sys.modules}} & {{"jax", "jaxlib", "flax", "transformers", "orbax"}}))
"""
    port = free_port()
    code = script.replace("{port}", str(port))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
