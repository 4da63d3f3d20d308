"""The device's slots for adapters: which adapter lies where, and who may run with it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from enum import Enum

from jaxengine.contract.adapters import Adapter
from jaxengine.errors import JaxEngineError
from jaxengine.host.adapters.shelf import POLL_S, AdapterShelf, Reading


class Access(Enum):
    """Whether a sequence may run as far as its adapter goes: it lies in a slot, or none is free, or it is being read."""

    GRANTED = "granted"
    NOT_NOW = "not now"


class AdapterSlots:
    """Adapters in slots 1 to `count`, those unused for longest first, and how many sequences run with each.

    A slot is found for whoever asks first, so in each round the most urgent have to ask first. One whose adapter has no slot
    waits, and others overtake it whose adapters have one: a slot that is always in use would never be free. So whoever was
    overtaken too often closes one, that with the fewest users: no more come to it until it is free.

    Slots that are given to another adapter are written between two steps; the device runs them in order.

    Args:
        count: slots.
        shelf: adapters in the host's memory.
    """

    def __init__(self, count: int, shelf: AdapterShelf) -> None:
        self.count = count
        self.shelf = shelf
        self._gone: dict[str, JaxEngineError] = {}
        self._free = list(range(count, 0, -1))
        self._slot_of: OrderedDict[str, int] = OrderedDict()
        self._coming: dict[str, Reading] = {}
        self._users: Counter[str] = Counter()
        self._closed: set[str] = set()
        self._claimed: set[str] = set()
        self._to_place: list[tuple[str, int]] = []
        self._open: Counter[str] = Counter()
        self._running: Counter[str] = Counter()

    @property
    def running(self) -> tuple[str, ...]:
        """The names of adapters that sequences run with."""
        return tuple(sorted(self._running))

    @property
    def waiting(self) -> tuple[str, ...]:
        """The names of adapters that sequences wait to run with, and none does."""
        return tuple(sorted(self._open.keys() - self._running.keys()))

    @property
    def is_reading(self) -> bool:
        """Whether an adapter that has a slot is still being read."""
        return bool(self._coming)

    def wait(self) -> None:
        """Wait a moment for one."""
        self.shelf.wait(POLL_S)

    def enter(self, adapter: Adapter) -> None:
        """A sequence comes that is to run with this adapter."""
        self._open[adapter.name] += 1
        self._gone.pop(adapter.digest, None)  # its files may be there again

    def leave(self, adapter: Adapter) -> None:
        """It has ended."""
        _take_one(self._open, adapter.name)

    def begin_round(self) -> None:
        """Before sequences ask again: take in what has been read."""
        self._closed.clear()
        self._claimed.clear()
        self.shelf.settle()
        for digest, reading in list(self._coming.items()):
            if not reading.ended:
                continue
            del self._coming[digest]
            if reading.error is None and digest not in self.shelf:  # others that were read since have needed its place
                self._coming[digest] = self.shelf.read(reading.path, expected=digest)
            elif reading.error is None:
                self._to_place.append((digest, self._slot_of[digest]))
            else:
                self._gone[digest] = reading.error
                self._free.append(self._slot_of.pop(digest))

    def ask(self, adapter: Adapter, *, overtaken: bool) -> Access | JaxEngineError:
        """Whether a sequence may run with this adapter, or why it cannot be read.

        `overtaken` says that the sequence has waited long enough to close a slot.
        """
        digest = adapter.digest
        if digest in self._gone:
            return self._gone[digest]
        if digest in self._closed:
            return Access.NOT_NOW
        if digest not in self._slot_of and not self._find_slot(adapter):
            if overtaken and digest not in self._claimed:
                self._claimed.add(digest)
                self._close_one()
            return Access.NOT_NOW
        self._slot_of.move_to_end(digest)
        return Access.NOT_NOW if digest in self._coming else Access.GRANTED

    def take(self, adapter: Adapter) -> int:
        """The slot of an adapter with which a sequence runs from now on."""
        self._users[adapter.digest] += 1
        self._running[adapter.name] += 1
        return self._slot_of[adapter.digest]

    def give_back(self, adapter: Adapter) -> None:
        """A sequence does not run any more."""
        _take_one(self._users, adapter.digest)
        _take_one(self._running, adapter.name)

    def place(self) -> None:
        """Have the device's slots written, before the next step is launched."""
        for digest, slot in self._to_place:
            self.shelf.place(digest, slot)
        self._to_place.clear()

    def forget(self) -> None:
        """The device's memory is given back, and nothing runs."""
        assert not self._users
        self._free = list(range(self.count, 0, -1))
        self._slot_of.clear()
        self._coming.clear()
        self._to_place.clear()

    def check(self) -> None:
        """Prove that every slot is accounted for.

        Raises:
            AssertionError: it is not.
        """
        slots = sorted((*self._free, *self._slot_of.values()))
        assert slots == list(range(1, self.count + 1)), f"adapter slots {slots} of {self.count}"
        assert self._users.keys() <= self._slot_of.keys(), "a sequence runs with an adapter that has no slot"
        assert self._users.total() == self._running.total()

    def _find_slot(self, adapter: Adapter) -> bool:
        """Give an adapter a slot, of one that nobody runs with where none is free; False if there is none."""
        digest = adapter.digest
        if not self._free:
            unused = next(
                (each for each in self._slot_of if each not in self._users and each not in self._coming), None
            )
            if unused is None:
                return False
            self._free.append(self._slot_of.pop(unused))
            self._to_place = [placed for placed in self._to_place if placed[0] != unused]
        slot = self._slot_of[digest] = self._free.pop()
        if digest in self.shelf:
            self.shelf.touch(digest)
            self._to_place.append((digest, slot))
        else:
            self._coming[digest] = self.shelf.read(adapter.path, expected=digest)
        return True

    def _close_one(self) -> None:
        """Let no more come to the adapter with the fewest users, of those that are open."""
        resident = [digest for digest in self._users if digest not in self._closed]
        if resident:
            self._closed.add(min(resident, key=lambda digest: self._users[digest]))


def _take_one(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
