"""From a hidden state to the embedding that was asked for."""

from __future__ import annotations

import numpy as np

from jaxengine.contract.batch import Floats
from jaxengine.contract.outputs import RequestMetrics, RequestOutput
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.request import Request
from jaxengine.contract.updates import SequenceUpdate

SMALLEST_LENGTH = 1e-12
"""A vector of zeros stays one."""


def finish_embedding(hidden: Floats, params: PoolingParams) -> Floats:
    """The hidden state `[E]` cut to `params.dimensions` numbers, then scaled to length one if `params.normalize`; read-only."""
    embedding = np.array(hidden[: params.dimensions], np.float32)
    if params.normalize:
        embedding /= max(float(np.linalg.norm(embedding)), SMALLEST_LENGTH)
    embedding.flags.writeable = False
    return embedding


def embedding_output(request: Request, update: SequenceUpdate, now: float) -> RequestOutput:
    """The one output of a request with pooling; `now` is when its result was there."""
    assert request.pooling is not None
    assert update.embedding is not None, "an embedding was asked for and the step brought none"
    return RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=(),
        finished=True,
        num_cached_tokens=update.admission.num_cached_tokens,
        metrics=RequestMetrics(
            arrival_time=request.arrival,
            first_scheduled_time=update.admission.first_scheduled_time,
            finished_time=now,
            num_preemptions=update.admission.num_preemptions,
        ),
        embedding=finish_embedding(update.embedding, request.pooling),
    )
