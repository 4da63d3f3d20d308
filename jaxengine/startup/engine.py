"""Both sides of one engine in one process, around whatever runs its steps. No JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

from buckets import Grid, ReadyShapes
from jaxengine.contract.cache_traits import PAGES_ONLY, CacheTraits
from jaxengine.contract.draft_costs import DraftCosts
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.runner import Runner
from jaxengine.front.front import Front
from jaxengine.front.model_text import ModelText
from jaxengine.grammar.compiler import GrammarCompiler
from jaxengine.grammar.sources import GrammarSources
from jaxengine.host.adapters.shelf import AdapterShelf
from jaxengine.host.adapters.slots import AdapterSlots
from jaxengine.host.engine.changes import ReadWeights
from jaxengine.host.engine.core import EngineCore
from jaxengine.host.engine.host import EngineHost, Programs, Tracer
from jaxengine.host.engine.thread import EngineThread
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.media.encoders import Encoders
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.scheduler import Scheduler
from jaxengine.options.config import EngineConfig
from jaxengine.options.transfer import Address


@dataclass(kw_only=True)
class HostedEngine:
    """A started engine: `front` is the user's side of it, `host` decides and runs the steps.

    The two share the tokenizer that grammars need, and nothing else; the front reaches the host by its channel alone. `weights`
    are the parameters on the device, by their paths.
    """

    front: Front
    host: EngineHost
    ledger: Ledger
    weights: Callable[[], Mapping[str, Any]] = dict

    @classmethod
    def assemble(
        cls,
        config: EngineConfig,
        runner: Runner,
        facts: EngineFacts,
        text: ModelText,
        *,
        grid: Grid,
        ledger: Ledger,
        grammars: GrammarSources | None = None,
        cache: CacheTraits = PAGES_ONLY,
        shapes: ReadyShapes | None = None,
        watch: Callable[[], AbstractContextManager[None]] = nullcontext,
        program_counts: Programs | None = None,
        tracer: Tracer | None = None,
        read_weights: ReadWeights | None = None,
        know_peer: Callable[[Address], None] | None = None,
        closing: Sequence[Callable[[], None]] = (),
        draft_costs: DraftCosts | None = None,
        **fields: Any,
    ) -> Self:
        """Both sides, made for each other. `fields` are a subclass's, `draft_costs` what drafts take
        beside steps, other arguments those of `EngineHost` and its core."""
        scheduler = _scheduler(config, runner, facts, grid, ledger, cache)
        if scheduler.draft_length is not None and draft_costs is not None:
            scheduler.draft_length.costs = draft_costs
        if scheduler.adapters is not None:
            closing = (*closing, scheduler.adapters.shelf.close)
        host = EngineHost(
            EngineCore(scheduler, runner, shapes=shapes, watch=watch),
            facts,
            compiler=None if grammars is None else GrammarCompiler(grammars.tokenizer),
            programs=program_counts,
            tracer=tracer,
            read_weights=read_weights,
            know_peer=know_peer,
            closing=closing,
        )
        front = Front.of(config, EngineThread(host), text, grammars=grammars)
        return cls(front=front, host=host, ledger=ledger, **fields)

    @property
    def core(self) -> EngineCore:
        """What runs the steps."""
        return self.host.core

    def close(self) -> None:
        """Give up what runs, and free the device. Closing twice is fine."""
        self.front.close()


def _scheduler(
    config: EngineConfig, runner: Runner, facts: EngineFacts, grid: Grid, ledger: Ledger, cache: CacheTraits
) -> Scheduler:
    """A scheduler with slots for adapters and places for what prompts show, where the engine has them."""
    options = config.scheduler
    limits = SchedulerLimits(
        max_num_seqs=facts.max_num_seqs,
        max_num_batched_tokens=facts.max_num_batched_tokens,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        scheduling_policy=options.scheduling_policy,
        deterministic=options.deterministic,
        speculation=options.speculation,
        cache=cache,
    )
    most = runner.max_in_flight if options.async_scheduling else 1
    slots = None
    if facts.adapters is not None:
        slots = AdapterSlots(facts.adapters.max_loras, AdapterShelf(runner, facts.adapters.most_on_host))
    encoders = None
    if facts.media is not None:
        encoders = Encoders(facts.media, budget=config.media.max_num_encoder_tokens)
    return Scheduler(
        limits,
        grid,
        ledger,
        vocab_size=facts.vocab_size,
        max_in_flight=most,
        turns=max(1, most - 1),  # one step is launched behind those that are computed
        adapters=slots,
        encoders=encoders,
    )
