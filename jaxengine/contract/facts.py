"""What is true of a started engine for as long as it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from buckets import Bucket
from jaxengine.contract.adapters import AdapterFacts
from jaxengine.contract.media import MediaFacts
from jaxengine.contract.pooling import PoolerTraits
from jaxengine.contract.transfer import TransferFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """All that the front has to know of an engine: it says what a request may be and what logs and metrics show.

    `vocab_size` are the ids that the model has embeddings for, `pooler` says what it makes of prompts that are pooled. With
    `generates` it can continue a prompt. `max_model_len` bounds prompt and output in tokens; `longest_context` is what the model
    can do, where that may be more, and `context_option` what has to be larger for it. At most `max_num_seqs` sequences run at
    once, and `max_num_batched_tokens` tokens in a step.
    The KV cache has `num_pages` pages of `page_size` tokens: `kv_tokens` in all, of sequences as long as they may get.
    Behind them `host_blocks` more pages lie in the host's memory, in `host_bytes`. `shapes`
    are those of steps; `floors` are the least seconds that a step of each can take on the device, where its speed is known.
    `start_phases` are the seconds that each phase of the start took, in order. After `step_timeout_s` seconds a step counts as
    hung, going by what steps were measured to take; 0 is never. With `caches_prefixes` pages of equal prefixes are computed once.
    `transfer` says how it shares pages with other engines, where it does, `adapters` how many it serves, where it does, `media`
    what it has for pictures and sounds, where it sees or hears.
    """

    vocab_size: int
    max_model_len: int
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    pooler: PoolerTraits = field(default_factory=PoolerTraits)
    generates: bool = True
    longest_context: int | None = None
    context_option: str = "max_model_len"
    page_size: int = 0
    num_pages: int = 0
    host_blocks: int = 0
    host_bytes: int = 0
    kv_tokens: int = 0
    shapes: tuple[Bucket, ...] = ()
    floors: Mapping[Bucket, float] = field(default_factory=dict)
    start_phases: Mapping[str, float] = field(default_factory=dict)
    step_timeout_s: float = 0.0
    caches_prefixes: bool = True
    transfer: TransferFacts | None = None
    adapters: AdapterFacts | None = None
    media: MediaFacts | None = None
