"""What the dashboard is told of several engines: sums, and each by its rank."""

from __future__ import annotations

from dataclasses import replace

from buckets import Bucket
from jaxengine.contract.metrics import NOTHING_YET, DraftStats, EngineStatistics, FirstToken, StepStats
from jaxengine.contract.tiers import TierStats, TierTraffic
from jaxengine.server.pages.snapshot import SERIES, counts
from jaxengine.server.telemetry.pulse import Pulse
from jaxengine.server.telemetry.tally import EngineNumbers, Tally

SMALL, LARGE = Bucket(4, 1), Bucket(4, 2)


def engine(rank: int, *steps: StepStats, running: int, asleep: bool = False) -> tuple[EngineNumbers, Pulse]:
    """One that has run `steps`."""
    tally, pulse = Tally(max_model_len=100), Pulse()
    for step in steps:
        tally.on_step(step)
        pulse.on_step(step)
    scheduler = replace(NOTHING_YET.scheduler, num_running=running, num_held_pages=3, num_free_pages=7)
    return EngineNumbers(rank, EngineStatistics(scheduler=scheduler, num_programs=5, asleep=asleep), tally), pulse


def step(shape: Bucket, tokens: int, seconds: float) -> StepStats:
    return StepStats(
        shape=shape,
        num_tokens=tokens,
        num_padded_tokens=shape.tokens,
        step_s=seconds,
        host_gap_s=None,
        num_generated_tokens=2,
        first_tokens=(FirstToken(10, 4, 0.5),),
        gaps={0.01: 1},
        drafts=DraftStats(num_drafts=1, num_draft_tokens=4, num_accepted_tokens=3),
    )


def test_engines_are_added_up_and_told_apart() -> None:
    first, first_pulse = engine(2, step(SMALL, 3, 0.25), step(LARGE, 8, 0.5), running=2)
    second, second_pulse = engine(3, step(SMALL, 4, 0.75), running=0, asleep=True)
    told = counts([first, second], [first_pulse, second_pulse])
    assert told["cells"] == {"4x1": [2, 7, 1, 1.0], "4x2": [1, 8, 0, 0.5]}
    assert (told["steps"], told["prompt_tokens"], told["generated_tokens"]) == (3, 30, 6)
    assert (told["draft_tokens"], told["accepted_tokens"]) == (12, 9)
    assert (told["running"], told["held_pages"], told["free_pages"]) == (2, 6, 14)
    seen = [(one["rank"], one["runs"], one["steps"], one["programs"], one["asleep"]) for one in told["engines"]]
    assert seen == [(2, "4x2", 2, 5, False), (3, None, 1, 5, True)]


def test_pages_on_the_host_and_what_moved_are_told() -> None:
    numbers, pulse = engine(0, step(SMALL, 3, 0.25), running=0)
    numbers.tally.on_step(replace(step(SMALL, 3, 0.25), first_tokens=(FirstToken(10, 8, 0.5, (("disk", 4),)),)))
    tiers = TierStats(num_cached_blocks=5, num_free_blocks=2, traffic={"disk to host": TierTraffic(800, 0.5)})
    told = counts([replace_tiers(numbers, tiers)] * 2, [pulse] * 2)
    assert (told["host_blocks"], told["host_cached_blocks"]) == (14, 10)
    assert told["kv_traffic"] == {"disk to host": [1600, 1.0]}
    assert told["prefix_hits_by_tier"] == {"device": 0, "disk": 8}


def replace_tiers(numbers: EngineNumbers, tiers: TierStats) -> EngineNumbers:
    return numbers._replace(statistics=replace(numbers.statistics, tiers=tiers))


def test_what_is_drawn_over_time_is_in_every_snapshot() -> None:
    made_by_the_feed = {"now", *(name for name in SERIES if name.startswith(("first_token", "between_tokens")))}
    assert set(SERIES) - made_by_the_feed <= set(counts(*([one] for one in engine(0, running=0))))
