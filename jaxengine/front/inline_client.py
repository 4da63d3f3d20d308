"""The client where one thread does everything: it runs the engine's steps and makes text of what they bring."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.contract.channel import InlineEngine
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import (
    TAGS,
    Abort,
    Add,
    Done,
    LoadAdapter,
    Profile,
    Question,
    Refused,
    Reset,
    Sleep,
    Update,
    Wake,
)
from jaxengine.contract.metrics import EngineStatistics
from jaxengine.contract.outputs import Output
from jaxengine.contract.request import Request
from jaxengine.contract.step_updates import Gained, parts_of
from jaxengine.front.postprocess import Postprocessor, Progress
from jaxengine.front.token_sinks import TokenSinks


class InlineClient:
    """Builds outputs of an engine's updates between two steps. Not thread-safe.

    Args:
        engine: requests of others in it would yield no outputs here.
        postprocessor: builds the outputs.
    """

    def __init__(self, engine: InlineEngine, postprocessor: Postprocessor) -> None:
        self._engine = engine
        self._postprocessor = postprocessor
        self._numbers = itertools.count()
        self._versions = itertools.count(1)
        self._open: dict[str, Progress] = {}
        self._sinks = TokenSinks(self._find)

    @property
    def facts(self) -> EngineFacts:
        """What is true of the engine for as long as it runs."""
        return self._engine.facts

    @property
    def statistics(self) -> EngineStatistics:
        """Counts as of now."""
        return self._engine.statistics

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return self._engine.has_unfinished

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand in requests, all or none.

        Raises:
            RequestError: one of them is invalid or can never fit; nothing else is affected.
            EngineDeadError: the engine has stopped.
        """
        self._ask(Add(next(self._numbers), tuple(requests)))
        try:
            self._open |= {request.request_id: self._postprocessor.begin(request) for request in requests}
        except Exception:
            self.abort([request.request_id for request in requests])
            raise

    def abort(self, request_ids: Sequence[str]) -> None:
        """End exactly these requests without a further output; ids that have ended are passed over."""
        for request_id in request_ids:
            self._open.pop(request_id, None)
        self._engine.take(Abort(tuple(request_ids)))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False when requests still hold some of them."""
        return self._ask(Reset(next(self._numbers))).success

    def profile(self, *, begin: bool) -> None:
        """Begin a trace of device and host, or end it and write it.

        Raises:
            RequestError: it was not asked for at the start, one is running already, or none is.
        """
        self._ask(Profile(next(self._numbers), begin))

    def load_adapter(self, path: str) -> str:
        """Read the adapter in a directory; the digest of its contents.

        Raises:
            CheckpointError: its files are missing or damaged, or are another model's.
            RequestError: it is larger than slots are, or of a kind that is not built, or the engine has no adapters.
        """
        return self._ask(LoadAdapter(next(self._numbers), path)).digest

    def sleep(self, level: int = 1) -> None:
        """Compute nothing until `wake`, and from level 1 on give the device's memory back.

        Raises:
            RequestError: a request has not ended.
        """
        self._ask(Sleep(next(self._numbers), level))

    def wake(self, tags: Sequence[str] = TAGS) -> None:
        """Take the device's memory again, or that of what the tags name. Nothing compiles."""
        self._ask(Wake(next(self._numbers), tuple(tags)))

    def update(self, source: str | Mapping[str, Any], version: str | None) -> None:
        """Use other weights of the same model from now on, called `version` or by a number. Cached prefixes are forgotten.

        Raises:
            RequestError: a request has not ended, or the arrays are not the model's.
            CheckpointError: there is no such checkpoint, or it is of another model.
            OverloadedError: the engine sleeps, with its weights on the host.
        """
        name = str(next(self._versions)) if version is None else version
        self._ask(Update(next(self._numbers), source, name))

    def step(self) -> list[Output]:
        """Run a step; what there is to tell then, in no particular order.

        A request whose output cannot be built ends alone, with `abort`.

        Raises:
            EngineDeadError: a step failed, or the engine had stopped before. Every request in flight is lost.
        """
        due: dict[str, Progress] = {}
        for part in parts_of(self._engine.step()):
            if isinstance(part, Gained):
                told, part = self._sinks.take(part)
                due |= {progress.request.request_id: progress for progress in told}
            for update in part:
                # None: aborted, or under way when a stop string ended it
                progress = self._open.get(update.request_id)
                if progress is not None and progress.take(update):
                    due[update.request_id] = progress
        outputs = []
        for request_id, progress in due.items():
            output, ended = progress.tell()
            if output is not None:
                outputs.append(output)
            if progress.finished:
                del self._open[request_id]
            if ended is not None:
                self._engine.take(ended)
        return outputs

    def close(self) -> None:
        """End the engine and free the device. Closing twice is fine."""
        self._engine.close()

    def _find(self, request_id: str) -> tuple[Progress, Progress] | None:
        progress = self._open.get(request_id)
        return None if progress is None else (progress, progress)

    def _ask(self, question: Question) -> Done:
        """What came of a question that is not refused."""
        reply = self._engine.take(question)
        assert reply is not None, "a question has a reply"
        if isinstance(reply, Refused):
            raise reply.error
        return reply
