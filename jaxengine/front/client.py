"""One engine as the user's side holds it, wherever it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.metrics import EngineStatistics
from jaxengine.contract.request import Request
from jaxengine.front.output_stream import OutputStream


class EngineClient(Protocol):
    """What can be asked of an engine.

    `InlineClient` runs its steps on the caller's thread and returns what comes of a call; `AsyncClient` has a channel to it, and
    where the engine has to say something the call is to be awaited.
    """

    @property
    def facts(self) -> EngineFacts:
        """What is true of the engine for as long as it runs."""
        ...

    @property
    def statistics(self) -> EngineStatistics:
        """Counts, as of when the engine was last heard of."""
        ...

    def submit(self, requests: Sequence[Request]) -> Awaitable[OutputStream[Any]] | None:
        """Hand in requests, all or none.

        Raises:
            RequestError: one of them can never run.
            EngineDeadError: the engine has stopped.
        """
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """End exactly these requests without a further output; ids that have ended are passed over."""
        ...

    def reset_prefix_cache(self) -> Awaitable[bool] | bool:
        """Forget all cached prefixes. False when requests still hold some of them."""
        ...

    def profile(self, *, begin: bool) -> Awaitable[None] | None:
        """Begin a trace of device and host, or end it and write it.

        Raises:
            RequestError: it was not asked for at the start, one is running already, or none is.
        """
        ...

    def sleep(self, level: int = 1) -> Awaitable[None] | None:
        """Compute nothing until `wake`, and from level 1 on give the device's memory back.

        Raises:
            RequestError: a request has not ended.
        """
        ...

    def wake(self, tags: Sequence[str] = ...) -> Awaitable[None] | None:
        """Take the device's memory again, or that of what the tags name. Nothing compiles."""
        ...

    def update(self, source: str | Mapping[str, Any], version: str | None) -> Awaitable[None] | None:
        """Use other weights of the same model from now on. Cached prefixes are forgotten.

        Raises:
            RequestError: a request has not ended, or the arrays are not the model's.
            CheckpointError: there is no such checkpoint, or it is of another model.
            OverloadedError: the engine sleeps, with its weights on the host.
        """
        ...

    def close(self) -> Awaitable[None] | None:
        """End the engine and free the device. Open requests fail. Closing twice is fine."""
        ...
