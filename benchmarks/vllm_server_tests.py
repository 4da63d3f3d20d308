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
    openai/completion/test_prompt_validation.py                50 of 51
    openai/completion/test_token_in_token_out.py                1 of 1
    openai/chat_completion/test_chat.py                        33 of 47
    openai/chat_completion/test_chat_completion.py              4 of 8
    openai/chat_completion/test_chat_echo.py                    3 of 4
    openai/chat_completion/test_chat_logit_bias_validation.py   3 of 5
    openai/chat_completion/test_completion_with_function_calling.py
                                                                9 of 30
    openai/chat_completion/test_enable_force_include_usage.py   1 of 1
    openai/chat_completion/test_extra_content_fields.py         0 of 2
    openai/chat_completion/test_include_reasoning.py            2 of 6
    openai/chat_completion/test_logprob_token_ids.py            5 of 9
    openai/chat_completion/test_root_path.py                    4 of 4
    openai/chat_completion/test_thinking_token_budget.py        6 of 6, 1 skipped
    openai/models/test_models.py                                0 of 1
    openai/responses/test_basic.py                              3 of 6
    openai/responses/test_errors.py                             3 of 3
    openai/responses/test_function_call.py                      3 of 9, 5 not reached
    openai/responses/test_parsable_context.py                   0 of 4, 1 expected to fail
    openai/responses/test_simple.py                             5 of 10
    openai/responses/test_stateful.py                           5 of 7
    openai/responses/test_structured_output.py                  0 of 2
    openai/test_chunked_prompt.py                               1 of 2
    openai/test_return_token_ids.py                             5 of 6
    openai/test_return_tokens_as_ids.py                         5 of 5
    anthropic/test_messages.py                                  5 of 7
    launchers/test_shutdown.py                                  6 of 8
    launchers/api_server/test_multi_api_servers.py              0 of 2
    serve/dev/rpc/test_collective_rpc.py                        0 of 3
    serve/instrumentator/test_basic.py                          4 of 6
    serve/instrumentator/test_metrics.py                       12 of 16, 3 skipped
    serve/instrumentator/test_orca_metrics.py                   2 of 3
    serve/instrumentator/test_uds.py                            0 of 1
    serve/middleware/test_optional_middleware.py                8 of 9
    serve/sagemaker/test_sagemaker_handler_overrides.py         7 of 7
    serve/sagemaker/test_sagemaker_middleware_integration.py    0 of 3
    serve/sagemaker/test_sagemaker_stateful_sessions.py         1 of 5
    serve/tokenize/test_tokenization.py                         9 of 9
    tool_parsers/test_hermes_tool_parser.py                     0 of 8

224 of 341 in all. The 117 others, by reason:

    35  the model: it ends at once, calls no tool of its own accord, cannot multiply, remembers no names, writes until its context
        is full (and, with unoptimised programs beside other work, until the client's patience ends)
    7   reasoning of a model that does not reason
    46  not built: watermarks (12), logprob_token_ids (6), tool servers (4), the parser granite4 (4), SageMaker's sessions (4) and
        middleware (3), several API servers in one process (3), extensions of workers (3), kv_transfer_params (2), metrics of each
        request (2), beam search over HTTP, enable_response_messages, /v2/embed
    15  LoRA (11), pictures (4)
    4   this plugin's: three mended since and not run again, and the model's directory where its name is wanted
    4   start vLLM's own server or run-batch, ask for vLLM's version
    3   read a model's files from the hub
    3   want other words for a seed beyond 64 bits and an empty prompt, or send a prompt longer than their --max-model-len

Not run: what is for embeddings, scores, LoRA, several devices or gpt-oss; test_batched_chat_completions.py and
test_serving_chat.py, which need vLLM 0.33 itself; test_openai_schema.py, which schemathesis does by itself (clients.py).

Not run either, of pictures and sound, because of what they need (as of November 2026; what they ask of a server is asked of small
random models by the tests that are named):

    multimodal/openai/chat_completion/test_vision.py, responses/test_image.py: pictures of vLLM's store on the network, which are
        fetched, and words about them (tests/server/conversation/test_showing.py, tests/integration/test_pictures.py)
    multimodal/openai/chat_completion/test_video.py: videos of the network (test_showing.py)
    multimodal/openai/chat_completion/test_audio.py: Ultravox, which is not built, recordings of the network, counts of
        its tokens (tests/integration/test_hearing.py: all kinds of parts, streams, several sounds, too many of them)
    multimodal/openai/chat_completion/test_audio_in_video.py: Qwen2.5-Omni, which is not built
    .../test_chat_completion_with_image_embeds.py, ..._with_mixed_image_embeds.py, ..._with_mixed_audio_embeds.py,
        llm/test_mm_embeds_only.py: embeddings instead of items, which are refused
    .../test_default_mm_loras.py: adapters of the hub
    multimodal/llm/: take vLLM's engine apart
    speech_to_text/transcription/test_transcription_validation_whisper.py, translation/test_translation_validation.py: words that
        a trained Whisper writes of recordings of the network (tests/integration/test_transcriptions.py: formats, streams that are
        the whole text, usage at each event, sampling, max_completion_tokens of a million, languages told and unknown, broken and
        long files). Ours says 400 to a conversation with Whisper where theirs says 404; beams over HTTP are not built
    .../test_transcription_word_timestamps.py: words that a trained Whisper writes of recordings of the network
        (tests/integration/test_transcriptions.py: words and times as transformers has them, without --enable-word-timestamps)
    .../test_transcription_validation.py, ..._parakeetv3.py, test_nemotron3_5_asr.py, test_qwen3_asr_*.py, realtime/: models and a
        protocol that are not built
    .../test_enable_force_include_usage.py: a recording of the network
    speech_to_text/test_*.py, transcription/test_verbose_segments*.py, test_transcription_granularity_gating.py,
        test_transcription_inter_chunk_spacing.py, test_chunk_timestamp_offset.py: call vLLM's own classes, no server
        (tests/server/endpoints/audio/: the same of clocks, subtitles, spaces between pieces)
    speech_to_text/correctness/: word error rates of a trained model

test_thinking_token_budget.py is run with a model whose `<think>` and `</think>` are tokens and whose template opens a block.
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
