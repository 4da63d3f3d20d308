"""The loop's part of the tiers behind the device: what the scheduler decides is begun, what has come is told to it."""

from __future__ import annotations

from jaxengine.contract.runner import Runner
from jaxengine.contract.tiers import TierStats
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.scheduler.scheduler import Scheduler

POLL_S = 0.002
"""How long a loop that has nothing else to do waits for pages before it looks for messages."""


class TierTransfers:
    """Keeps the order that blocks depend on: what comes back before the moves of a step, what goes on to other tiers after."""

    def __init__(self, scheduler: Scheduler, tier: HostTier, runner: Runner) -> None:
        self._scheduler = scheduler
        self._tier = tier
        self._runner = runner
        self._tiers = runner.tiers
        tier.block_s = runner.tiers.block_s

    @property
    def stats(self) -> TierStats:
        """What there is and what moved."""
        return self._tier.stats(self._tiers.traffic)

    def take_ended(self) -> None:
        """Tell the scheduler what has come."""
        if self._scheduler.waits_for_pages:
            self._scheduler.take_ended(self._tiers.ended())

    def begin(self) -> None:
        """Begin what was decided with the step that is to be launched next, or with none."""
        if transfers := self._tier.take_transfers():
            self._tiers.begin(transfers)

    def begin_later(self) -> None:
        """Begin what has to come after the moves of the step that was launched."""
        if later := self._tier.take_later():
            self._tiers.begin(later)

    def move(self, *, wait: bool) -> None:
        """Launch the moves that no step brings; with `wait` pause for a moment where only pages are waited for."""
        self.begin()
        if moves := self._tier.take_moves():
            self._runner.move(moves)
        elif wait and self._scheduler.waits_for_pages:
            self._tiers.wait(POLL_S)
        self.begin_later()

    def flush(self) -> None:
        """Where no step is to come, let go to the host and on from there all that should."""
        self.begin()
        while self._tier.has_pending:
            self.move(wait=False)
