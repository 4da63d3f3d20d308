"""A request as the engine accepts it: token ids and validated sampling, nothing left to decide."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """How long a sequence may think.

    Its block of thoughts begins with the token `begin`, or with the output where the prompt `opened` it, and ends with the last
    of `end`. After `tokens` tokens within the block those of `end` are all that may follow, one after the other.
    """

    tokens: int
    begin: int
    end: tuple[int, ...]
    opened: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt with its sampling parameters; `sampling.n` sequences are generated from it.

    With `pooling` the prompt's embedding is wanted and nothing is generated; `sampling` is neutral then, `max_tokens` 1, and
    `pooling.normalize` is decided.

    Whoever makes one has checked it: nothing in it is checked again. Only what the maker cannot know may still refuse it: whether
    the id is in use, whether priorities are on, and how much the KV pool holds.

    `eos_token_id` ends a sequence without a stop reason, `stop_token_ids` end it with one; the model's further ends of sequence,
    `more_eos_ids`, are among them unless such ends are ignored. `min_tokens` rules all of them out in any case.
    `bad_words_token_ids` are the tokenised `sampling.bad_words`, `grammar` is the source that `sampling.structured_outputs` comes
    to, which the engine compiles.
    `thinking` is what `sampling.thinking_token_budget` comes to for this prompt.
    `max_tokens` is already cut to the room left by the prompt.
    `cache_salt` keeps the prefix cache of one tenant from being read by another. Lower `priority` runs first.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    prompt: str | None = None
    eos_token_id: int | None = None
    more_eos_ids: tuple[int, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    grammar: str | None = None
    thinking: ThinkingBudget | None = None
    cache_salt: str | None = None
    priority: int = 0
    seed: int = 0
    arrival: float = field(default=0.0)
    pooling: PoolingParams | None = None

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end a sequence with a stop reason."""
        ends = () if self.sampling.ignore_eos and self.grammar is None else self.more_eos_ids
        return frozenset((*(self.sampling.stop_token_ids or ()), *ends))
