"""Why a piece has no text or no times: the engine was paused, or gave it up."""

from __future__ import annotations

from typing import Any

from jaxengine.contract.outputs import CompletionOutput, PoolingRequestOutput
from jaxengine.errors import JaxEngineError, OverloadedError, RequestError
from jaxengine.server.generation.protocol import PAUSED


def check_made(made: CompletionOutput, lost: str) -> None:
    """Let only what came to its own end be told; `lost` says what is missing otherwise.

    Raises:
        OverloadedError: the engine was paused or put to sleep, and may be asked again.
        RequestError: the engine could not make it.
        JaxEngineError: it failed within the engine.
    """
    if made.finish_reason == "error":
        raise RequestError(f"{lost}: {made.stop_reason}")
    if made.finish_reason == "abort":
        raise OverloadedError(PAUSED) if made.stop_reason is None else JaxEngineError(f"{lost}: {made.stop_reason}")


def check_pooled(output: PoolingRequestOutput[Any], lost: str) -> None:
    """As `check_made`, of what was pooled.

    Raises:
        OverloadedError: the engine was paused or put to sleep, and may be asked again.
        RequestError: the engine could not make it.
    """
    if output.aborted:
        raise OverloadedError(PAUSED) if output.problem is None else RequestError(f"{lost}: {output.problem}")
