"""From hidden states to embeddings: cut, scaled, and told as the one output of a request."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.contract.outputs import RequestMetrics, RequestOutput
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.front.embeddings import finish_embedding
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
    found = finish_embedding(HIDDEN, PoolingParams(dimensions=dimensions, normalize=normalize))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32
    assert not found.flags.writeable
    np.testing.assert_array_equal(HIDDEN, before)


def test_zeros_stay_zeros() -> None:
    assert finish_embedding(np.zeros(3, np.float32), PoolingParams(normalize=True)).tolist() == [0.0, 0.0, 0.0]


def request(request_id: str) -> Request:
    return Request(
        request_id=request_id,
        prompt="Tom",
        prompt_token_ids=(5, 6),
        sampling=SamplingParams(max_tokens=1),
        max_tokens=1,
        arrival=1.0,
        pooling=PoolingParams(normalize=False),
    )


def update(request_id: str) -> SequenceUpdate:
    return SequenceUpdate(
        request_id=request_id,
        index=0,
        token_ids=(),
        logprobs=(),
        finish_reason="stop",
        admission=Admission(1, 2, 3.0),
        embedding=HIDDEN,
    )


def test_one_output_and_the_request_is_forgotten() -> None:
    post = Postprocessor(None, clock=lambda: 5.0).begin(request("a"))
    output, ended = post.process([update("a")])
    assert ended is None
    assert output is not None
    assert output.embedding is not None
    assert output.embedding.tolist() == HIDDEN.tolist()
    assert output == RequestOutput(
        request_id="a",
        prompt="Tom",
        prompt_token_ids=(5, 6),
        outputs=(),
        finished=True,
        num_cached_tokens=1,
        metrics=RequestMetrics(1.0, first_scheduled_time=3.0, finished_time=5.0, num_preemptions=2),
        embedding=output.embedding,
    )
    assert post.finished
    assert post.process([update("a")]) == (None, None)
