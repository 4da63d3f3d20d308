"""From a request's SamplingParams to what the device keeps in a slot, and to the masks that follow."""

from __future__ import annotations

from dataclasses import replace

from jaxengine.contract.arrays import Bitmask, Int32s
from jaxengine.contract.batch import SamplingSpec, SlotState
from jaxengine.contract.media import SlotMedia
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_options import OPTIONS
from jaxengine.host.scheduler.masks import TokenMask

SEED_RANGE = 2**64


def spec_of(request: Request, index: int) -> SamplingSpec:
    """What is the same at every step of sequence `index`; its seed is the request's plus the index, as a signed 64 bit number."""
    sampling = request.sampling
    bias = sampling.logit_bias or {}
    seed = (request.seed + index) % SEED_RANGE
    return SamplingSpec(
        **{option.name: option.kind(getattr(sampling, option.name)) for option in OPTIONS},
        seed=seed - SEED_RANGE if seed >= SEED_RANGE // 2 else seed,
        bias_ids=tuple(bias),
        bias_values=tuple(float(value) for value in bias.values()),
        num_logprobs=sampling.logprobs,
    )


class SlotSampling:
    """How one sequence is sampled.

    `masked`: its slot has a mask. `mask_changes`: and the mask may be another one for the next token.
    """

    def __init__(self, request: Request, index: int, *, mask: TokenMask | None) -> None:
        self._mask = mask
        self._num_prompt = len(request.prompt_token_ids)
        spec = spec_of(request, index)
        has_grammar = request.grammar is not None
        self.masked = mask is not None or has_grammar
        self.mask_changes = has_grammar or (mask is not None and mask.changes)
        self.spec = replace(spec, masked=True) if self.masked else spec
        self._held: Bitmask | None = None

    def begin(self, slot: int, tokens: Int32s, *, adapter: int = 0, media: SlotMedia | None = None) -> SlotState:
        """What is written into a slot before the token after `tokens` is sampled; `adapter` is the slot of its adapter, `media`
        what its prompt shows."""
        self._held = self.allowed(tokens)
        history = tokens if self.spec.has_penalties else None
        return SlotState(slot, self.spec, self._held, history, self._num_prompt, adapter, media)

    def allowed(self, tokens: Int32s) -> Bitmask | None:
        """The tokens that may follow `tokens`, the prompt and output so far, a grammar left aside. None allows all."""
        return None if self._mask is None else self._mask.allowed(tokens[self._num_prompt :])

    def within(self, by_grammar: Bitmask, ends: Bitmask, tokens: Int32s) -> Bitmask:
        """Of what a grammar allows to follow `tokens`, that which is allowed here too; possibly nothing."""
        return by_grammar if self._mask is None else self._mask.within(by_grammar, ends, tokens[self._num_prompt :])

    def new_mask(self, tokens: Int32s, *, always: bool = False) -> Bitmask | None:
        """What `allowed` says, if the slot does not hold it already, or `always`."""
        assert self._mask is not None
        allowed = self.allowed(tokens)
        if allowed is self._held and not always:
            return None
        self._held = allowed
        return self._mask.everything if allowed is None else allowed

    def mask_after(self, tokens: Int32s) -> Bitmask:
        """What `allowed` says, as a mask."""
        assert self._mask is not None
        allowed = self.allowed(tokens)
        return self._mask.everything if allowed is None else allowed
