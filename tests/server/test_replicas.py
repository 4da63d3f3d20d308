"""Two engines in processes of their own behind one server: one may die or be restarted, and every stream is as if it had not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
SCRIPT = """
import logging, sys
from jaxengine.front.engine_process import EngineProcess
from jaxengine.front.replicas import begin_of
from jaxengine.server.address import listening
from jaxengine.server.options import ServerConfig
from tests.far_engine import ENTRY, begin

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
told = begin(data_parallel_size=2)
options = ServerConfig.from_options(port=0, access_log=False)

def launch(index):
    engine = EngineProcess(begin_of(told, index), entry=ENTRY)
    print("process of engine", index, engine.pid, flush=True)
    return engine

with listening(options.network) as listener:
    engines = [launch(index) for index in range(2)]
    from jaxengine.server.launch import run_beside

    sys.exit(run_beside(listener, engines, options, config=told.config, launch=launch))
"""


class Server:
    """The server's process, and what it has said so far."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self.wait_for(r"listening on (http\S+)")[-1]
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.log.extend(self._process.stdout)

    def wait_for(self, pattern: str) -> list[str]:
        """What the group is in every line that matches; one at least."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := [match[1] for line in list(self.log) if (match := re.search(pattern, line))]):
            assert time.monotonic() < deadline, "".join(self.log)
            assert self._process.poll() is None, "".join(self.log)
            time.sleep(0.01)
        return found

    def engines(self) -> list[dict[str, object]]:
        return self.http.get("/engines").json()["engines"]  # type: ignore[no-any-return]

    def metric(self, name: str, **labels: str) -> float:
        wanted = ",".join(f'{key}="{value}"' for key, value in sorted({**labels, "model_name": "tiny"}.items()))
        (value,) = re.findall(rf"^{name}\{{{wanted}\}} (\S+)", self.http.get("/metrics").text, re.MULTILINE)
        return float(value)

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(PATIENCE_S)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.http.close()
        return status


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    try:
        yield server
        assert server.end() == 0, "".join(server.log)
    finally:
        server._process.kill()


def body(number: int, **more: object) -> dict[str, object]:
    sampled = {"temperature": 0.8, "seed": number, "n": 1 + number % 3} if number % 2 else {"temperature": 0}
    prompt = [(number * 7 + place) % 900 + 3 for place in range(20)]
    return {"prompt": prompt, "max_tokens": 60, "ignore_eos": True, **sampled, **more}


def stream(server: Server, number: int, *, rank: bool = False) -> list[list[int]]:
    """The tokens of each choice, as they were sent. Requests that come alone would all be the first engine's."""
    alone = {"X-data-parallel-rank": str(number % 2)} if rank else {}
    choices: dict[int, list[int]] = {}
    asked = body(number, stream=True, return_token_ids=True)
    with server.http.stream("POST", "/v1/completions", json=asked, headers=alone) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    choices.setdefault(choice["index"], []).extend(choice["token_ids"] or ())
    return [choices[index] for index in sorted(choices)]


def test_one_of_two_dies_and_one_is_restarted_and_no_stream_is_another(server: Server) -> None:
    assert [(engine["engine"], engine["ready"]) for engine in server.engines()] == [(0, True), (1, True)]
    with ThreadPoolExecutor(12) as pool:
        alone = [stream(server, number, rank=True) for number in range(12)]
        assert all(len(tokens) == 60 for choices in alone for tokens in choices)

        streams = [pool.submit(stream, server, number) for number in range(12)]
        while not all(engine["requests"] for engine in server.engines()):
            time.sleep(0.005)
        pid = server.wait_for(r"process of engine 1 (\d+)")[0]
        os.kill(int(pid), signal.SIGKILL)
        assert server.http.get("/health").status_code == 200, "the other one serves"
        assert [each.result(PATIENCE_S) for each in streams] == alone
        server.wait_for(r"engine 1 is dead (.*)")
        assert server.metric("jaxengine:engine_deaths_total", cause="killed", engine="1") == 1
        assert server.metric("jaxengine:engine_deaths_total", cause="killed", engine="0") == 0

        while not all(engine["ready"] for engine in server.engines()):
            time.sleep(0.01)
        streams = [pool.submit(stream, server, number) for number in range(12)]
        while not all(engine["requests"] for engine in server.engines()):
            time.sleep(0.005)
        for engine in (0, 1):
            assert server.http.post(f"/engines/{engine}/restart", params={"timeout": 0.05}).status_code == 200
        assert [each.result(PATIENCE_S) for each in streams] == alone
    assert [engine["restarts"] for engine in server.engines()] == [0, 1], "those on purpose are no deaths"
    assert len(server.wait_for(r"process of engine \d (\d+)")) == 5


@pytest.mark.slow
def test_a_header_names_the_replica(server: Server) -> None:
    for engine in ("1", "0", "1", "1"):
        answer = server.http.post("/v1/completions", json=body(1), headers={"X-data-parallel-rank": engine})
        assert answer.status_code == 200, answer.text
    refused = server.http.post("/v1/completions", json=body(2), headers={"X-data-parallel-rank": "2"})
    assert refused.status_code == 400
    assert "which has 0, 1" in refused.json()["error"]["message"]
    tokens = [server.metric("vllm:generation_tokens_total", engine=engine) for engine in ("0", "1")]
    assert tokens == [120, 360]
    assert server.http.post("/engines/2/restart").status_code == 400
    assert server.http.post("/engines/0/restart", params={"timeout": "-1"}).status_code == 400
