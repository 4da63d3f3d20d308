"""One engine under supervision: the one that runs, and after its death the next one in its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from jaxengine.contract.channel import Channel
from jaxengine.contract.messages import Abort, Add, Cause, Event, Pause, Question, Reply, Update
from jaxengine.contract.metrics import NOTHING_YET, EngineCondition, EngineStatistics
from jaxengine.contract.updates import FIRST_VERSION
from jaxengine.front.book import Entry
from jaxengine.front.restarts import Restarts
from jaxengine.front.watch import Watch


class State(Enum):
    """Where the engine of a ward is: requests go to one that is READY."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting to be started again"
    DRAINING = "drained"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Asked:
    """What was sent to an engine, and who is told the reply."""

    question: Question
    answer: Callable[[Reply], None]


@dataclass(slots=True, eq=False)
class Ward:
    """The engine of one place, what it was given, and what became of those before it.

    `lives` counts the engines there were: events of another than the last are of one that is dead. `entries` are the requests it
    was sent and has not ended: of these it has not accepted the `unanswered`, and has run those that `began`. With a `trial`
    that one is all it gets, unless it is paused. The next engine has to be brought to where it is: with the weights of
    `updates`, arrays among them included, `paused`, asleep at the level `sleep` but for what was `woken`. `condemned`: it was
    killed, for this cause.
    """

    index: int
    restarts: Restarts
    engine: Channel | None = None
    state: State = State.STARTING
    lives: int = 0
    watch: Watch = field(default_factory=lambda: Watch(0.0, silence_s=0.0))
    deaths: Counter[str] = field(default_factory=Counter)
    entries: dict[str, Entry] = field(default_factory=dict)
    unanswered: dict[str, int] = field(default_factory=dict)
    began: set[str] = field(default_factory=set)
    asked: dict[int, Asked] = field(default_factory=dict)
    unsent: list[Asked] = field(default_factory=list)
    trial: Entry | None = None
    updates: list[Update] = field(default_factory=list)
    paused: bool = False
    sleep: int | None = None
    woken: frozenset[str] = frozenset()
    condemned: Cause | None = None
    statistics: EngineStatistics = NOTHING_YET
    num_resumed: int = 0
    num_poisoned: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether it works, as far as is known."""
        return self.state is State.READY

    @property
    def takes_requests(self) -> bool:
        """Whether requests may be sent: one that was killed may end late, and then it is not of what it was given since."""
        return self.is_ready and self.condemned is None

    @property
    def asleep(self) -> bool:
        """Whether it gave its memory back, and refuses requests."""
        return bool(self.sleep)

    @property
    def condition(self) -> EngineCondition:
        """What is told of it."""
        return EngineCondition(
            ready=self.is_ready,
            draining=self.state is State.DRAINING,
            num_requests=len(self.entries),
            num_restarts=self.restarts.count,
            deaths=dict(self.deaths),
            num_resumed=self.num_resumed,
            num_poisoned=self.num_poisoned,
        )

    @property
    def load(self) -> int:
        """Tokens of the prompts and outputs that it works on, and some of those to come."""
        return sum(entry.load for entry in self.entries.values())

    @property
    def running(self) -> list[Entry]:
        """The requests that it may die of: those that it has run, and those that it has not accepted, as far as it told."""
        return [entry for name, entry in self.entries.items() if name in self.began or name in self.unanswered]

    @property
    def tries(self) -> bool:
        """Whether it is kept for a trial: for one that is paused it is not."""
        return self.trial is not None and not self.trial.paused

    def begin(self, engine: Channel, emit: Callable[[Ward, int, Event], None], watch: Watch) -> None:
        """An engine starts here. `emit` is given the number of its life with every event, on whatever thread."""
        self.lives += 1
        life = self.lives
        self.engine, self.watch, self.state, self.condemned = engine, watch, State.STARTING, None
        engine.open(lambda event: emit(self, life, event))

    def ask(self, question: Question, answer: Callable[[Reply], None]) -> None:
        """Send a question."""
        assert self.engine is not None
        self.asked[question.number] = Asked(question, answer)
        self.engine.send(question)

    def add(self, number: int, entries: Sequence[Entry], answer: Callable[[Reply], None], now: float) -> None:
        """Send requests, with what came of them so far."""
        if any(entry is not self.trial for entry in entries):
            self.trial = None  # one that is paused has company from here on
        for entry in entries:
            self.entries[entry.request_id] = entry
            self.unanswered[entry.request_id] = number
        self.watch.owe(now)
        self.ask(Add(number, tuple(entry.resumed() for entry in entries)), answer)
        for entry in entries:
            if entry.paused:
                self.pause(entry)

    def accept(self, entry: Entry, number: int) -> bool:
        """The engine has answered the `Add` of this number; False when the request is not here any more, or was sent again.

        Until the answer to the last `Add` of an id, what comes under that id is of one before.
        """
        if self.entries.get(entry.request_id) is not entry or self.unanswered.get(entry.request_id) != number:
            return False
        del self.unanswered[entry.request_id]
        return True

    def drop(self, entry: Entry) -> bool:
        """The request is not here any more; False when it was not here."""
        if self.entries.get(entry.request_id) is not entry:
            return False
        del self.entries[entry.request_id]
        self.began.discard(entry.request_id)
        self.unanswered.pop(entry.request_id, None)
        if entry is self.trial:
            self.trial = None
        return True

    def abort(self, entry: Entry, *, elsewhere: bool = False) -> None:
        """End a request that is here; `elsewhere` it may go on."""
        if self.drop(entry) and self.engine is not None:
            self.engine.send(Abort((entry.request_id,), elsewhere=elsewhere))

    def pause(self, entry: Entry) -> None:
        """Let a request that is here rest or go on, as its entry says."""
        if self.entries.get(entry.request_id) is not entry or self.engine is None:
            return
        self.engine.send(Pause((entry.request_id,), entry.paused))

    def stop(self, entry: Entry, index: int) -> None:
        """End one sequence of a request that is here."""
        if self.entries.get(entry.request_id) is entry and self.engine is not None:
            self.engine.send(Abort(stopped=((entry.request_id, index),)))

    def end(self, state: State) -> list[Asked]:
        """The engine is no more, and neither are its counts and requests here. What else it has not answered no other will."""
        self.lives += 1  # whatever it still tells is not heard
        self.state, self.engine, self.trial = state, None, None
        asked = [each for each in self.asked.values() if not isinstance(each.question, Add)]
        if state is State.GONE:
            asked, self.unsent = [*asked, *self.unsent], []
        for here in (self.entries, self.asked, self.unanswered, self.began):
            here.clear()
        self.statistics = self.standing(NOTHING_YET)
        return asked

    def standing(self, counted: EngineStatistics) -> EngineStatistics:
        """What is told while there is no engine here: what was `counted`, and how the next one will stand."""
        return EngineStatistics(
            scheduler=counted.scheduler,
            asleep=self.sleep is not None,
            sleep_level=self.sleep or 0,
            paused=self.paused,
            weight_version=self.updates[-1].version if self.updates else FIRST_VERSION,
        )
