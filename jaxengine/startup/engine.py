"""Both sides of one engine in one process, around whatever runs its steps. No JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

from buckets import Grid, ReadyShapes
from jaxengine.contract.batch import PAGES_ONLY, CacheTraits, Runner, Weights
from jaxengine.contract.facts import EngineFacts
from jaxengine.front.front import Front
from jaxengine.grammar.compiler import GrammarCompiler
from jaxengine.grammar.sources import GrammarSources
from jaxengine.host.engine.core import EngineCore
from jaxengine.host.engine.host import EngineHost, Programs, Tracer
from jaxengine.host.engine.thread import EngineThread
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.scheduler import Scheduler
from jaxengine.options.config import EngineConfig
from jaxengine.text.generation_config import GenerationDefaults
from jaxengine.text.pooling_config import PoolingDefaults
from jaxengine.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ModelText:
    """What a model's files say about its text. `tokenizer` is None where the engine works on ids only."""

    tokenizer: Tokenizer | None
    generation: GenerationDefaults
    pooling: PoolingDefaults | None = None


@dataclass(kw_only=True)
class HostedEngine:
    """A started engine: `front` is the user's side of it, `host` decides and runs the steps.

    The two share the tokenizer that grammars need, and nothing else; the front reaches the host by its channel alone.
    """

    front: Front
    host: EngineHost
    ledger: Ledger

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
        read_weights: Callable[[str], Weights] | None = None,
        closing: Sequence[Callable[[], None]] = (),
        **fields: Any,
    ) -> Self:
        """Both sides, made for each other. `fields` are a subclass's, other arguments those of `EngineHost` and its core."""
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
        scheduler = Scheduler(limits, grid, ledger, vocab_size=facts.vocab_size, max_in_flight=most)
        host = EngineHost(
            EngineCore(scheduler, runner, shapes=shapes, watch=watch),
            facts,
            compiler=None if grammars is None else GrammarCompiler(grammars.tokenizer),
            programs=program_counts,
            tracer=tracer,
            read_weights=read_weights,
            closing=closing,
        )
        front = Front.of(
            config,
            EngineThread(host),
            tokenizer=text.tokenizer,
            generation=text.generation,
            pooling=text.pooling,
            grammars=grammars,
        )
        return cls(front=front, host=host, ledger=ledger, **fields)

    @property
    def core(self) -> EngineCore:
        """What runs the steps."""
        return self.host.core

    def close(self) -> None:
        """Give up what runs, and free the device. Closing twice is fine."""
        self.front.close()
