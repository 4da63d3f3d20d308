"""A request as the engine accepts it: token ids and validated sampling, nothing left to decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxengine.contract.adapters import Adapter
from jaxengine.contract.media import PromptMedia
from jaxengine.contract.pooling import Pooled
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.contract.speech import SpeechRules
from jaxengine.contract.transfer import TransferParams
from jaxengine.contract.updates import Admission


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


@dataclass(frozen=True, slots=True)
class SequenceHistory:
    """What one sequence of a request had yielded when the engine that ran it was lost.

    Its output so far, how many log probabilities of its prompt came, how it had come to run, and whether it has ended.
    """

    token_ids: tuple[int, ...] = ()
    num_prompt_logprobs: int = 0
    admission: Admission = field(default_factory=Admission)
    ended: bool = False


NOTHING_YIELDED = SequenceHistory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt with its sampling parameters; `sampling.n` sequences are generated from it.

    With `pooling` something is made of the prompt's hidden states and nothing is generated; `sampling` is neutral then, and
    `max_tokens` 1. Of two texts in one prompt the tokens of the second begin at `second_from`, where the model tells them apart:
    it is given their ids `second_offset` larger.

    Whoever makes one has checked it: nothing in it is checked again. Only what the maker cannot know may still refuse it: whether
    the id is in use, whether priorities are on, and how much the KV pool holds.

    `eos_token_id` ends a sequence without a stop reason, `stop_token_ids` end it with one; the model's further ends of sequence,
    `more_eos_ids`, are among them unless such ends are ignored. `min_tokens` rules all of them out in any case.
    `bad_words_token_ids` are the tokenised `sampling.bad_words`, `grammar` is the source that `sampling.structured_outputs` comes
    to, which the engine compiles.
    `thinking` is what `sampling.thinking_token_budget` comes to for this prompt. `speech` are the rules of a text of a sound.
    `max_tokens` is already cut to the room left by the prompt.
    It runs with the weights of `adapter` beside the model's, where there is one. `media` is what it shows.
    `cache_salt` keeps the prefix cache of one tenant from being read by another. Lower `priority` runs first.
    Requests of one `share` come from one user, of whom no more is known here; it matters where shares are to be fair.
    `history` has an entry for each of the `n` sequences, or none where nothing ran before. A request with one goes on from there,
    as after a preemption: the tokens that follow are those that would have followed. Without `resume` it ends with an error when
    its engine dies.
    `transfer` is what its `kv_transfer_params` ask for, `handover` those that its answer has, where another engine goes on.
    Of several replicas the one of `data_parallel_rank` serves it as long as it can, or if None whichever.
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
    speech: SpeechRules | None = None
    adapter: Adapter | None = None
    media: PromptMedia | None = None
    cache_salt: str | None = None
    priority: int = 0
    share: str = ""
    data_parallel_rank: int | None = None
    seed: int = 0
    arrival: float = field(default=0.0)
    pooling: Pooled | None = None
    second_from: int | None = None
    second_offset: int = 0
    transfer: TransferParams | None = None
    handover: Mapping[str, Any] | None = None
    history: tuple[SequenceHistory, ...] = ()
    resume: bool = True

    def history_of(self, index: int) -> SequenceHistory:
        """What a sequence had yielded before this engine got to it."""
        return self.history[index] if self.history else NOTHING_YIELDED

    @property
    def given_token_ids(self) -> tuple[int, ...]:
        """The prompt as the model is given it."""
        second = self.second_from
        if second is None:
            return self.prompt_token_ids
        first, rest = self.prompt_token_ids[:second], self.prompt_token_ids[second:]
        return first + tuple(token + self.second_offset for token in rest)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end a sequence with a stop reason."""
        ends = () if self.sampling.ignore_eos and self.grammar is None else self.more_eos_ids
        return frozenset((*(self.sampling.stop_token_ids or ()), *ends))
