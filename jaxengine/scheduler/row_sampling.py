"""From a request's SamplingParams to the RowSampling of each step."""

from __future__ import annotations

import numpy as np

from jaxengine.batch import Int32s, RowSampling, SamplingSpec
from jaxengine.request import Request
from jaxengine.scheduler.masks import TokenMask

SEED_RANGE = 2**64


def spec_of(request: Request, index: int) -> SamplingSpec:
    """What is the same at every step of sequence `index`; its seed is the request's plus the index, as a signed 64 bit number."""
    sampling = request.sampling
    bias = sampling.logit_bias or {}
    seed = (request.seed + index) % SEED_RANGE
    return SamplingSpec(
        temperature=0.0 if sampling.greedy else float(sampling.temperature),
        seed=seed - SEED_RANGE if seed >= SEED_RANGE // 2 else seed,
        top_k=sampling.top_k,
        top_p=float(sampling.top_p),
        min_p=float(sampling.min_p),
        presence_penalty=float(sampling.presence_penalty),
        frequency_penalty=float(sampling.frequency_penalty),
        repetition_penalty=float(sampling.repetition_penalty),
        bias_ids=tuple(bias),
        bias_values=tuple(float(value) for value in bias.values()),
        num_logprobs=sampling.logprobs,
    )


class SequenceSampling:
    """How one sequence is sampled. `constant` is the value of every step, None when history or masks make it differ."""

    def __init__(self, request: Request, index: int, *, mask: TokenMask | None) -> None:
        self.spec = spec_of(request, index)
        self._mask = mask
        self._num_prompt = len(request.prompt_token_ids)
        self._prompt_spec = SamplingSpec(temperature=0.0, seed=0, num_logprobs=request.sampling.prompt_logprobs)
        self._latest = RowSampling(spec=self.spec)
        self.constant = self._latest if mask is None and not self.spec.has_penalties else None

    def next_token(self, tokens: Int32s) -> RowSampling:
        """How to sample the token after `tokens`, the prompt and output so far."""
        if self.constant is not None:
            return self.constant
        allowed = None if self._mask is None else self._mask.allowed(tokens[self._num_prompt :])
        if self.spec.has_penalties:
            return RowSampling(spec=self.spec, history=tokens, num_prompt_tokens=self._num_prompt, allowed=allowed)
        if allowed is not self._latest.allowed:
            self._latest = RowSampling(spec=self.spec, allowed=allowed)
        return self._latest

    def prompt_token(self, target: int | np.int32) -> RowSampling:
        """Ask for the log probability of the prompt token `target` in place of sampling."""
        return RowSampling(spec=self._prompt_spec, target=int(target))
