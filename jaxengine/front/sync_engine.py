"""The engine where one thread does everything: a core and the text of what it generates, step by step."""

from __future__ import annotations

from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.request import Request
from jaxengine.front.postprocess import Postprocessor, group_by_request
from jaxengine.host.engine.core import EngineCore


class SyncEngine:
    """Runs an `EngineCore` and builds outputs of its updates between two steps. Not thread-safe.

    Args:
        core: requests of others in it would yield no outputs here.
        postprocessor: builds the outputs.
    """

    def __init__(self, core: EngineCore, postprocessor: Postprocessor) -> None:
        self._core = core
        self._postprocessor = postprocessor

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return self._core.has_unfinished

    def add(self, request: Request) -> None:
        """Accept a request.

        Raises:
            RequestError: it is invalid or can never fit; nothing else is affected.
            EngineDeadError: the engine has stopped.
        """
        self._core.add(request)
        try:
            self._postprocessor.add(request)
        except Exception:
            self._core.abort(request.request_id)
            raise

    def abort(self, request_id: str) -> bool:
        """End exactly this request without a further output; False when it has ended already or never was."""
        self._postprocessor.discard(request_id)
        return self._core.abort(request_id)

    def step(self) -> list[RequestOutput]:
        """Run a step of the core; what there is to tell then, in no particular order.

        A request whose output cannot be built ends alone, with `abort`.

        Raises:
            EngineDeadError: a step failed, or the engine had stopped before. Every request in flight is lost.
        """
        outputs = []
        for updates in group_by_request(self._core.step()).values():
            output, ended = self._postprocessor.process(updates)
            if output is not None:
                outputs.append(output)
            if ended is not None:
                self._core.end(ended)
        return outputs
