"""The news of steps by column says the same as one by one, also in another process."""

from __future__ import annotations

import pickle

import numpy as np

from jaxengine.contract.batch import RowLogprobs
from jaxengine.contract.step_updates import Gained, Roster, StepUpdates
from jaxengine.contract.updates import Admission, SequenceUpdate

LOGPROBS = RowLogprobs(-1.0, 1, np.zeros(0, np.int32), np.zeros(0, np.float32))
ROSTER = Roster(["a", "a", "b"], [0, 2, 0], [Admission(4, 1, 0.5), Admission(), Admission()])
ENDED = SequenceUpdate("c", 0, (7,), (None,), Admission(), finish_reason="length", position=9)


def gained(logprobs: tuple[RowLogprobs | None, ...] | None = None) -> Gained:
    return Gained(ROSTER, np.array([17, 18, 19], np.int32), np.array([5, 6, 7], np.int32), logprobs)


def test_columns_are_updates_one_by_one() -> None:
    news = StepUpdates([gained((None, LOGPROBS, None)), [ENDED]])
    each = [
        SequenceUpdate.of_token("a", 0, 17, None, Admission(4, 1, 0.5), 5),
        SequenceUpdate.of_token("a", 2, 18, LOGPROBS, Admission(), 6),
        SequenceUpdate.of_token("b", 0, 19, None, Admission(), 7),
        ENDED,
    ]
    assert news == each
    assert (len(news), news[-1], {type(update) for update in news}) == (4, ENDED, {SequenceUpdate})
    some = gained((None, LOGPROBS, None)).without([0])
    assert some.updates() == each[1:3]
    assert some.part(np.array([1])).updates() == each[2:3]
    assert StepUpdates.joined([[], StepUpdates([some.without([0, 1])]), [ENDED]]).parts == ([ENDED],)


def test_a_roster_is_the_same_one_each_time_it_comes_from_another_process() -> None:
    first, second = (pickle.loads(pickle.dumps(StepUpdates([gained(), [ENDED]]))) for _ in range(2))
    assert first == second == StepUpdates([gained(), [ENDED]])
    assert first.parts[0].roster is second.parts[0].roster is not ROSTER
