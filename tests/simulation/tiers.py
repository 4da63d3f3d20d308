"""The tiers behind a simulated device: transfers take simulated time or come too late, and stores find and keep too little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from jaxengine.contract.page_name import PageName
from jaxengine.contract.tiers import Ended, Transfer
from tests.fakes import FakeTiers
from tests.simulation.event_loop import SimulatedLoop

Outer = dict[PageName, tuple[np.ndarray, np.ndarray]]
"""What all engines of a simulation, the dead ones too, have written to a store that they share."""


class SimulatedTiers(FakeTiers):
    """Blocks full of tokens, as the pages are.

    Args:
        delay_s: how long a transfer takes, about; one in many takes a thousand times as long.
        failing: the share of transfers at which the outer store fails, or is damaged or full.
        pause: is told how long the process waits for a transfer.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        random: Random,
        outer: Outer,
        *,
        delay_s: float,
        failing: float,
        pause: Callable[[float], None],
    ) -> None:
        super().__init__(outer=outer)
        self._loop, self._random = loop, random
        self._delay_s, self._failing, self._pause = delay_s, failing, pause
        self._due: list[tuple[float, Ended]] = []

    def begin(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            self.failing = self._random.random() < self._failing
            super().begin([transfer])
            self._plan()

    def ended(self) -> Sequence[Ended]:
        now = self._loop.time()
        self.under_way = [(0 if due <= now else 1, news) for due, news in self._due]
        ended = super().ended()
        left = [news for _, news in self.under_way]
        self._due = [(due, news) for due, news in self._due if any(news is other for other in left)]
        return ended

    def wait(self, timeout_s: float) -> None:
        self._pause(timeout_s)

    def _plan(self) -> None:
        """Decide when what is under way ends; what was cancelled is not any more."""
        now, due_of = self._loop.time(), {id(news): due for due, news in self._due}
        for _, news in self.under_way:
            if id(news) not in due_of:
                delay = self._delay_s * self._random.random() * (1000 if self._random.random() < 0.01 else 1)
                due_of[id(news)] = now + delay
        self._due = [(due_of[id(news)], news) for _, news in self.under_way]
