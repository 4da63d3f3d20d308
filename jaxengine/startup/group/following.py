"""Another host's side of a group: it finds the first one, and hands on what that tells."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from queue import SimpleQueue
from typing import Any, NamedTuple

from jaxengine.errors import ConfigError
from jaxengine.options.group_key import VARIABLE
from jaxengine.startup.group.group import Values
from jaxengine.startup.group.leading import BEAT_S
from jaxengine.startup.group.link import Link, reach
from jaxengine.startup.group.turns import turns

logger = logging.getLogger("jaxengine")

RETRY_S = 0.2
SILENCE_S = 30.0
"""A first host that says nothing for so long is gone, though nobody has closed the connection."""


class RunnerCall(NamedTuple):
    """What the first host does to its runner: a method by name (`tiers.begin` is one of the runner's tiers)."""

    number: int
    name: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


class FollowingGroup:
    """The link to the first host. `on_lost` is called on a thread of the group when that one is gone without having said so."""

    def __init__(self, link: Link, rank: int, size: int, on_lost: Callable[[str], None]) -> None:
        self.rank, self.size = rank, size
        self._link, self._on_lost = link, on_lost
        self._arrived: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._heard = time.monotonic()
        self._results: deque[tuple[int, int]] = deque()
        self._closed = threading.Event()
        threading.Thread(target=self._read, name="from the first host", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat of a host", daemon=True).start()

    def gather(self, what: str, value: Any) -> Values:
        """As in `Group`."""
        self._send("value", what, value)
        return {}

    def share(self, what: str, value: Any) -> Any:
        """As in `Group`."""
        _, name, theirs = self._next("value")
        assert name == what, f"the first host tells {name!r} where {what!r} is due"
        return theirs

    def calls(self) -> Iterator[RunnerCall]:
        """What to do, until the first host has had enough."""
        while (message := self._arrived.get())[0] != "close":
            yield RunnerCall(*message[1:])

    def report(self, number: int, error: str) -> None:
        """A call has failed here."""
        self._send("end", number, error)

    def note(self, step: int, result: int) -> None:
        """What a step came to, as `LeadingGroup.compare` has it."""
        self._results.append((step, result))

    def leave(self) -> None:
        """From now on it is all the same whether the first host is there."""
        self._closed.set()

    def _next(self, kind: str) -> tuple[Any, ...]:
        message = self._arrived.get()
        if message[0] == "refused":
            raise ConfigError(f"the first host refuses to start: {message[1]}")
        if message[0] == "close":
            raise ConfigError("the first host has given up the start, and its log says why")
        assert message[0] == kind, f"the first host sends {message[0]!r} where {kind!r} is due"
        return message

    def _send(self, *message: Any) -> None:
        with suppress(OSError):  # whoever reads tells the end
            self._link.send(json.dumps(message).encode())

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            message: tuple[Any, ...] = ("beat",)
            while message[0] not in ("close", "refused"):
                message = pickle.loads(self._link.receive())
                self._heard = time.monotonic()
                if message[0] in ("close", "refused"):
                    self._closed.set()
                if message[0] != "beat":
                    self._arrived.put(message)
        self._link.close()
        self._lose("its process has ended, or the network between us")

    def _beat(self) -> None:
        for stood_still in turns(self._closed, BEAT_S):
            if stood_still:
                self._heard = time.monotonic()
            results = [self._results.popleft() for _ in range(len(self._results))]
            self._send("beat", results)
            if (silent := time.monotonic() - self._heard) > SILENCE_S:
                self._lose(f"it has given no sign of life for {silent:.0f} s")

    def _lose(self, why: str) -> None:
        if not self._closed.is_set():
            self._closed.set()
            line = f"host {self.rank} of {self.size} ends, as the first host is gone: {why}"
            logger.error("%s", line)
            self._on_lost(line)


def find_first_host(
    address: str,
    port: int,
    rank: int,
    size: int,
    hello: Mapping[str, Any],
    *,
    key: bytes,
    timeout_s: float,
    on_lost: Callable[[str], None],
) -> FollowingGroup:
    """Connect to the first host, which may not be there yet.

    Raises:
        ConfigError: it does not come in time, or has another key.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            link = reach(address, port, key)
            break
        except AuthenticationError:
            raise ConfigError(f"the first host, {address}:{port}, has another {VARIABLE}") from None
        except (EOFError, OSError) as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"no first host answers at {address}:{port} (master_addr, master_port) within {timeout_s:g} s "
                    f"(distributed_timeout_seconds): {error}"
                ) from None
            time.sleep(RETRY_S)
    link.send(json.dumps(["hello", rank, dict(hello)]).encode())
    return FollowingGroup(link, rank, size, on_lost)
