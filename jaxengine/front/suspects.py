"""Which requests an engine may have died of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxengine.contract.messages import Cause
from jaxengine.front.book import Entry

EVIDENCE_FOR_TRIAL = 2.0
"""With so much against it a request is tried alone."""

EVIDENCE_FOR_CONVICTION = 3.0
"""With so much it ends: after another death that it was alone in, or two where these may have come from outside."""

EVIDENCE: Mapping[str, float] = {"killed": 0.5, "silence": 0.5}
"""What a death says against a request that was running: less where it came from outside, by a signal that nobody can raise for
himself or because a process got no time; 1 where the engine failed."""

PAST = 3
"""Tokens beyond its first death with which a request is cleared: so many may have been computed then and not told."""


@dataclass(slots=True)
class _Suspicion:
    """`evidence` of deaths in a row; how far the request had come at the first of them; its place among all suspected.

    `trials` are those in which the engine died, and that proved nothing.
    """

    evidence: float
    point: int
    order: int
    trials: int = 0


class Suspects:
    """The requests that were running when an engine died and have not got past that point since.

    An engine that dies of a request dies of it again. So suspects are tried alone, one after the other: if that kills the engine
    the culprit is found, and what happened to the others is explained. Those that had yielded least come first, the latest of
    them before the others: most that kill do so in their first step, and before the latest came the engine lived. One that was
    tried comes behind those that were not: who kills engines from outside hits another one then.
    """

    def __init__(self) -> None:
        self._suspicions: dict[str, _Suspicion] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._suspicions)

    def note_death(self, running: Iterable[Entry], cause: Cause, *, on_trial: Entry | None) -> Entry | None:
        """An engine died while these were running, or was about to run `on_trial` alone. The culprit, when it is certain."""
        running = list(running)
        weight = EVIDENCE.get(cause, 1.0)
        if on_trial is not None and on_trial not in running:  # it may not even have come to it
            running, weight = [on_trial], min(EVIDENCE.values())
        for entry in running:
            self._count += 1
            suspicion = self._suspicions.setdefault(entry.request_id, _Suspicion(0.0, entry.progress, self._count))
            suspicion.evidence += weight
            suspicion.trials += entry is on_trial
            if entry is on_trial and suspicion.evidence >= EVIDENCE_FOR_CONVICTION:
                self._suspicions.clear()
                return entry
        return None

    def clears(self, entry: Entry) -> bool:
        """Whether a request is no suspect: it never was, or it has got past the point at which the engine died."""
        suspicion = self._suspicions.get(entry.request_id)
        if suspicion is not None and entry.progress >= suspicion.point + PAST:
            self.forget(entry)
            return True
        return suspicion is None

    def forget(self, entry: Entry) -> None:
        """The request has ended, or is cleared."""
        self._suspicions.pop(entry.request_id, None)

    def to_try(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those that are to be tried alone, in this order."""
        found = [
            (suspicion.trials, suspicion.point, -suspicion.order, entry)
            for entry in entries
            if (suspicion := self._suspicions.get(entry.request_id)) is not None
            and suspicion.evidence >= EVIDENCE_FOR_TRIAL
        ]
        return [entry for *_, entry in sorted(found, key=lambda each: each[:3])]
