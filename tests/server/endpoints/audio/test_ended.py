"""What has no text is told as what it is: to be asked again, asked otherwise, or the engine's own failure."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxengine.contract.outputs import CompletionOutput, PoolingOutput, PoolingRequestOutput
from jaxengine.errors import JaxEngineError, OverloadedError, RequestError
from jaxengine.front.speech import SpeechTokens
from jaxengine.server.endpoints.audio.answer import SpeechAnswer
from jaxengine.server.endpoints.audio.ended import check_made, check_pooled
from jaxengine.server.endpoints.audio.protocol import SpeechRequest
from tests.server.endpoints.audio.test_answer import Steps


def made(reason: str, why: str | None = None) -> CompletionOutput:
    return CompletionOutput(0, "", (), finish_reason=reason, stop_reason=why)


def pooled(problem: str | None, *, aborted: bool) -> PoolingRequestOutput[Any]:
    nothing = PoolingOutput(np.zeros(0, np.float32))
    return PoolingRequestOutput("r", nothing, (1,), aborted=aborted, problem=problem)


@pytest.mark.parametrize(
    ("reason", "why", "error"),
    [
        ("abort", None, OverloadedError),
        ("error", "too long", RequestError),
        ("abort", "it could not be built", JaxEngineError),
    ],
)
def test_texts(reason: str, why: str | None, error: type[JaxEngineError]) -> None:
    check_made(made("stop"), "no text")
    check_made(made("length"), "no text")
    with pytest.raises(JaxEngineError, match="paused" if why is None else f"no text: {why}") as raised:
        check_made(made(reason, why), "no text")
    assert type(raised.value) is error


@pytest.mark.parametrize(("problem", "error"), [(None, OverloadedError), ("too long", RequestError)])
def test_times(problem: str | None, error: type[JaxEngineError]) -> None:
    check_pooled(pooled(None, aborted=False), "no times")
    with pytest.raises(error, match="paused" if problem is None else "no times: too long"):
        check_pooled(pooled(problem, aborted=True), "no times")


def test_a_pause_while_the_language_is_told() -> None:
    """The request has no token then: to be asked again, as any other."""

    async def submit(*_: Any) -> Steps:
        return Steps([("heard", made("abort"))])

    async def in_thread(work: Any) -> Any:
        return work()

    intake = SimpleNamespace(request=lambda *_, **__: None)
    service: Any = SimpleNamespace(submit=submit, in_thread=in_thread, intake=intake, engine_id=lambda: "heard")
    nothing: Any = None
    answer = SpeechAnswer(SpeechRequest(), b"", "transcribe", service, nothing, nothing)
    answer._speech = SpeechTokens(
        start=1,
        end=2,
        previous=3,
        no_times=4,
        tasks={},
        languages={"en": 7},
        suppressed=(),
        not_first=(),
        latest_first=50,
        most_previous=0,
        hears=16_000,
    )
    with pytest.raises(OverloadedError, match="paused"):
        asyncio.run(answer._heard(nothing))
