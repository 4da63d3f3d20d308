"""Keeps engines running: starts them again when they die, so that the client never hears of it.

    AsyncClient  -- messages -->  Supervisor     a ward for each engine: Watch, Restarts
                 <-- events ---     Dispatcher   which engine runs which request; Book, Suspects
                                      |  ^
                                      v  |
                                    engines

To the client it is a channel to one engine that does not die. When one does, its requests are added to another, or to the next
in its place, with what was delivered of them as their history, and their streams go on. What an engine tells after its death is
not heard, and what was delivered is not delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from jaxengine.contract.channel import Channel
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import (
    Abort,
    Add,
    Alive,
    Began,
    Cause,
    Close,
    Done,
    EngineDead,
    EngineReady,
    Event,
    Message,
    Pause,
    PauseGeneration,
    Refused,
    Reply,
    Reset,
    Restart,
    Sleep,
    StepOutputs,
    Update,
)
from jaxengine.contract.metrics import Condition
from jaxengine.errors import EngineDeadError
from jaxengine.front.client_events import ClientEvents
from jaxengine.front.dispatcher import Chooser, Dispatcher, least_loaded
from jaxengine.front.mailbox import Mailbox
from jaxengine.front.questions import Questions, answer_of_the_dead, to_bring_up
from jaxengine.front.renewals import Renewals
from jaxengine.front.restarts import Restarts, Supervision
from jaxengine.front.ward import State, Ward
from jaxengine.front.watch import Watch

logger = logging.getLogger("jaxengine")

LOOK_S = 0.25
"""How often the engines are looked at."""

LATE_S = 1.0
"""An event loop that comes to look so late has not heard the engines either, and does not count that time."""

LAST_SIGN_S = 2.0
"""How long a killed engine may take to tell its end; after that it is left behind."""

Launcher = Callable[[int], Channel]
"""Starts an engine for a place, by the place's number. Returns at once."""


class Supervisor:
    """A channel to engines that are replaced when they die. It belongs to the event loop that opens it.

    Args:
        engines: those to begin with, which may have been started already.
        launch: starts another for a place whose engine died; None where that cannot be done.
        options: what is done when one dies.
        choose: picks an engine for a request.
        forget: is told the number of an engine that died: nothing is cached there.
    """

    def __init__(
        self,
        engines: Sequence[Channel],
        launch: Launcher | None = None,
        *,
        options: Supervision | None = None,
        choose: Chooser = least_loaded,
        forget: Callable[[int], None] = lambda engine: None,
    ) -> None:
        self._options = options or Supervision()
        self._launch = launch
        self._forget = forget
        self._numbers = count()
        most = 0 if launch is None else self._options.max_restarts
        self._wards = [Ward(index, Restarts(most), engine) for index, engine in enumerate(engines)]
        self._client = ClientEvents(self._wards)
        tell = self._client.tell
        self._dispatcher = Dispatcher(
            self._wards, self._numbers, tell, choose=choose, clock=self._now, resume=self._options.resume
        )
        self._renewals = Renewals(self._wards, self._dispatcher, tell, clock=self._now, possible=launch is not None)
        self._questions = Questions(self._wards, self._numbers, tell)
        self._dead: list[Channel] = []
        self._mailbox: Mailbox[tuple[Ward, int, Event]] | None = None
        self._first = engines[0]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._looked = 0.0
        self._trouble = "the engine starts"
        self._closing = False

    @property
    def facts(self) -> EngineFacts:
        """What is true of the engines, which are alike."""
        return self._first.facts

    @property
    def condition(self) -> Condition:
        """How the engines are."""
        return Condition(
            trouble=None if any(ward.is_ready for ward in self._wards) else self._trouble,
            engines=tuple(ward.condition for ward in self._wards),
        )

    @property
    def is_alive(self) -> bool:
        """From `open` until no engine runs, nor will."""
        if self._closing:
            return any(engine.is_alive for engine in self._engines())
        return self._loop is not None and not self._client.ended

    def open(self, emit: Callable[[Event], None]) -> None:
        """Begin, on behalf of the running event loop, on which `emit` is called."""
        self._loop = asyncio.get_running_loop()
        self._client.open(emit)
        self._mailbox = Mailbox(self._loop, self._take_all)
        for ward in self._wards:
            assert ward.engine is not None
            self._begin(ward, ward.engine)
        self._looked = self._now()
        self._later(LOOK_S, self._look)

    def send(self, message: Message) -> None:
        """Pass a message on, in order, to the engines that it is for."""
        if self._client.ended:
            return
        match message:
            case Add():
                self._dispatcher.add(message)
            case Abort():
                self._dispatcher.abort(message)
            case Pause():
                self._dispatcher.pause(message)
            case Close():
                self._stop()
                for engine in self._engines():
                    engine.send(message)
                self._end_if_all_are_gone(EngineDeadError("the engine was closed"))
            case Restart():
                self._trouble = "the engine is restarted; requests wait for it"
                self._renewals.begin(message)
            case _:
                if isinstance(message, Reset | PauseGeneration | Sleep | Update):
                    for ward in self._wards:
                        self._forget(ward.index)
                self._questions.ask(message)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the engines, at most so long for each."""
        for engine in self._engines():
            engine.join(timeout_s)

    def kill(self) -> None:
        """End the engines now, and start none again."""
        self._stop()
        for engine in self._engines():
            engine.kill()

    def close(self) -> None:
        """Give up what is left of the engines. Closing twice is fine."""
        self._stop()
        for engine in (*self._engines(), *self._dead):
            engine.close()

    def _engines(self) -> Iterable[Channel]:
        return [ward.engine for ward in self._wards if ward.engine is not None]

    def _stop(self) -> None:
        """Start nothing again."""
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    # Events of the engines.

    def _arrive(self, ward: Ward, life: int, event: Event) -> None:
        """Take over an event, on whatever thread."""
        assert self._mailbox is not None
        self._mailbox.put((ward, life, event))

    def _take_all(self) -> None:
        assert self._mailbox is not None
        for ward, life, event in self._mailbox.take_all():
            if life == ward.lives and not self._client.ended:
                self._take(ward, event)

    def _take(self, ward: Ward, event: Event) -> None:
        ward.watch.hear(event, self._now())
        match event:
            case StepOutputs():
                self._take_outputs(ward, event)
            case Began(request_ids):
                ward.began.update(ward.entries.keys() & request_ids)
            case Alive():
                pass
            case EngineReady(facts):
                self._bring_up(ward, facts)
            case EngineDead():
                self._lose(ward, event)
            case _:
                self._client.progress(event)

    def _take_outputs(self, ward: Ward, outputs: StepOutputs) -> None:
        ward.statistics = outputs.statistics
        for reply in outputs.replies:
            if (asked := ward.asked.pop(reply.number, None)) is not None:
                asked.answer(reply)
        if outputs.replies:
            self._dispatcher.place()  # it may be awake again
        self._client.pass_on(ward, outputs, self._dispatcher.take(ward, outputs.updates))

    # The lives of engines.

    def _begin(self, ward: Ward, engine: Channel) -> None:
        ward.begin(engine, self._arrive, Watch(self._now(), silence_s=self._options.silence_s))

    def _bring_up(self, ward: Ward, facts: EngineFacts) -> None:
        """An engine is ready: bring it to where the one before it was, then let it have requests."""
        limit = self._options.step_timeout_s
        ward.watch.begin_steps(facts.step_timeout_s if limit is None else limit)
        left = to_bring_up(ward, self._numbers)
        life = ward.lives

        def go_on(reply: Reply) -> None:
            if ward.lives != life:
                return
            if isinstance(reply, Refused):
                logger.error("a restarted engine cannot be brought to where it was: %s", reply.error)
                self._condemn(ward, "start")
            elif left:
                ward.ask(left.pop(0), go_on)
            else:
                self._open(ward, facts)

        go_on(Done(-1))

    def _open(self, ward: Ward, facts: EngineFacts) -> None:
        ward.state = State.READY
        self._client.ready(facts)
        self._renewals.started(ward)
        unsent, ward.unsent = ward.unsent, []
        for asked in unsent:
            ward.ask(asked.question, asked.answer)
        self._dispatcher.place()

    def _condemn(self, ward: Ward, cause: Cause) -> None:
        """An engine is not to live on. It tells its end itself, or it is left behind."""
        if ward.condemned is not None or ward.engine is None:
            return
        ward.condemned = cause
        ward.engine.kill()
        life = ward.lives

        def give_up() -> None:
            if ward.lives == life:
                self._lose(ward, EngineDead(EngineDeadError("the engine does not end and is left behind")))

        self._later(LAST_SIGN_S, give_up)

    def _lose(self, ward: Ward, dead: EngineDead) -> None:
        """An engine is no more: start another, and let its requests go on."""
        if ward.engine is not None:
            self._dead.append(ward.engine)
        if self._closing or not self._client.was_ready:
            ward.end(State.GONE)
            if not self._closing:
                self._stop()
                for other in self._engines():
                    other.kill()
                self._emit_last(dead)
            self._end_if_all_are_gone(dead.error)
            return
        cause = ward.condemned or dead.cause
        if self._renewals.is_closing(ward):
            wait: float | None = 0.0
            logger.info("engine %d is empty and starts again", ward.index)
        elif dead.elsewhere:
            wait = 0.0
            logger.info("engine %d has ended and starts again: %s", ward.index, dead.error)
        else:
            wait = self._count_death(ward, dead, cause)
        self._forget(ward.index)
        asked = self._dispatcher.lose(ward, State.GONE if wait is None else State.WAITING, cause)
        self._client.tell(ward=ward)
        for each in asked:
            each.answer(answer_of_the_dead(each.question, cause))
        if wait is not None:
            self._later(wait, lambda: self._restart(ward))
        self._dispatcher.place()
        self._client.count_waiting(self._dispatcher.num_waiting)
        self._end_if_all_are_gone(EngineDeadError(f"the engine has died ({cause}) and is not started again"))

    def _count_death(self, ward: Ward, dead: EngineDead, cause: Cause) -> float | None:
        """Seconds until the restart after a death; None when there have been enough."""
        ward.deaths[cause] += 1
        wait = ward.restarts.next_wait(self._now(), worked=ward.watch.worked)
        what = "it is not started again" if wait is None else f"it is started again in {wait:g} s"
        logger.error("engine %d is dead (%s: %s); %s", ward.index, cause, dead.error, what)
        self._trouble = f"the engine has died ({cause}) and is started again; requests wait for it"
        if wait is None:
            self._renewals.given_up(ward)
        return wait

    def _restart(self, ward: Ward) -> None:
        ward.watch = Watch(self._now(), silence_s=self._options.silence_s)
        assert self._launch is not None
        try:
            engine = self._launch(ward.index)
        except Exception:
            logger.exception("engine %d cannot be started", ward.index)
            self._lose(ward, EngineDead(EngineDeadError("the engine cannot be started"), cause="start"))
            return
        self._begin(ward, engine)

    def _end_if_all_are_gone(self, error: EngineDeadError) -> None:
        if all(ward.state is State.GONE or (self._closing and ward.engine is None) for ward in self._wards):
            self._emit_last(EngineDead(error))

    def _emit_last(self, dead: EngineDead) -> None:
        self._stop()
        self._client.end(dead)

    # Time.

    def _look(self) -> None:
        """Judge the engines by their silence and their steps."""
        now = self._now()
        late = now - self._looked - LOOK_S
        self._looked = now
        for engine in [engine for engine in self._dead if not engine.is_alive]:
            self._dead.remove(engine)
            engine.close()
        for ward in self._wards:
            if late > LATE_S:
                ward.watch.pass_over(late, now)
            if ward.engine is not None and (verdict := ward.watch.verdict(now)) is not None:
                cause, words = verdict
                if ward.condemned is None:
                    logger.error("engine %d counts as dead: %s", ward.index, words)
                self._condemn(ward, cause)
        self._renewals.look()
        self._client.count_waiting(self._dispatcher.num_waiting)
        self._later(LOOK_S, self._look)

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something after so long, unless all ends before."""
        assert self._loop is not None

        def fire() -> None:
            self._timers.discard(timer)
            act()

        timer = self._loop.call_later(seconds, fire)
        self._timers.add(timer)
