"""A server whose engine starts in a process beside it: it answers from the first moment, and both end together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
SCRIPT = """
import json, logging, sys
from jaxengine.errors import JaxEngineError
from jaxengine.front.engine_process import EngineProcess
from jaxengine.server.address import listening
from jaxengine.server.options import ServerConfig
from tests.far_engine import ENTRY, begin

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
options = ServerConfig.from_options(port=0, **json.loads(sys.argv[2]))
with listening(options.network) as listener:

    told = begin(sys.argv[1])

    def launch(index=0):
        engine = EngineProcess(told, entry=ENTRY)
        print("process", engine.pid, flush=True)
        return engine

    engine = launch()
    from jaxengine.server.launch import run_beside

    try:
        status = run_beside(listener, [engine], options, config=told.config, launch=launch)
    except JaxEngineError as error:
        print("error:", error)
        status = 1
loaded = {name.partition(".")[0] for name in sys.modules}
print("loaded", sorted(loaded & {"jax", "jaxlib", "flax", "transformers", "orbax"}), flush=True)
sys.exit(status)
"""
BODY = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True}


class Process:
    """A server in a process; `url` is where it said that it listens."""

    def __init__(self, model: str, environment: dict[str, str], **options: object) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, model, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            start_new_session=True,
        )
        signal.signal(signal.SIGINT, before)
        self.log = ""
        self.engine = int(self.wait_for(r"^process (\d+)"))
        self.url = self.wait_for(r"(http\S+) answers 503")

    def wait_for(self, pattern: str) -> str:
        """The group in the next line of the log that matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log += line
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(self.log)

    def end(self) -> int:
        """The exit status. The engine's process has ended too."""
        assert self.process.stdout is not None
        self.log += self.process.stdout.read()
        status = self.process.wait(PATIENCE_S)
        with pytest.raises(ProcessLookupError):
            os.kill(self.engine, 0)
        return status


@contextmanager
def started(model: str = "tiny", environment: dict[str, str] | None = None, **options: object) -> Iterator[Process]:
    process = Process(model, environment or {}, **options)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()
        if process.process.stdout is not None:
            process.process.stdout.close()


def test_it_answers_while_the_engine_starts_and_never_loads_jax(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with started("gated", {"TEST_GATE": str(gate)}, served_model_name=["mine"]) as server:
        deadline = time.monotonic() + PATIENCE_S
        while "compile" not in httpx.get(f"{server.url}/health").text:
            assert time.monotonic() < deadline
        for method, path in [
            ("GET", "/health"),
            ("POST", "/v1/completions"),
            ("GET", "/v1/models"),
            ("GET", "/nothing"),
        ]:
            refused = httpx.request(method, f"{server.url}{path}")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            error = refused.json()["error"]
            assert error["message"].startswith("the engine is starting (compile for ")
            assert (error["type"], error["code"]) == ("ServiceUnavailableError", 503)
        labels = r'\{engine="0",model_name="mine",phase="compile"\}'
        metrics = httpx.get(f"{server.url}/metrics")
        assert metrics.status_code == 200
        assert re.search(rf"^jaxengine:startup_phase_seconds{labels} 1\.[56]", metrics.text, re.MULTILINE)
        assert re.search(rf"^jaxengine:startup_phase_running{labels} 1\.0", metrics.text, re.MULTILINE)
        assert "process_resident_memory_bytes" in metrics.text
        gate.touch()
        server.wait_for("(listening on)")
        assert httpx.get(f"{server.url}/health").status_code == 200
        answer = httpx.post(f"{server.url}/v1/completions", json={**BODY, "stream": False, "max_tokens": 3})
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert httpx.post(f"{server.url}/reset_prefix_cache").json() == {"success": True}
        assert httpx.post(f"{server.url}/start_profile").json()["error"]["code"] == 400
        assert "vllm:generation_tokens_total" in httpx.get(f"{server.url}/metrics").text
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "loaded []\n" in server.log
        assert "Traceback" not in server.log


def test_a_start_that_fails_ends_the_server_with_its_error() -> None:
    with started("refused") as server:
        assert server.end() == 1
        assert "error: no such model: refused\n" in server.log
        assert "Traceback" not in server.log


def test_an_option_that_the_model_does_not_allow_ends_the_start_early() -> None:
    with started("plain", enable_auto_tool_choice=True) as server:
        assert server.end() == 1
        assert "error: enable_auto_tool_choice: the checkpoint does not tell for certain" in server.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_the_start_up(number: signal.Signals) -> None:
    with started("endless") as server:
        assert httpx.get(f"{server.url}/health").status_code == 503
        os.killpg(server.process.pid, number)
        assert server.end() == 128 + number
        assert "the start is given up" in server.log
        assert "Traceback" not in server.log


def test_a_signal_to_both_processes_lets_running_requests_finish() -> None:
    with started() as server:
        server.wait_for("(listening on)")
        with httpx.stream("POST", f"{server.url}/v1/completions", json=BODY) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            os.killpg(server.process.pid, signal.SIGINT)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert server.end() == 0


def test_another_engine_takes_the_place_of_one_that_was_killed_and_ends_with_the_server() -> None:
    with started() as server:
        server.wait_for("(listening on)")
        with httpx.stream("POST", f"{server.url}/v1/completions", json=BODY) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(server.engine, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        first, server.engine = server.engine, int(server.wait_for(r"^process (\d+)"))
        assert first != server.engine
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "SIGKILL" in server.log


def test_a_death_is_told_where_nothing_is_started_again() -> None:
    with started(max_engine_restarts=0) as server:
        server.wait_for("(listening on)")
        os.kill(server.engine, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while (health := httpx.get(f"{server.url}/health")).status_code == 200:
            assert time.monotonic() < deadline
        assert "has died (killed) and is not started again" in health.json()["error"]["message"]
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "SIGKILL" in server.log
