"""Prompts computed in one process and answers generated in another, behind the proxy: the tokens are those of one engine."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxengine import LLM, SamplingParams

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
OPTIONS: dict[str, Any] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len": 512,
    "num_pages": 400,
    "page_size": 16,
    "deterministic": True,
}
NUM_TOKENS = 24
LIMIT_S = 120.0


@dataclass
class Server:
    """A process that listens."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def engine(self) -> int:
        """The process of its engine: the only child that is a Python interpreter of the engine's entry."""
        for pid in _children(self.process.pid):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"jaxengine.startup.engine_process" in command:
                return pid
        raise AssertionError("the server has no engine")

    def tokens_from_others(self) -> float:
        """Prompt tokens that were not computed here, by its metrics."""
        text = httpx.get(f"{self.url}/metrics", timeout=LIMIT_S).text
        found = re.findall(
            r'vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\} ([0-9.e+]+)', text
        )
        return sum(map(float, found))


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int) -> Iterator[Server]:
    environment = {**os.environ, "PAGES_SECRET": "a secret for a test"}
    process = subprocess.Popen([sys.executable, *command], env=environment, cwd=ROOT)
    try:
        yield Server(f"http://127.0.0.1:{port}", process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _config(role: str, pages: int) -> dict[str, Any]:
    return {
        "kv_connector": "TcpConnector",
        "kv_role": role,
        "kv_port": pages,
        "kv_buffer_size": 1 << 28,
        "kv_connector_extra_config": {"secret_env": "PAGES_SECRET"},
    }


def _serve(role: str, pages: int, port: int) -> list[str]:
    options = {**OPTIONS, "port": port, "kv_transfer_config": json.dumps(_config(role, pages))}
    words = ["-m", "jaxengine.serve", "--no-access-log"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return words


def _ready(server: Server) -> None:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            if httpx.get(f"{server.url}/health", timeout=5.0).status_code == 200:
                return
        except httpx.HTTPError:
            assert server.process.poll() is None, "it did not start"
        time.sleep(0.1)
    raise AssertionError("it is not ready")


@dataclass
class Trio:
    """An engine for prompts, one that generates, and the proxy before them."""

    producer: Server
    consumer: Server
    proxy: Server


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    ports = [_free_port() for _ in range(4)]
    with ExitStack() as stack:
        pages, first, second, front = ports
        producer = stack.enter_context(_running(_serve("kv_producer", pages, first), first))
        consumer = stack.enter_context(_running(_serve("kv_consumer", pages, second), second))
        proxy = stack.enter_context(
            _running(
                [
                    *("examples/disaggregated/proxy.py", "--port", str(front)),
                    *("--prefill", producer.url, "--decode", consumer.url),
                ],
                front,
            )
        )
        for server in (producer, consumer, proxy):
            _ready(server)
        yield Trio(producer, consumer, proxy)


def _prompts(seed: int, count: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(300, 2000) for _ in range(rng.randrange(40, 300))] for _ in range(count)]


@pytest.fixture(scope="module")
def alone() -> dict[int, list[list[int]]]:
    """What one engine makes of the prompts of each seed."""
    with LLM(**OPTIONS) as llm:
        return {
            seed: _alone(llm, _prompts(seed, count))
            for seed, count in ((1, 12), (2, 4), (3, 4), (4, 4), (5, 3), (6, 4))
        }


def _alone(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    params = [_params(number) for number in range(len(prompts))]
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [list(output.outputs[0].token_ids) for output in llm.generate(asked, params, use_tqdm=False)]


def _params(number: int) -> SamplingParams:
    temperature = (0.0, 0.9)[number % 2]
    return SamplingParams(temperature=temperature, seed=number, max_tokens=NUM_TOKENS, ignore_eos=True)


async def _ask(
    client: httpx.AsyncClient, url: str, number: int, prompt: list[int], begun: asyncio.Event, transfer: Any = None
) -> list[int]:
    """The tokens of an answer; every third one comes whole, the others as streams."""
    params, stream = _params(number), number % 3 != 2
    body = {
        "prompt": prompt,
        "max_tokens": NUM_TOKENS,
        "temperature": params.temperature,
        "top_p": 1.0,
        "seed": number,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": stream,
        "kv_transfer_params": transfer,
    }
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        if not stream:
            return list(json.loads(await answer.aread())["choices"][0]["token_ids"])
        tokens: list[int] = []
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                tokens += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
                begun.set()
        return tokens


def _all(url: str, prompts: list[list[int]], *, kill: int | None = None, transfer: Any = None) -> list[list[int]]:
    """All answers, asked for at once; the process `kill` gets a SIGKILL when the first has begun."""

    async def scenario() -> list[list[int]]:
        begun = asyncio.Event()
        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            asked = [asyncio.ensure_future(_ask(client, url, *each, begun, transfer)) for each in enumerate(prompts)]
            if kill is not None:
                await asyncio.wait_for(begun.wait(), LIMIT_S)
                os.kill(kill, signal.SIGKILL)
            return list(await asyncio.gather(*asked))

    return asyncio.run(scenario())


def test_answers_are_those_of_one_engine(trio: Trio, alone: dict[int, list[list[int]]]) -> None:
    prompts = _prompts(1, 12)
    assert _all(trio.proxy.url, prompts) == alone[1]
    assert trio.consumer.tokens_from_others() > 0
    assert httpx.get(f"{trio.proxy.url}/health", timeout=LIMIT_S).status_code == 200


def test_an_engine_that_generates_dies(trio: Trio, alone: dict[int, list[list[int]]]) -> None:
    assert _all(trio.proxy.url, _prompts(2, 4), kill=trio.consumer.engine) == alone[2]
    _ready(trio.consumer)


def test_an_engine_for_prompts_hangs(trio: Trio, alone: dict[int, list[list[int]]]) -> None:
    engine, prompts = trio.producer.engine, _prompts(6, 4)
    body = {"prompt": [1, 2, 3], "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    answer = httpx.post(f"{trio.producer.url}/v1/completions", json=body, timeout=LIMIT_S)
    where = answer.json()["kv_transfer_params"]
    os.kill(engine, signal.SIGSTOP)
    try:
        assert _all(trio.consumer.url, prompts, transfer=where) == alone[6]
    finally:
        os.kill(engine, signal.SIGCONT)


def test_an_engine_for_prompts_dies_and_then_its_server(trio: Trio, alone: dict[int, list[list[int]]]) -> None:
    assert _all(trio.proxy.url, _prompts(3, 4), kill=trio.producer.engine) == alone[3]
    trio.producer.process.kill()
    trio.producer.process.wait()
    before = trio.consumer.tokens_from_others()
    assert _all(trio.proxy.url, _prompts(4, 4)) == alone[4]
    assert trio.consumer.tokens_from_others() == before, "nobody was there to compute them"


def test_two_engines_of_a_program(monkeypatch: pytest.MonkeyPatch, alone: dict[int, list[list[int]]]) -> None:
    monkeypatch.setenv("PAGES_SECRET", "a secret for a test")
    for name in ("ANSWER_S", "PATIENCE_S"):  # however busy the machine is
        monkeypatch.setattr(f"jaxengine.host.scheduler.fetches.{name}", 60.0)
    prompts = [{"prompt_token_ids": prompt} for prompt in _prompts(5, 3)]
    pages = _free_port()
    with LLM(**OPTIONS, kv_transfer_config=_config("kv_producer", pages)) as producer:
        first = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}})
        handed = [output.kv_transfer_params for output in producer.generate(prompts, first, use_tqdm=False)]
        assert all(params is not None and params["remote_port"] == pages for params in handed)
        with LLM(**OPTIONS, kv_transfer_config=_config("kv_consumer", pages)) as consumer:
            params = [
                _params(number).replace(extra_args={"kv_transfer_params": where}) for number, where in enumerate(handed)
            ]
            outputs = consumer.generate(prompts, params, use_tqdm=False)
        monkeypatch.setenv("PAGES_SECRET", "another secret for a test")
        with LLM(**OPTIONS, kv_transfer_config=_config("kv_consumer", pages)) as stranger:
            others = stranger.generate(prompts, params, use_tqdm=False)
    for answers in (outputs, others):
        assert [list(output.outputs[0].token_ids) for output in answers] == alone[5]
    assert not any(output.num_cached_tokens for output in others)
    assert [output.num_cached_tokens for output in outputs] == [
        (len(output.prompt_token_ids) - 2) // 16 * 16 for output in outputs
    ]  # a deterministic engine computes the last two tokens itself
