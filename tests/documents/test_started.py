"""A few of the documents' lines from beginning to end: engines and a server that start, and answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxengine
from jaxengine import embedded
from tests.documents.lines import COMMANDS, EXAMPLES
from tests.documents.understanding import as_ours
from tests.quick import rare_but

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_engines")]

RUN = ("`LLM(model=", "pooling models: hidden states", "Python API example", "`AsyncLLMEngine.from_engine_args")
SERVED = "server example (7 flags"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, said to have as many positions as the documents' models have."""
    directory = tmp_path_factory.mktemp("model") / "model"
    shutil.copytree(embedded.checkpoint_path(), directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return directory


@pytest.mark.parametrize("row", rare_but(RUN, often=RUN[:1]))
def test_an_example_runs(row: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [shown] = [shown for shown in EXAMPLES if shown.row == row]
    monkeypatch.setitem(sys.modules, "vllm", jaxengine)
    names: dict[str, object] = {}
    exec(shown.text.replace("MODEL", str(model)), names)
    if "outputs" in names:
        assert all(output.outputs[0].text for output in names["outputs"])  # type: ignore[attr-defined]
    for value in names.values():
        if isinstance(value, jaxengine.LLM):
            value.close()


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[int]:
    """The documents' server, as a process; the port, which is the other thing that is not as written."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    [shown] = [shown for shown in COMMANDS if shown.row.startswith(SERVED)]
    _, words = as_ours(shown.text.replace("0.0.0.0", "127.0.0.1").replace("8000", str(port)))
    words = [str(model) if word == "embedded" else word for word in words]
    process = subprocess.Popen([sys.executable, "-m", "jaxengine", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "listening on" in line:
            break
    yield port
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_server_is_asked_as_the_documents_ask_it(server: int) -> None:
    # asked by the address that is no address, as documents do: it names this machine
    with urllib.request.urlopen(f"http://0.0.0.0:{server}/metrics", timeout=60) as response:
        assert b"vllm:num_requests_waiting" in response.read()
    body = {"prompt": "San Francisco is a", "max_tokens": 7, "temperature": 0}
    request = urllib.request.Request(
        f"http://localhost:{server}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 7


@pytest.mark.rare
def test_its_load_is_measured(server: int, tmp_path: Path) -> None:
    words = ["bench", "serve", "--backend", "vllm", "--port", str(server), "--num-prompts", "4", "--disable-tqdm"]
    words += ["--random-input-len", "9", "--random-output-len", "3", "--profile"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxengine", *words], capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert done.returncode == 1
    assert "the server refused /start_profile" in done.stderr  # and is not passed over: it was started without
