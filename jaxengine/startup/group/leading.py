"""The first host's side of a group: it waits for the others, tells them what to do, and watches that they do it."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from queue import SimpleQueue
from typing import Any

from jaxengine.errors import ConfigError, EngineDeadError
from jaxengine.startup.group.group import Values
from jaxengine.startup.group.link import GREETING_S, Link, welcome
from jaxengine.startup.group.turns import turns

logger = logging.getLogger("jaxengine")

BEAT_S = 0.5
"""How often a host gives a sign of life."""

SILENCE_S = 8.0
"""A host that gives none for so long is lost."""

START_SILENCE_S = 60.0
"""The same while an engine starts: loading libraries and tracing programs may leave a host no other moment."""

BLAME_S = 3.0
"""How long after a failed step a lost host may take to be found: collectives notice as early as the watch does."""

STEPS_COMPARED = 256
"""Of so many of the latest steps results are kept until all hosts have told theirs."""


class LeadingGroup:
    """The links to the other hosts, by rank.

    Calls are numbered. A host tells how far it has come with every sign of life, what it made of steps, and failures at once. One
    that is gone, silent, or whose calls end otherwise than here is lost, and with it the group: `on_lost` is given one line that
    says which host and why, on a thread of the group.
    """

    rank = 0

    def __init__(self, links: Mapping[int, Link], names: Mapping[int, str], on_lost: Callable[[str], None]) -> None:
        self.size = 1 + len(links)
        self.lost: str | None = None
        self._links, self._names, self._on_lost = links, names, on_lost
        self._values: Mapping[int, SimpleQueue[Any]] = {rank: SimpleQueue() for rank in links}
        self._heard = dict.fromkeys(links, time.monotonic())
        self._state = threading.Lock()
        self._telling = threading.Lock()
        self._told = 0
        self._failed: set[int] = set()
        self._open: set[int] = set()
        self._reports: deque[tuple[int, int, str]] = deque()
        self._results: dict[int, tuple[int, int, int]] = {}
        self._closed = threading.Event()
        for rank in links:
            threading.Thread(target=self._read, args=(rank,), name=f"from host {rank}", daemon=True).start()
        threading.Thread(target=self._watch, name="watch over hosts", daemon=True).start()

    def gather(self, what: str, value: Any) -> Values:
        """As in `Group`.

        Raises:
            EngineDeadError: a host is lost.
        """
        values = {0: value}
        for rank, queue in self._values.items():
            told = queue.get()
            if told is None:
                raise EngineDeadError(self.lost or "the group of hosts is closed")
            assert told[0] == what, f"host {rank} tells {told[0]!r} where {what!r} is asked for"
            values[rank] = told[1]
        return values

    def share(self, what: str, value: Any) -> Any:
        """As in `Group`."""
        self._send(("value", what, value))
        return value

    def tell(self, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> int:
        """Have the others call a method of their runners; the number of the call. Whoever tells finishes it here."""
        with self._telling:
            self._told += 1
            with self._state:
                self._open.add(self._told)
            self._send(("call", self._told, name, arguments, keywords))
            return self._told

    def finish(self, number: int, *, failed: bool) -> None:
        """A call has ended here too."""
        with self._state:
            self._open.discard(number)
            if failed:
                self._failed.add(number)
        self._judge()

    def compare(self, step: int, result: int, rank: int = 0) -> None:
        """What a step came to on one of the hosts: a number that is the same where tokens are."""
        with self._state:
            first, by, count = self._results.pop(step, (result, rank, 0))
            if count + 1 < self.size:
                self._results[step] = first, by, count + 1
            for old in [known for known in self._results if known < step - STEPS_COMPARED]:
                del self._results[old]
        if first != result:
            self._lose(rank or by, f"step {step} came to other tokens there than on host {by if rank else rank}")

    def blame(self) -> EngineDeadError | None:
        """Why a step failed, if it is that a host is lost, which may take a moment to be found."""
        end = time.monotonic() + BLAME_S
        while self.lost is None and time.monotonic() < end:
            time.sleep(0.02)
        return None if self.lost is None else EngineDeadError(self.lost)

    def leave(self) -> None:
        """Let the others go on without this host's watch: they are about to end by themselves."""
        self._closed.set()

    def close(self) -> None:
        """Let the others end, who then close the links. Closing twice is fine."""
        if not self._closed.is_set():
            self._closed.set()
            self._send(("close",))

    def _send(self, message: tuple[Any, ...]) -> None:
        data = pickle.dumps(message, 5)
        for link in self._links.values():
            with suppress(OSError):  # whoever reads from it tells the end
                link.send(data)

    def _read(self, rank: int) -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, *rest = json.loads(self._links[rank].receive())
                self._heard[rank] = time.monotonic()
                if kind == "value":
                    self._values[rank].put(rest)
                elif kind == "beat":
                    for step, result in rest[0]:
                        self.compare(step, result, rank)
                elif kind == "end":
                    with self._state:
                        self._reports.append((rank, rest[0], rest[1]))
                    self._judge()
        self._links[rank].close()
        self._lose(rank, "its process has ended, or the network between us")
        self._values[rank].put(None)

    def _judge(self) -> None:
        """Failures of calls that failed here too are no news; others are the end."""
        with self._state:
            due = [report for report in self._reports if report[1] not in self._open]
            self._reports = deque(report for report in self._reports if report[1] in self._open)
            told = [(rank, error) for rank, number, error in due if number not in self._failed]
        for rank, error in told:
            self._lose(rank, f"it could not do what this host has done: {error}")

    def _watch(self) -> None:
        for stood_still in turns(self._closed, BEAT_S):
            self._send(("beat",))
            now = time.monotonic()
            if stood_still:
                self._heard = dict.fromkeys(self._heard, now)
            most = SILENCE_S if self._told else START_SILENCE_S
            for rank, heard in self._heard.items():
                if now - heard > most:
                    self._lose(rank, f"it has given no sign of life for {now - heard:.0f} s")

    def _lose(self, rank: int, why: str) -> None:
        with self._state:
            if self.lost is not None or self._closed.is_set():
                return
            self.lost = f"host {rank} of {self.size} is lost: {why}"
        logger.error("host %d of %d (%s) is lost: %s", rank, self.size, self._names[rank], why)
        self._on_lost(self.lost)


def gather_hosts(
    listener: socket.socket,
    size: int,
    hello: Mapping[str, Any],
    *,
    key: bytes,
    timeout_s: float,
    say: Callable[[str], None],
    on_lost: Callable[[str], None],
) -> LeadingGroup:
    """Wait until all others have come to the listener, which is closed then.

    Args:
        listener: the port that they know.
        size: how many hosts there are, this one included.
        hello: what has to be the same everywhere before a word is understood: versions.
        key: what the others have to know.
        timeout_s: how long to wait.
        say: is told what is waited for.
        on_lost: as of `LeadingGroup`.

    Raises:
        ConfigError: not all have come in time, or one says another hello.
    """
    links: dict[int, Link] = {}
    names: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s
    with listener:
        while missing := [rank for rank in range(1, size) if rank not in links]:
            say(f"waits for {_listed(missing)} of {size} at port {listener.getsockname()[1]}")
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connected, (name, *_) = listener.accept()
            except TimeoutError:
                raise ConfigError(
                    f"{_listed(missing)} of {size} did not come within {timeout_s:g} s (distributed_timeout_seconds): on each "
                    "of them run the same command with its --node-rank and --headless"
                ) from None
            with suppress(AuthenticationError, EOFError, OSError, ValueError):
                link = welcome(connected, key)
                rank, theirs = _introduced(link)
                if (problem := _unfit(rank, theirs, size, hello)) is not None:
                    for each in (*links.values(), link):
                        each.send(pickle.dumps(("refused", problem), 5))
                        each.close_after_other(GREETING_S)
                    raise ConfigError(problem)
                if rank in links:
                    links[rank].close()  # it started again while this host waited for others
                links[rank], names[rank] = link, name
    return LeadingGroup(links, names, on_lost)


def _introduced(link: Link) -> tuple[int, Mapping[str, Any]]:
    kind, rank, theirs = json.loads(link.receive())
    if kind != "hello" or not isinstance(rank, int) or not isinstance(theirs, dict):
        raise ValueError("no host of a group begins so")
    return rank, theirs


def _unfit(rank: int, theirs: Mapping[str, Any], size: int, hello: Mapping[str, Any]) -> str | None:
    if not 0 < rank < size:
        return f"a host came as node_rank={rank}; the hosts that follow are 1 to {size - 1} of nnodes={size}"
    wrong = [
        f"{name} {theirs.get(name)} where host 0 has {mine}" for name, mine in hello.items() if theirs.get(name) != mine
    ]
    return f"host {rank} has {', '.join(wrong)}" if wrong else None


def _listed(ranks: list[int]) -> str:
    return f"host{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
