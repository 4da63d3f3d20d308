"""What the client of several engines is told, as if there were one that does not die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import EngineDead, EngineReady, Event, Failed, Lost, Reply, StepOutputs
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.front.ward import State, Ward


class ClientEvents:
    """Emits what engines have brought, what their supervisor itself has to say, that one is ready, and that none will be again.

    Args:
        wards: the engines.

    Attributes:
        was_ready: an engine has been.
        ended: none is, nor will be; nothing is told from then on.
    """

    def __init__(self, wards: Sequence[Ward]) -> None:
        self.was_ready = self.ended = False
        self._wards = wards
        self._emit: Callable[[Event], None] = lambda event: None

    def open(self, emit: Callable[[Event], None]) -> None:
        """Call `emit` with each event from now on."""
        self._emit = emit

    def progress(self, event: Event) -> None:
        """Pass on the progress of the first start."""
        if not self.was_ready:
            self._emit(event)

    def ready(self, facts: EngineFacts) -> None:
        """An engine is ready, which is told of the first one."""
        if not self.was_ready:
            self.was_ready = True
            self._emit(EngineReady(facts))

    def end(self, dead: EngineDead) -> None:
        """No engine runs, nor will."""
        if not self.ended:
            self.ended = True
            self._emit(dead)

    def pass_on(self, ward: Ward, outputs: StepOutputs, updates: Sequence[SequenceUpdate]) -> None:
        """Pass on what an engine's step has brought, of which these updates count. Its replies are not for the client."""
        lost = tuple(lost for lost in outputs.lost if lost.finish_reason != "error")  # those go on elsewhere
        if outputs.replies or updates is not outputs.updates or lost != outputs.lost or ward.index != outputs.engine:
            outputs = replace(outputs, replies=(), updates=updates, lost=lost, engine=ward.index)
        self._emit(outputs)

    def tell(
        self,
        *,
        replies: Sequence[Reply] = (),
        updates: Sequence[SequenceUpdate] = (),
        failed: Sequence[Failed] = (),
        lost: Sequence[Lost] = (),
        ward: Ward | None = None,
    ) -> None:
        """As `Tell` has it."""
        ward = ward or self._wards[0]
        outputs = StepOutputs(
            engine=ward.index,
            statistics=ward.statistics,
            busy=bool(ward.entries),
            replies=tuple(replies),
            updates=updates,
            failed=tuple(failed),
            lost=tuple(lost),
        )
        self._emit(outputs)

    def count_waiting(self, waiting: int) -> None:
        """Have so many requests that no engine has counted where the first engine is missing, until it is there."""
        for ward in self._wards:
            if ward.engine is not None and ward.state is not State.STARTING:
                continue
            scheduler = ward.statistics.scheduler
            if scheduler.num_waiting != waiting:
                ward.statistics = replace(ward.statistics, scheduler=replace(scheduler, num_waiting=waiting))
                self.tell(ward=ward)
            waiting = 0
