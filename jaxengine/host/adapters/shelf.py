"""Adapters in the host's memory: read beside the steps, one after the other, and let go when others need the room."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from jaxengine.contract.runner import Runner
from jaxengine.errors import CheckpointError, JaxEngineError

logger = logging.getLogger(__name__)

POLL_S = 0.005
"""How long a loop that has nothing to compute waits for an adapter before it looks for messages."""


class Reading:
    """An adapter that is being read, or waits for it. Its `digest` or its `error` comes when it is `done`."""

    def __init__(self, shelf: AdapterShelf, path: str, expected: str | None) -> None:
        self.path = path
        self.expected = expected
        self.digest: str | None = None
        self.error: JaxEngineError | None = None
        self._shelf = shelf

    @property
    def ended(self) -> bool:
        """Whether it had ended when the shelf last looked."""
        return self.digest is not None or self.error is not None

    def done(self) -> bool:
        """Look whether it has ended."""
        self._shelf.settle()
        return self.ended

    def result(self) -> str:
        """The digest, waiting for it.

        Raises:
            JaxEngineError: it cannot be read, or is no adapter of this model.
        """
        while not self.done():
            self._shelf.wait(POLL_S)
        if self.error is not None:
            raise self.error
        assert self.digest is not None
        return self.digest


class AdapterShelf:
    """The adapters in the host's memory by digest, at most `most` but for one that has just been read.

    Not thread-safe but for what runs on its one thread: that reads, and nothing is let go while it does.

    Args:
        runner: keeps them.
        most: how many there may be.
        submit: runs a call elsewhere; a thread of its own by default.
    """

    def __init__(
        self,
        runner: Runner,
        most: int,
        *,
        submit: Callable[[Callable[[], str]], Future[str]] | None = None,
    ) -> None:
        self._runner = runner
        self._most = most
        self._submit = submit or _on_a_thread
        self._held: OrderedDict[str, None] = OrderedDict()
        self._waiting: deque[Reading] = deque()
        self._current: tuple[Reading, Future[str]] | None = None

    def __contains__(self, digest: str) -> bool:
        return digest in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_reading(self) -> bool:
        """Whether anything is being read."""
        return self._current is not None

    def read(self, path: str, *, expected: str | None = None) -> Reading:
        """Begin to read an adapter. Where another is expected under the path, it counts as gone."""
        reading = Reading(self, path, expected)
        self._waiting.append(reading)
        self._begin()
        return reading

    def settle(self) -> None:
        """Take in what was read, and go on with the next."""
        while self._current is not None and self._current[1].done():
            (reading, future), self._current = self._current, None
            try:
                digest = future.result()
            except JaxEngineError as error:
                reading.error = error
            except Exception:
                logger.exception("the adapter %s cannot be read", reading.path)
                reading.error = CheckpointError(f"the adapter {reading.path} cannot be read, and the log says why")
            else:
                self._keep(digest)
                reading.digest = digest
                if reading.expected not in (None, digest):
                    reading.digest = None
                    reading.error = CheckpointError(
                        f"the adapter {reading.path} is another one than when it was loaded; load it again under a name"
                    )
            self._begin()

    def wait(self, timeout_s: float) -> None:
        """Wait for what is being read, at most so long."""
        if self._current is not None:
            wait([self._current[1]], timeout_s)

    def touch(self, digest: str) -> None:
        """An adapter is used."""
        self._held.move_to_end(digest)

    def place(self, digest: str, slot: int) -> None:
        """Write an adapter to a slot of the device."""
        self._runner.place_adapter(digest, slot)

    def close(self) -> None:
        """Wait until nothing is being read, and read no more."""
        self._waiting.clear()
        if self._current is not None:
            wait([self._current[1]])

    def _begin(self) -> None:
        if self._current is None and self._waiting:
            reading = self._waiting.popleft()
            self._current = reading, self._submit(lambda: self._runner.load_adapter(reading.path))

    def _keep(self, digest: str) -> None:
        self._held[digest] = None
        self._held.move_to_end(digest)
        while len(self._held) > self._most:
            unused, _ = self._held.popitem(last=False)
            self._runner.drop_adapter(unused)


def _on_a_thread(function: Callable[[], str]) -> Future[str]:
    thread = ThreadPoolExecutor(1, "adapters")
    future = thread.submit(function)
    thread.shutdown(wait=False)
    return future
