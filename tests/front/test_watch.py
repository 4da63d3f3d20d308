"""An engine is dead when it is silent, or when a step takes longer than steps may; not when it is idle or slow as ever."""

from __future__ import annotations

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import Alive, EngineReady, StepOutputs
from jaxengine.contract.metrics import NOTHING_YET
from jaxengine.front.watch import START_SILENCE_S, Watch


def ready(*, silence_s: float = 10.0, limit_s: float = 60.0) -> Watch:
    watch = Watch(0.0, silence_s=silence_s)
    watch.hear(EngineReady(EngineFacts(vocab_size=9, max_model_len=9)), 1.0)
    watch.begin_steps(limit_s)
    return watch


def outputs(*, busy: bool) -> StepOutputs:
    return StepOutputs(statistics=NOTHING_YET, busy=busy)


def test_silence_is_death() -> None:
    watch = ready()
    assert watch.verdict(11.0) is None
    verdict = watch.verdict(11.5)
    assert verdict is not None
    assert verdict[0] == "silence"
    watch.hear(Alive(), 11.6)
    assert watch.verdict(20.0) is None


def test_time_in_which_nobody_listened_does_not_count() -> None:
    """Neither as silence nor of a step; what was heard since is not heard later than now."""
    watch = ready(limit_s=20.0)
    watch.hear(outputs(busy=True), 5.0)
    watch.pass_over(100.0, 108.0)
    assert watch.verdict(114.0) is None
    verdict = watch.verdict(115.5)
    assert verdict is not None
    assert verdict[0] == "silence"
    watch.hear(Alive(), 115.5)
    watch.pass_over(100.0, 116.0)
    verdict = watch.verdict(126.5)
    assert verdict is not None
    assert verdict[0] == "silence"


def test_a_start_may_be_silent_for_longer() -> None:
    watch = Watch(0.0, silence_s=10.0)
    assert watch.verdict(START_SILENCE_S) is None
    assert watch.verdict(START_SILENCE_S + 1) is not None


def test_a_step_that_does_not_end_is_death_whatever_else_lives() -> None:
    watch = ready()
    watch.hear(outputs(busy=True), 2.0)
    for second in range(3, 63):
        watch.hear(Alive(), float(second))
        assert watch.verdict(float(second)) is None
    watch.hear(Alive(), 62.5)
    verdict = watch.verdict(62.5)
    assert verdict is not None
    assert verdict[0] == "hang"


def test_an_idle_engine_owes_nothing_until_requests_are_sent() -> None:
    watch = ready(silence_s=0.0)
    watch.hear(outputs(busy=False), 2.0)
    assert watch.verdict(1000.0) is None
    watch.owe(1000.0)
    assert watch.verdict(1059.0) is None
    assert watch.verdict(1061.0) is not None


def test_without_a_limit_a_step_may_take_for_ever() -> None:
    watch = ready(limit_s=0.0, silence_s=0.0)
    watch.hear(outputs(busy=True), 2.0)
    assert watch.verdict(1e6) is None
