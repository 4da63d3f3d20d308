"""Starting and stopping, as a user does it: in a process of its own, with signals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from jaxengine import cli

SCRIPT = """
import json, logging, sys, time
from jaxengine.server.address import listening
from jaxengine.server.launch import run
from jaxengine.server.options import ServerConfig
from tests.fakes import FakeRunner
from tests.fronts import make_engine

class Slow(FakeRunner):
    def launch(self, batch):
        time.sleep(0.03)
        return super().launch(batch)

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
engine = make_engine(runner=Slow)


def close():
    print("closing", flush=True)
    time.sleep(0.2)
    print("closed", flush=True)


engine.host.close = close
options = ServerConfig.from_options(port=0, **json.loads(sys.argv[1]))
with listening(options.network) as listener:
    status = run(listener, lambda: engine.front, options)
engine.core.check_idle()
print("jax" in sys.modules, flush=True)
sys.exit(status)
"""
BODY = {"prompt": "Once upon a time", "max_tokens": 80, "temperature": 0, "ignore_eos": True, "stream": True}


class Process:
    """A server in a process; `url` is where it said that it listens."""

    def __init__(self, **options: object) -> None:
        # A process in the background of a script is started with SIGINT ignored; a terminal's is not.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        signal.signal(signal.SIGINT, before)
        self.log: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            if found := re.match(r"listening on (\S+)", line):
                self.url = found[1]
                return
        raise AssertionError("".join(self.log))

    def end(self) -> int:
        """The exit status, and the rest of the log."""
        assert self.process.stdout is not None
        self.log.append(self.process.stdout.read())
        return self.process.wait(30)


@contextmanager
def started(**options: object) -> Iterator[Process]:
    process = Process(**options)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()
        if process.process.stdout is not None:
            process.process.stdout.close()


def test_start_curl_and_ctrl_c() -> None:
    with started() as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert httpx.get(f"{server.url}/health").status_code == 200
        answer = httpx.post(f"{server.url}/v1/completions", json={**BODY, "stream": False, "max_tokens": 3}).json()
        assert answer["usage"]["completion_tokens"] == 3
        server.process.send_signal(signal.SIGINT)
        assert server.end() == 0
        log = "".join(server.log)
        assert "curl http://127.0.0.1:" in log
        assert "closed\nFalse\n" in log
        assert "Traceback" not in log


def test_a_signal_while_the_engine_closes_makes_no_failure_of_it() -> None:
    with started() as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.stdout is not None
        assert any(line == "closing\n" for line in server.process.stdout)
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "closed\n" in server.log[-1]


def test_what_runs_is_finished_and_the_new_is_refused() -> None:
    with started() as server, httpx.stream("POST", f"{server.url}/v1/completions", json=BODY) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        server.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
        assert server.end() == 0
        assert "SIGTERM: 1 requests have 30 s to finish" in "".join(server.log)


@pytest.mark.slow
@pytest.mark.parametrize("impatient", [True, False])
def test_a_second_signal_or_the_time_limit_ends_what_runs_with_an_error_event(impatient: bool) -> None:
    seconds = 30 if impatient else 0.2
    with (
        started(shutdown_timeout=seconds) as server,
        httpx.stream("POST", f"{server.url}/v1/completions", json=BODY) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGINT)
        if impatient:
            for _ in range(4):
                next(lines)
            server.process.send_signal(signal.SIGINT)
        *_, error, done = [line for line in lines if line]
        assert done == "data: [DONE]"
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 503
        assert server.end() == 0


def test_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command, to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *make, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with started(ssl_keyfile=str(key), ssl_certfile=str(certificate)) as server:
        assert server.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        with (
            httpx.Client(verify=trusted) as client,
            client.stream("POST", f"{server.url}/v1/completions", json={**BODY, "max_tokens": 3}) as response,
        ):
            assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"


def test_an_address_in_use_is_said_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("the engine's process was started"))
        assert cli.main(["serve", f"--port={port}"]) == 1
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    before = os.getcwd()
    os.chdir(tmp_path)  # socket paths are short
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps({"uds": "s"})],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    finally:
        os.chdir(before)
    try:
        assert process.stdout is not None
        assert any(line.startswith("listening on s") for line in process.stdout)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://x/health").status_code == 200
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert not path.exists()
    finally:
        process.kill()
        process.wait()
