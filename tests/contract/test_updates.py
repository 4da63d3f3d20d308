"""The short way to make what is made for every token says the same as the constructor that names the fields."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.contract.batch import RowLogprobs
from jaxengine.contract.updates import Admission, SequenceUpdate

LOGPROBS = RowLogprobs(-1.0, 1, np.zeros(0, np.int32), np.zeros(0, np.float32))


@pytest.mark.parametrize("logprobs", [None, LOGPROBS])
def test_the_news_of_one_token(logprobs: RowLogprobs | None) -> None:
    admission = Admission(4, 1, 0.5)
    update = SequenceUpdate.of_token("a", 2, 17, logprobs, admission, 5)
    assert type(update) is SequenceUpdate
    assert update._asdict() == {
        **SequenceUpdate("", 0, (), (), admission)._asdict(),
        "request_id": "a",
        "index": 2,
        "token_ids": (17,),
        "logprobs": (logprobs,),
        "position": 5,
    }


def test_the_news_of_many() -> None:
    admission = Admission(4, 1, 0.5)
    updates = SequenceUpdate.of_tokens("ab", [2, 0], [17, 18], [None, LOGPROBS], [admission, Admission()], [5, 6])
    assert updates == [
        SequenceUpdate.of_token("a", 2, 17, None, admission, 5),
        SequenceUpdate.of_token("b", 0, 18, LOGPROBS, Admission(), 6),
    ]
    assert {type(update) for update in updates} == {SequenceUpdate}


def test_the_news_of_drafts() -> None:
    admission = Admission(4, 1, 0.5)
    update = SequenceUpdate.of_drafts("a", 2, (17, 18), (None, LOGPROBS), admission, 3, 1, 5)
    fields = {"num_draft_tokens": 3, "num_accepted_tokens": 1, "position": 5}
    assert update == SequenceUpdate("a", 2, (17, 18), (None, LOGPROBS), admission, **fields)
