"""From the numbers that the device brings up of a prompt to what was asked for: embeddings, or scores of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxengine.contract.arrays import Floats
from jaxengine.contract.outputs import PooledOutput, PoolingOutput, PoolingRequestOutput
from jaxengine.contract.pooling import Finish, Pooled
from jaxengine.contract.request import Request
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import JaxEngineError

SMALLEST_LENGTH = 1e-12
"""A vector of zeros stays one."""


def finished(numbers: Floats, wanted: Pooled, prompt: Sequence[int]) -> Floats:
    """`numbers [D]`, or `[tokens, D]` of each token of `prompt`, chosen, cut and put through what is `wanted`; read-only."""
    if wanted.each:
        begin = int(len(prompt) > 0 and prompt[0] == wanted.first)
        end = len(prompt) - int(len(prompt) > 0 and prompt[-1] == wanted.last)
        numbers, prompt = numbers[begin:end, slice(*wanted.columns)], prompt[begin:end]
    if wanted.step_tag_id is not None:
        numbers = numbers[np.asarray(prompt) == wanted.step_tag_id]
    if wanted.chosen is not None:
        numbers = numbers[..., list(wanted.chosen)]
    result = np.array(numbers[..., : wanted.dimensions], np.float32)
    if (wanted.mean, wanted.sigma) != (0.0, 1.0):
        result = (result - np.float32(wanted.mean)) / np.float32(wanted.sigma)
    result = FINISHES[wanted.finish](result)
    result.flags.writeable = False
    return result


def normalized(vectors: Floats) -> Floats:
    """Vectors along the last axis over their lengths."""
    lengths: Floats = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: Floats = (vectors / np.maximum(lengths, np.float32(SMALLEST_LENGTH))).astype(np.float32)
    return scaled


def sigmoid(x: Floats) -> Floats:
    """Each number between 0 and 1; large ones of either sign overflow nowhere."""
    small = np.exp(-np.abs(x))
    shares: Floats = (np.where(x >= 0, 1, small) / (1 + small)).astype(np.float32)
    return shares


def softmax(x: Floats) -> Floats:
    """Shares along the last axis."""
    wide = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    shares: Floats = (wide / wide.sum(axis=-1, keepdims=True)).astype(np.float32)
    return shares


FINISHES: Mapping[Finish, Callable[[Floats], Floats]] = {
    Finish.NONE: lambda x: x,
    Finish.NORMALIZE: normalized,
    Finish.SIGMOID: sigmoid,
    Finish.SOFTMAX: softmax,
    Finish.RELU: lambda x: np.maximum(x, np.float32(0)),
}


def pooled_output(request: Request, update: SequenceUpdate) -> PooledOutput:
    """The one output of a request with pooling."""
    assert request.pooling is not None
    assert update.pooled is not None, "something was to be pooled and the step brought nothing"
    data = finished(update.pooled, request.pooling, request.prompt_token_ids)
    admission = update.admission
    return PoolingRequestOutput(
        request.request_id,
        PoolingOutput(data),
        request.prompt_token_ids,
        admission.num_cached_tokens,
        weight_version=admission.weight_version,
    )


def aborted_output(request: Request, problem: str | None) -> PooledOutput:
    """The output of a request that was given up, for this reason unless the engine was paused or put to sleep."""
    nothing = PoolingOutput(np.zeros(0, np.float32))
    return PoolingRequestOutput(request.request_id, nothing, request.prompt_token_ids, aborted=True, problem=problem)


def data_of(output: PooledOutput) -> Floats:
    """What a prompt was pooled to.

    Raises:
        JaxEngineError: the request was given up.
    """
    if output.aborted:
        raise JaxEngineError(f"the engine gave up a request: {output.problem or 'it was paused or put to sleep'}")
    return output.outputs.data


def similarity(first: Floats, second: Floats) -> float:
    """How near two embeddings are: the cosine of their angle; of texts with a vector for each token (late interaction) the sum,
    over the tokens of the first, of the largest product with one of the second."""
    if first.ndim == 2:
        return float((first @ second.T).max(axis=1).sum())
    return float(normalized(first) @ normalized(second))
