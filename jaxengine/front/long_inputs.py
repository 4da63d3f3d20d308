"""Inputs that are longer than the context, where that is asked for: parts of them are embedded, and their mean stands for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxengine.contract.outputs import PooledOutput, PoolingOutput
from jaxengine.contract.pooling import Finish, Pooled
from jaxengine.contract.pooling_params import ACTIVATIONS, PoolingParams
from jaxengine.errors import ContextLengthError
from jaxengine.front.intake import Intake
from jaxengine.front.pooled import data_of, normalized
from jaxengine.front.prompts import ParsedPrompt


@dataclass(frozen=True, slots=True)
class Parts:
    """The prompts that one input becomes, and what changes of its parameters: nothing where it is one."""

    prompts: Sequence[ParsedPrompt]
    params: Mapping[str, Any] = field(default_factory=dict)


def parts_of(intake: Intake, prompt: Any, params: PoolingParams) -> Parts:
    """An input in parts that the model takes.

    Raises:
        ContextLengthError: it is longer than `max_embed_len`, or has parts and is not to be embedded.
        RequestError: it is no prompt.
    """
    parsed = intake.encoded(prompt, params)
    ids, longest = parsed.token_ids or (), intake.facts.max_model_len
    traits = intake.facts.pooler
    if len(ids) <= longest:
        return Parts([parsed])
    if traits.longest_input is not None and len(ids) > traits.longest_input:
        raise ContextLengthError(
            f"the input has {len(ids)} tokens, more than max_embed_len ({traits.longest_input})", param="input_tokens"
        )
    wanted = traits.wanted(params)
    if wanted.task != "embed":
        raise ContextLengthError(
            f"the input has {len(ids)} tokens, and only embeddings are made of parts of {longest}", param="input_tokens"
        )
    prompts = [replace(parsed, token_ids=ids[begin : begin + longest]) for begin in range(0, len(ids), longest)]
    return Parts(prompts, {"dimensions": None, **dict.fromkeys(ACTIVATIONS), "use_activation": False})


def joined(outputs: Sequence[PooledOutput], wanted: Pooled) -> PooledOutput:
    """One output for all parts of an input: the mean of their vectors, each counting by its tokens, finished as is `wanted`."""
    first, *others = outputs
    if not others:
        return first
    ids = tuple(token for output in outputs for token in output.prompt_token_ids)
    weights = np.array([len(output.prompt_token_ids) for output in outputs], np.float32)
    vectors = np.stack([data_of(output) for output in outputs])
    mean = (vectors * weights[:, None]).sum(axis=0)[: wanted.dimensions] / weights.sum()
    data = normalized(mean) if wanted.finish is Finish.NORMALIZE else mean
    return replace(first, outputs=PoolingOutput(data), prompt_token_ids=ids)
