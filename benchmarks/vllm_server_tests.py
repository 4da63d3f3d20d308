"""vLLM's own tests of its server against `jaxengine serve`: a pytest plugin that stands in for its launcher.

Nothing of vLLM's is kept here. Its tests are those of its source distribution; they import vLLM, so they run in an environment
that has it (`../shared/tools/peers/install_vllm_cpu.sh`), with pytest, pytest-asyncio and anthropic beside it. From the folder of
the source distribution:

    JAXENGINE_PYTHON=python-with-jaxengine JAXENGINE_MODEL=directory PYTHONPATH=this-repository \\
    python-with-vllm -P -m pytest -p benchmarks.vllm_server_tests --confcutdir=tests/entrypoints tests/entrypoints/openai/...

Every model is JAXENGINE_MODEL (a chat model of any size; the embedded one when left out, whose directory may say that it has more
positions) under the name that the test asks for. JAXENGINE_OPTIONS are further words of the command line, such as a short
--max-model-len for tests in which a tiny model writes until its context is full. Options that only a capability needs which is
not built (LoRA) are left out, so that the rest of a file is still tried; what tests that capability fails then and is counted.

What vLLM 0.33's tests said, imported with vLLM 0.32's CPU build, of the embedded model (passed of run, the last of each):

    openai/completion/test_completion.py                       19 of 25
    openai/chat_completion/test_chat.py                        33 of 47
    openai/chat_completion/test_chat_completion.py              4 of 8
    openai/chat_completion/test_enable_force_include_usage.py   1 of 1
    openai/chat_completion/test_chat_logit_bias_validation.py   2 of 5
    openai/responses/test_simple.py                             5 of 10
    anthropic/test_messages.py                                  5 of 7
    serve/tokenize/test_tokenization.py                         9 of 9
    serve/instrumentator/test_basic.py                          4 of 6
    serve/instrumentator/test_metrics.py                       12 of 16, 3 skipped

94 of 134 in all. The 40 others:

    9   the model: it ends at once, calls no tool of its own accord, cannot add, needs more tokens for the same text
    3   reasoning of a model that does not reason
    8   not built, and a 400 that says so: logprob_token_ids, kv_transfer_params and metrics of each request (2 each), beam search
        over HTTP, enable_response_messages
    10  LoRA (7), pictures (3)
    3   this plugin's (a keyword, too few positions), mended since and not run again
    1   was ours and is mended, not run again: of several wrong keys of logit_bias only the first was named
    2   start vLLM's own run-batch, ask for vLLM's version
    3   read a model's files from the hub (2), want other words for a seed beyond 64 bits
    1   sends a prompt that is longer than its own --max-model-len with this tokenizer
"""

from __future__ import annotations

import importlib.machinery
import os
import socket
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

PYTHON = os.environ.get("JAXENGINE_PYTHON", sys.executable)
ROOT = Path(__file__).resolve().parents[1]
MODEL = os.environ.get("JAXENGINE_MODEL", str(ROOT / "jaxengine" / "embedded" / "checkpoint"))
MORE = os.environ.get("JAXENGINE_OPTIONS", "").split()
START_S = 240.0
WITHOUT = {
    "--enable-lora": 0,
    "--lora-modules": 1,
    "--max-lora-rank": 1,
    "--max-cpu-loras": 1,
    "--max-loras": 1,
    "--enable-prompt-embeds": 0,
    "--enable-per-request-metrics": 0,
    "--max-num-seqs": 1,
    "--max-num-batched-tokens": 1,
}
"""Options that are left out, and how many words follow each: what is not built, and sizes that are for a GPU."""
SMALL = ("--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--device", "cpu")
"""So that a start takes seconds."""


class Server:
    """Has the methods of vLLM's `RemoteOpenAIServer` that its tests call."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model: str, arguments: list[str], *, env_dict: dict[str, str] | None = None, **_: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.host = "127.0.0.1"
        self.show_hidden_metrics = "--show-hidden-metrics-for-version" in str(arguments)
        words = _without(arguments)
        names = [] if "--served-model-name" in words else ["--served-model-name", model]
        command = [PYTHON, "-m", "jaxengine", "serve", MODEL, *names, *SMALL, *words]
        words += MORE
        self.uds = words[words.index("--uds") + 1] if "--uds" in words else None
        address = [] if self.uds else ["--host", self.host, "--port", str(self.port)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **(env_dict or {})}
        self.proc = subprocess.Popen([*command, *address], env=environ)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.proc.terminate()
        try:
            self.proc.wait(30)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()

    def _wait(self) -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < START_S:
            if self.proc.poll() is not None:
                raise RuntimeError(f"jaxengine serve ended with {self.proc.returncode}")
            try:
                if self.uds is None:
                    urllib.request.urlopen(self.url_for("health"), timeout=5).close()
                else:
                    socket.socket(socket.AF_UNIX).connect(self.uds)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise TimeoutError(f"the server was not ready within {START_S:g} s")

    @property
    def url_root(self) -> str:
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *parts))

    def _get_process_termination_timeout(self) -> float:
        return 15.0

    def get_client(self, **options: Any) -> Any:
        import openai

        return openai.OpenAI(**self._client(self.url_for("v1"), options))

    def get_async_client(self, **options: Any) -> Any:
        import openai

        return openai.AsyncOpenAI(**self._client(self.url_for("v1"), options))

    def get_client_anthropic(self, **options: Any) -> Any:
        import anthropic

        return anthropic.Anthropic(**self._client(self.url_root, options))

    def get_async_client_anthropic(self, **options: Any) -> Any:
        import anthropic

        return anthropic.AsyncAnthropic(**self._client(self.url_root, options))

    def _client(self, url: str, options: dict[str, Any]) -> dict[str, Any]:
        return {"base_url": url, "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 120, **options}


def _without(words: list[str]) -> list[str]:
    kept, skip = [], 0
    for word in map(str, words):
        if word in WITHOUT:
            skip = WITHOUT[word] + 1
        if skip:
            skip -= 1
        else:
            kept.append(word)
    return kept


@pytest.fixture
def local_asset_server() -> None:
    """Pictures, which are for models that see."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put the stand-in in the place of `tests.utils`, and the one model in that of all names, before a conftest asks."""
    import transformers

    utils = types.ModuleType("tests.utils")
    for name in ("RemoteOpenAIServer", "RemoteVLLMServer", "RemoteOpenAIServerCustom"):
        setattr(utils, name, Server)
    utils.VLLM_PATH = Path.cwd()  # type: ignore[attr-defined]
    utils.ROCM_EXTRA_ARGS = []  # type: ignore[attr-defined]
    utils.multi_gpu_test = lambda **_: lambda test: test  # type: ignore[attr-defined]
    utils.create_new_process_for_each_test = lambda *_: lambda test: test  # type: ignore[attr-defined]
    skip = pytest.mark.skip(reason="for GPUs")
    utils.multi_gpu_only = lambda **_: skip  # type: ignore[attr-defined]
    utils.requires_fp8 = skip  # type: ignore[attr-defined]
    sys.modules["tests.utils"] = utils
    sys.modules["gpt_oss"] = gpt_oss = types.ModuleType("gpt_oss")  # looked for, and used for gpt-oss alone
    gpt_oss.__spec__ = importlib.machinery.ModuleSpec("gpt_oss", None)
    load = transformers.AutoTokenizer.from_pretrained
    transformers.AutoTokenizer.from_pretrained = lambda *given, **named: load(MODEL)
    from vllm import tokenizers
    from vllm.transformers_utils import repo_utils

    tokenizers.get_tokenizer = lambda *given, **named: load(MODEL)
    nothing_is_fetched = types.SimpleNamespace(snapshot_download=lambda *given, **named: MODEL)
    repo_utils.hf_api = lambda *given, **named: nothing_is_fetched
