"""The dashboard's stream: one snapshot for all who watch, of the numbers that /metrics has."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jaxengine.contract.metrics import NOTHING_YET, EngineStatistics
from jaxengine.errors import EngineDeadError
from jaxengine.server.pages import feed
from jaxengine.server.pages.feed import Feed
from jaxengine.server.pages.snapshot import SERIES
from tests.server.rig import Live, live


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty snapshots a second."""
    monkeypatch.setattr(feed, "INTERVAL_S", 0.05)


@contextmanager
def watching(server: Live) -> Iterator[Iterator[dict[str, Any]]]:
    """The data of each event that a viewer gets."""
    with server.http.stream("GET", "/dashboard/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))


def test_facts_come_first_then_snapshots_with_the_counts_of_the_engine() -> None:
    with live() as server, watching(server) as told:
        facts, first = next(told)["facts"], next(told)
        assert [shape["name"] for shape in facts["shapes"]] == ["1x1", "2x1", "4x1", "8x1", "8x2", "8x4", "8x8"]
        assert first["generated_tokens"] == 0
        assert server.post("/v1/completions", prompt="Tom", max_tokens=7, ignore_eos=True).status_code == 200
        last = next(one for one in told if one["generated_tokens"] == 7)
        assert sum(steps for steps, _, _, _ in last["cells"].values()) == last["steps"]
        assert (
            last["held_pages"] + last["cached_pages"] + last["free_pages"] == server.engine.ledger.pools.num_pages - 1
        )
        assert last["between_tokens_p50"] <= last["between_tokens_p95"]
        assert last["now"] > first["now"]


def test_who_comes_later_gets_what_was() -> None:
    with live() as server:
        with watching(server) as told:
            for _ in range(5):
                seen = next(told)
        with watching(server) as told:
            facts = next(told)["facts"]
        assert facts["series"] == list(SERIES)
        assert len(facts["past"]) >= 4
        assert facts["past"][0][0] < seen["now"] <= facts["past"][-1][0]


def test_a_compilation_is_kept_with_its_time() -> None:
    with live() as server:
        compiled = EngineStatistics(scheduler=NOTHING_YET.scheduler, num_compilations=2)
        engines = [engine._replace(statistics=compiled) for engine in server.service.engines()]
        server.service.engines = lambda: engines
        with watching(server) as told:
            next(told)
            seen = next(one for one in told if one["compilations"] == 2)
        with watching(server) as told:
            [(when, number)] = next(told)["facts"]["compiled"]
        assert number == 2
        assert when <= seen["now"]


def test_a_snapshot_is_made_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []
    snapshot = Feed._snapshot

    def counted(self: Feed) -> dict[str, Any]:
        found = snapshot(self)
        made.append(found["now"])
        return found

    monkeypatch.setattr(Feed, "_snapshot", counted)
    with live() as server:
        seen: list[list[float]] = []

        def watch() -> None:
            with watching(server) as told:
                next(told)
                seen.append([next(told)["now"] for _ in range(5)])

        viewers = [threading.Thread(target=watch) for _ in range(5)]
        for viewer in viewers:
            viewer.start()
        for viewer in viewers:
            viewer.join(20)
        assert len(seen) == 5
        assert {time for times in seen for time in times} <= set(made)


def test_viewers_do_not_hold_up_the_end() -> None:
    with live() as server, watching(server) as told:
        next(told)
        server.service.engine.drain()
        *_, last, end = told
        assert last["problem"] == "the server is shutting down"
        assert end == {}


def test_an_engine_that_has_died_is_told_to_all_who_come() -> None:
    with live() as server:
        with watching(server) as told:
            next(told)
            assert next(told)["problem"] is None
            server.service.engine.check_health = fail  # type: ignore[method-assign]
            assert [one.get("problem") for one in told][-2:] == ["it is gone", None]
        with watching(server) as told:
            _, only, end = told
            assert (only["problem"], end) == ("it is gone", {})


def fail() -> None:
    raise EngineDeadError("it is gone")


def test_viewers_are_no_load(server: Live) -> None:
    with watching(server) as told:
        next(told)
        assert server.http.get("/load").json() == {"server_load": 0}
