"""What is true of a started engine for as long as it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from buckets import Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """All that the front has to know of an engine: it says what a request may be and what logs and metrics show.

    `vocab_size` are the ids that the model has embeddings for, `embedding_size` is the length of its hidden states. With
    `generates` it can continue a prompt. `max_model_len` bounds prompt and output in tokens; `longest_context` is what the model
    can do, where that may be more. At most `max_num_seqs` sequences run at once, and `max_num_batched_tokens` tokens in a step.
    The KV cache has `num_pages` pages of `page_size` tokens: `kv_tokens` in all, of sequences as long as they may get. `shapes`
    are those of steps. `start_phases` are the seconds that each phase of the start took, in order.
    """

    vocab_size: int
    max_model_len: int
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    embedding_size: int = 0
    generates: bool = True
    longest_context: int | None = None
    page_size: int = 0
    num_pages: int = 0
    kv_tokens: int = 0
    shapes: tuple[Bucket, ...] = ()
    start_phases: Mapping[str, float] = field(default_factory=dict)
