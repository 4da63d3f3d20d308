"""Hosts as threads of one process: what they agree on, and how soon one that is lost is found."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.group_key import VARIABLE, group_key
from jaxengine.startup.group import following, leading
from jaxengine.startup.group.following import FollowingGroup, find_first_host
from jaxengine.startup.group.group import agree, differences, least
from jaxengine.startup.group.leading import LeadingGroup, gather_hosts
from jaxengine.startup.group.turns import turns

HELLO = {"jaxengine": "1"}
KEY = b"of these hosts"


def until(true: Any) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


class Hosts:
    """A first host and others; `lost` has what each has told of a loss, by rank."""

    def __init__(self, size: int, *, hellos: dict[int, dict[str, str]] | None = None) -> None:
        self.lost: dict[int, list[str]] = {rank: [] for rank in range(size)}
        self.others: dict[int, FollowingGroup] = {}
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]

        def come(rank: int) -> None:
            hello = (hellos or {}).get(rank, HELLO)
            self.others[rank] = find_first_host(
                "127.0.0.1", port, rank, size, hello, key=KEY, timeout_s=30, on_lost=self.lost[rank].append
            )

        threads = [threading.Thread(target=come, args=(rank,)) for rank in range(1, size)]
        for thread in threads:
            thread.start()
        try:
            self.first = gather_hosts(
                listener, size, HELLO, key=KEY, timeout_s=30, say=lambda text: None, on_lost=self.lost[0].append
            )
        finally:
            for thread in threads:
                thread.join(30)

    @property
    def all(self) -> list[LeadingGroup | FollowingGroup]:
        return [self.first, *(self.others[rank] for rank in sorted(self.others))]

    def each(self, act: Any) -> list[Any]:
        """What all come to, at the same time: results, or errors."""
        results: list[Any] = [None] * len(self.all)

        def run(index: int, group: Any) -> None:
            try:
                results[index] = act(group)
            except Exception as error:
                results[index] = error

        threads = [threading.Thread(target=run, args=pair) for pair in enumerate(self.all)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results

    def close(self) -> None:
        self.first.close()
        for other in self.others.values():
            other.leave()
            other._link.close()


@pytest.fixture
def made() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def hosts(made: ExitStack, size: int = 3, **options: Any) -> Hosts:
    found = Hosts(size, **options)
    made.callback(found.close)
    return found


def test_all_hosts_have_what_the_first_has_and_the_least_of_all(made: ExitStack) -> None:
    group = hosts(made)
    assert group.each(lambda host: host.share("a number", 7 + host.rank)) == [7, 7, 7]
    assert group.each(lambda host: least(host, "memory", 30 - host.rank)) == [28, 28, 28]


def test_a_host_that_differs_is_named_on_all(made: ExitStack) -> None:
    def act(host: Any) -> None:
        agree(host, "options", {"dtype": "float32" if host.rank == 2 else "bfloat16", "tp": "3"}, differences)

    for error in hosts(made).each(act):
        assert isinstance(error, ConfigError)
        assert "host 2: dtype is float32 there and bfloat16 on host 0" in str(error)


def test_hosts_that_agree_go_on(made: ExitStack) -> None:
    assert hosts(made).each(lambda host: agree(host, "options", {"tp": "3"}, differences)) == [None] * 3


def test_another_version_is_refused_before_a_word_is_understood() -> None:
    with pytest.raises(ConfigError, match="host 1 has jaxengine 2 where host 0 has 1"):
        Hosts(2, hellos={1: {"jaxengine": "2"}})


def test_who_does_not_come_is_named() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(ConfigError, match=r"hosts 1, 2 of 3 did not come within 0\.05 s"):
        gather_hosts(listener, 3, HELLO, key=KEY, timeout_s=0.05, say=lambda text: None, on_lost=lambda text: None)


def test_no_first_host_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConfigError, match=f"no first host answers at 127.0.0.1:{port}"):
        find_first_host("127.0.0.1", port, 1, 2, HELLO, key=KEY, timeout_s=0.05, on_lost=lambda text: None)


def test_another_key_is_refused() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def first() -> None:
        with pytest.raises(ConfigError, match="did not come"):
            gather_hosts(listener, 2, HELLO, key=KEY, timeout_s=1.0, say=lambda text: None, on_lost=lambda text: None)

    waiting = threading.Thread(target=first)
    waiting.start()
    address, port = listener.getsockname()
    with pytest.raises(ConfigError, match=f"has another {VARIABLE}"):
        find_first_host(address, port, 1, 2, HELLO, key=b"another", timeout_s=30, on_lost=lambda text: None)
    waiting.join(30)
    assert not waiting.is_alive()


def test_the_key_is_of_the_environment() -> None:
    assert group_key({VARIABLE: "ours"}) == b"ours"
    assert group_key({}) == group_key({"PATH": "/bin"}) != b""


def test_calls_come_in_order_with_what_they_are_given(made: ExitStack) -> None:
    group = hosts(made, 2)
    assert [group.first.tell("launch", (number,), {"word": "x"}) for number in range(3)] == [1, 2, 3]
    group.first.close()
    calls = list(group.others[1].calls())
    assert [(call.number, call.name, call.arguments, call.keywords) for call in calls] == [
        (number + 1, "launch", (number,), {"word": "x"}) for number in range(3)
    ]
    assert group.lost == {0: [], 1: []}


def test_a_host_that_is_gone_is_lost_at_once(made: ExitStack) -> None:
    group = hosts(made)
    group.others[2]._link.close()
    until(lambda: group.lost[0])
    assert "host 2 of 3 is lost: its process has ended" in group.lost[0][0]
    assert str(group.first.blame()) == group.lost[0][0]


def test_a_silent_host_is_lost(made: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "SILENCE_S", 0.2)
    group = hosts(made, 2)
    group.others[1].leave()  # its heart stands still
    time.sleep(1.0)
    assert not group.lost[0], "which may be while it starts"
    group.first.tell("prepare", (), {})
    until(lambda: group.lost[0])
    assert "host 1 of 2 is lost: it has given no sign of life" in group.lost[0][0]


def test_who_stood_still_has_heard_nobody(made: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was suspended, or processes that were stopped, go on together; who is silent afterwards is lost."""
    stopped, real = threading.Event(), turns

    def late(closed: threading.Event, every_s: float) -> Iterator[bool]:
        for _ in real(closed, every_s):
            yield stopped.is_set()

    for side in (leading, following):
        monkeypatch.setattr(side, "SILENCE_S", 0.2)
        monkeypatch.setattr(side, "turns", late)
    stopped.set()
    group = hosts(made, 2)
    group.first.tell("prepare", (), {})
    time.sleep(1.2)
    assert group.lost == {0: [], 1: []}
    stopped.clear()
    until(lambda: group.lost[0] and group.lost[1])


def test_the_others_end_with_the_first(made: ExitStack) -> None:
    group = hosts(made)
    for link in group.first._links.values():
        link.close()
    until(lambda: group.lost[1] and group.lost[2])
    assert "host 1 of 3 ends, as the first host is gone" in group.lost[1][0]


def test_a_call_that_fails_elsewhere_alone_is_the_end(made: ExitStack) -> None:
    group = hosts(made, 2)
    refused, kept = group.first.tell("write", (), {}), group.first.tell("launch", (), {})
    group.first.finish(refused, failed=True)
    group.others[1].report(refused, "UnfitWeightsError: as here")
    group.others[1].report(kept, "launch: RuntimeError: a fault")
    group.first.finish(kept, failed=False)
    until(lambda: group.lost[0])
    assert group.lost[0] == [
        "host 1 of 2 is lost: it could not do what this host has done: launch: RuntimeError: a fault"
    ]


def test_a_call_that_takes_longer_than_later_ones_may_fail_on_all(made: ExitStack) -> None:
    """An adapter is loaded beside steps."""
    group = hosts(made, 2)
    loading, launch = group.first.tell("load_adapter", ("nowhere",), {}), group.first.tell("launch", (), {})
    group.first.finish(launch, failed=False)
    group.others[1].report(loading, "CheckpointError: nowhere")
    until(lambda: group.first._reports)
    group.first.finish(loading, failed=True)
    assert group.lost[0] == []


def test_other_tokens_are_the_end(made: ExitStack) -> None:
    group = hosts(made, 3)
    for step in range(3):
        group.first.compare(step, 10)
        group.others[1].note(step, 10)
        group.others[2].note(step, 10 if step < 2 else 11)
    until(lambda: group.lost[0])
    assert group.lost[0] == ["host 2 of 3 is lost: step 2 came to other tokens there than on host 0"]
