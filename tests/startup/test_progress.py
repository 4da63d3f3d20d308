"""How far a start is: in the log, and for whoever is told."""

from __future__ import annotations

import pytest

from jaxengine.contract.messages import StartProgress
from jaxengine.front.starting import StartPhases
from jaxengine.startup.progress import Countdown, Progress


def test_phases_are_told_as_they_begin_go_on_and_end(caplog: pytest.LogCaptureFixture) -> None:
    told: list[StartProgress] = []
    caplog.set_level("INFO", logger="jaxengine")
    progress, phases = Progress(told.append), StartPhases()
    with progress.phase("compile"):
        Countdown(progress, "compile", total=2, total_cost=2.0).done("one", 1.0)
        for event in told:
            phases.take(event)
        assert phases.running == ("compile",)
    with pytest.raises(KeyError), progress.phase("load"):
        raise KeyError
    progress.say("KV cache", "small")
    assert [(event.phase, event.done) for event in told] == [
        ("compile", False),
        ("compile", False),
        ("compile", True),
        ("load", False),
        ("load", True),
        ("KV cache", False),
    ]
    for event in told:
        phases.take(event)
    assert phases.running == ()
    assert phases.seconds == progress.phases
    assert list(phases.seconds) == ["compile", "load"]
    assert (told[1].text or "").startswith("1/2 one, ETA ")
    assert "KV cache small" in caplog.text


def test_a_phase_that_is_entered_again_goes_on() -> None:
    told: list[StartProgress] = []
    progress = Progress(told.append)
    for _ in range(2):
        with progress.phase("plan"):
            pass
    first, second = (event.seconds or 0.0 for event in told if event.done)
    assert second >= first
    assert told[2].seconds == first
