"""The recorded trace: a line per finished request, numbers only, appended and there at once."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from jaxengine.errors import ConfigError
from jaxengine.host.engine.traffic_log import TrafficLog
from tests.harness import Rig, make_request
from tests.host.engine.test_core import make_core


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_for_each_request_that_ended_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text('{"before": 1}\n')
    core = make_core(Rig())
    log = TrafficLog(str(path), clock=lambda: 100.0)
    core.recorder.listen(log)
    for name, arrival, n in (("a", 100.25, 1), ("b", 101.5, 2), ("gone", 102.0, 1)):
        core.add(make_request(name, range(1, 12), arrival=arrival, max_tokens=4, n=n))
        core.step()
    core.abort("gone")
    while core.has_unfinished:
        core.step()
    before, *written = lines(path)  # nothing was closed: each line is flushed
    assert before == {"before": 1}
    assert sorted(written, key=lambda line: line["arrival_s"]) == [
        {"arrival_s": 0.25, "prompt_tokens": 11, "cached_tokens": 0, "output_tokens": 4},
        {"arrival_s": 1.5, "prompt_tokens": 11, "cached_tokens": 8, "output_tokens": 8},
    ]
    log.close()
    log.close()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "traffic.jsonl"
    with pytest.raises(ConfigError, match=f"record_traffic: cannot write {path}: No such file"):
        TrafficLog(str(path))


def test_a_full_disk_ends_the_log_and_not_the_engine(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("jaxengine"), "propagate", True)
    log = TrafficLog("/dev/full")
    core = make_core(Rig())
    core.recorder.listen(log)
    for name in "ab":
        core.add(make_request(name, range(5)))
        while core.has_unfinished:
            core.step()
    assert caplog.text.count("/dev/full is not written any more: No space left on device") == 1
    log.close()
