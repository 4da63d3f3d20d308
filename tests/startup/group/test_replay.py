"""What the first host does to its runner, another does to its own: the same engine's steps, over a real link."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from jaxengine.contract.runner import Checkpoint, UnfitWeightsError, Weights
from jaxengine.startup.group.leading_runner import LeadingRunner
from jaxengine.startup.group.replay import replay
from tests.fakes import FakeRunner, FakeTiers
from tests.harness import Rig, make_request
from tests.startup.group.test_group import Hosts, until

READ = Weights({"salt": (1, 2)}, of=Checkpoint("there"))


class Pair:
    """The engine of a test's harness, whose steps another host's runner repeats."""

    def __init__(self, made: ExitStack, **options: Any) -> None:
        self.rig = Rig(**options)
        own = self.rig.runner
        self.other = FakeRunner(own.num_pages, own.page_size, own.vocab_size, files=own.files, tiers=FakeTiers())
        self.hosts = Hosts(2)
        made.callback(self.hosts.close)
        self.leading = LeadingRunner(own, self.hosts.first)
        self.rig.runner = self.leading  # type: ignore[assignment]
        group = self.hosts.others[1]
        self.thread = threading.Thread(
            target=lambda: replay(self.other, group.calls(), group, read=lambda checkpoint: READ)
        )
        self.thread.start()

    def end(self) -> None:
        self.hosts.first.close()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def made() -> Any:
    with ExitStack() as stack:
        yield stack


def test_another_host_has_the_same_pages_in_the_end(made: ExitStack) -> None:
    pair = Pair(made)
    for number in range(4):
        pair.rig.add(make_request(f"{number}", range(1, 9 + number), max_tokens=12))
    pair.rig.run()
    pair.end()
    own = pair.leading._own
    assert isinstance(own, FakeRunner)
    assert pair.other.steps == own.steps > 10
    np.testing.assert_array_equal(pair.other.tokens, own.tokens)
    np.testing.assert_array_equal(pair.other.states, own.states)
    assert pair.hosts.lost == {0: [], 1: []}


def test_weights_of_a_checkpoint_are_read_by_each_host_and_arrays_are_sent(made: ExitStack) -> None:
    pair = Pair(made)
    pair.leading.write(Weights({"salt": (1, 2), "a file": open}, of=Checkpoint("there")))
    pair.leading.write(Weights({"salt": (3,)}))
    pair.end()
    assert pair.other.written == [READ, Weights({"salt": (3,)})]


def test_what_cannot_be_sent_is_refused_here(made: ExitStack) -> None:
    pair = Pair(made)
    with pytest.raises(UnfitWeightsError, match="arrays of NumPy, or a directory"):
        pair.leading.write(Weights({"salt": threading.Lock()}))
    pair.end()
    assert not pair.other.written


def test_a_step_that_fails_on_the_other_host_is_told(made: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(made)
    pair.other.restore_state = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    pair.leading.release()
    pair.leading.restore_weights()
    pair.leading.restore_state()
    until(lambda: pair.hosts.lost[0])
    assert "restore_state: ZeroDivisionError" in pair.hosts.lost[0][0]
    pair.end()


def test_an_adapter_is_read_beside_steps_and_waited_for_where_it_is_used(made: ExitStack) -> None:
    pair, may_end = Pair(made), threading.Event()
    load = pair.other.load_adapter

    def load_late(path: str) -> str:
        may_end.wait(30)
        return load(path)

    pair.other.load_adapter = load_late  # type: ignore[method-assign]
    digests = [pair.leading.load_adapter(path) for path in ("adapter1", "adapter2")]
    pair.rig.add(make_request("a", range(1, 9), max_tokens=4))
    pair.rig.run()
    until(lambda: pair.other.steps >= 3)
    assert not pair.other.on_host
    for slot, digest in enumerate(digests, start=1):
        pair.leading.place_adapter(digest, slot)
    pair.leading.drop_adapter(digests[0])
    may_end.set()
    pair.end()
    assert pair.other.in_slots == dict(enumerate(digests, start=1))
    assert pair.other.on_host == {digests[1]}
    assert pair.hosts.lost == {0: [], 1: []}


def test_an_adapter_that_the_other_host_cannot_read_is_told(made: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(made)
    pair.other.load_adapter = lambda path: str(1 / 0)  # type: ignore[method-assign, assignment]
    pair.leading._own.load_adapter = lambda path: "read"  # type: ignore[method-assign, assignment]
    pair.leading.load_adapter("one")
    until(lambda: pair.hosts.lost[0])
    assert "load_adapter: ZeroDivisionError" in pair.hosts.lost[0][0]
    pair.end()
