"""From what the device brings up to what was asked for: cut, chosen, scaled, and told as the one output of a request."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.contract.outputs import PoolingRequestOutput
from jaxengine.contract.pooling import Finish, Pooled
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.errors import JaxEngineError
from jaxengine.front.pooled import data_of, finished, sigmoid, similarity, softmax
from jaxengine.front.postprocess import Postprocessor

HIDDEN = np.array([3.0, -4.0, 12.0, 84.0], np.float32)


@pytest.mark.parametrize(
    ("dimensions", "normalize", "expected"),
    [
        (None, False, [3, -4, 12, 84]),
        (None, True, [3 / 85, -4 / 85, 12 / 85, 84 / 85]),
        (2, True, [0.6, -0.8]),
        (2, False, [3, -4]),
        (1, True, [1.0]),
        (4, True, [3 / 85, -4 / 85, 12 / 85, 84 / 85]),
    ],
)
def test_cut_first_then_scaled(dimensions: int | None, normalize: bool, expected: list[float]) -> None:
    before = HIDDEN.copy()
    wanted = Pooled(task="embed", dimensions=dimensions, finish=Finish.NORMALIZE if normalize else Finish.NONE)
    found = finished(HIDDEN, wanted, [5, 6])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32
    assert not found.flags.writeable
    np.testing.assert_array_equal(HIDDEN, before)


def test_zeros_stay_zeros() -> None:
    assert finished(np.zeros(3, np.float32), Pooled(task="embed"), [5]).tolist() == [0.0, 0.0, 0.0]


def request(request_id: str) -> Request:
    return Request(
        request_id=request_id,
        prompt="Tom",
        prompt_token_ids=(5, 6),
        sampling=SamplingParams(max_tokens=1),
        max_tokens=1,
        arrival=1.0,
        pooling=Pooled(task="embed", finish=Finish.NONE),
    )


def update(request_id: str) -> SequenceUpdate:
    return SequenceUpdate(
        request_id=request_id,
        index=0,
        token_ids=(),
        logprobs=(),
        finish_reason="stop",
        admission=Admission(1, 2, 3.0),
        pooled=HIDDEN,
    )


def test_one_output_and_the_request_is_forgotten() -> None:
    post = Postprocessor(None, clock=lambda: 5.0).begin(request("a"))
    output, ended = post.process([update("a")])
    assert ended is None
    assert output is not None
    assert isinstance(output, PoolingRequestOutput)
    assert output.outputs.data.tolist() == HIDDEN.tolist()
    assert (output.request_id, output.prompt_token_ids, output.num_cached_tokens) == ("a", (5, 6), 1)
    assert output.finished
    assert not output.aborted
    assert post.finished
    assert post.process([update("a")]) == (None, None)


def test_a_request_that_was_given_up_has_no_data() -> None:
    progress = Postprocessor(None).begin(request("a"))
    output, ended = progress.process([update("a")._replace(pooled=None)])
    assert isinstance(output, PoolingRequestOutput)
    assert output.aborted
    assert ended is not None
    with pytest.raises(JaxEngineError, match="gave up"):
        data_of(output)


def test_scores_of_classes() -> None:
    scores = np.array([[1.0, -2.0, 3.0], [0.5, 0.5, 0.5], [100.0, 0.0, -100.0]], np.float32)
    soft = finished(scores, Pooled(task="token_classify", each=True, finish=Finish.SOFTMAX), [5, 6, 7])
    np.testing.assert_allclose(soft.sum(axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(soft[1], 1 / 3, rtol=1e-6)
    of_steps = Pooled(task="token_classify", each=True, finish=Finish.NONE, step_tag_id=6, chosen=(2, 0))
    assert finished(scores, of_steps, [6, 5, 6]).tolist() == [[3.0, 1.0], [-100.0, 100.0]]
    moved = finished(scores[0], Pooled(task="classify", finish=Finish.NONE, mean=1.0, sigma=2.0), [5])
    assert moved.tolist() == [0.0, -1.5, 1.0]


def test_sigmoid_and_softmax_overflow_nowhere() -> None:
    far = np.array([-1e4, 0.0, 1e4], np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert sigmoid(far).tolist() == [0.0, 0.5, 1.0]
        assert softmax(far).tolist() == [0.0, 0.0, 1.0]


def test_how_near_two_texts_are() -> None:
    first, second = np.array([3.0, 4.0], np.float32), np.array([8.0, 6.0], np.float32)
    assert similarity(first, second) == pytest.approx(0.96)
    tokens = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    others = np.array([[0.5, 0.1], [0.2, 0.9], [0.3, 0.3]], np.float32)
    assert similarity(tokens, others) == pytest.approx(0.5 + 0.9)
