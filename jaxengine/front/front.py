"""The host half put together around whatever runs the steps: the loop, the way in, the model's text. No JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

from buckets import Grid, ReadyShapes
from jaxengine.contract.batch import PAGES_ONLY, CacheTraits, Runner
from jaxengine.errors import UnsupportedError
from jaxengine.front.intake import Intake, end_token_ids
from jaxengine.grammar.grammars import GrammarLimits, Grammars
from jaxengine.host.engine.core import EngineCore
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.scheduler import Scheduler
from jaxengine.options.config import EngineConfig
from jaxengine.text.generation_config import GenerationDefaults
from jaxengine.text.pooling_config import PoolingDefaults
from jaxengine.text.tokenizer import Tokenizer


@dataclass(kw_only=True)
class Front:
    """All that `LLM` and the server need of an engine.

    `startup.build.Engine` is one with a device behind it; with any other `Runner` one is made without loading JAX.
    """

    config: EngineConfig
    core: EngineCore
    ledger: Ledger
    intake: Intake
    tokenizer: Tokenizer | None
    grammars: Grammars | None
    phases: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def assemble(
        cls,
        config: EngineConfig,
        runner: Runner,
        *,
        grid: Grid,
        ledger: Ledger,
        vocab_size: int,
        embedding_size: int,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        tokenizer: Tokenizer | None,
        generation: GenerationDefaults,
        grammars: Grammars | None,
        pooling: PoolingDefaults | None = None,
        generates: bool = True,
        cache: CacheTraits = PAGES_ONLY,
        longest_context: int | None = None,
        shapes: ReadyShapes | None = None,
        watch: Callable[[], AbstractContextManager[None]] = nullcontext,
        **fields: Any,
    ) -> Self:
        """The parts of the host half, made for each other.

        What is given here is what a start decides: options that `config` leaves open, and what the model and its pool are like.
        `fields` are those of a subclass.
        """
        options = config.scheduler
        limits = SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            scheduling_policy=options.scheduling_policy,
            deterministic=options.deterministic,
            speculation=options.speculation,
            cache=cache,
        )
        most = runner.max_in_flight if options.async_scheduling else 1
        scheduler = Scheduler(limits, grid, ledger, vocab_size=vocab_size, max_in_flight=most)
        intake = Intake(
            tokenizer,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            max_logprobs=config.model.max_logprobs,
            seed=config.model.seed,
            defaults=generation,
            grammars=grammars,
            embedding_size=embedding_size,
            pooling=pooling,
            generates=generates,
            longest_context=longest_context,
        )
        return cls(
            config=config,
            core=EngineCore(scheduler, runner, shapes=shapes, watch=watch),
            ledger=ledger,
            intake=intake,
            tokenizer=tokenizer,
            grammars=grammars,
            **fields,
        )

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds, of sequences as long as they may get."""
        ahead = self.core.scheduler.limits.max_num_batched_tokens
        return self.ledger.tokens_held(ahead=ahead, max_model_len=self.intake.max_model_len)

    @property
    def num_programs(self) -> int:
        """Compiled programs."""
        return 0

    @property
    def num_compilations(self) -> int:
        """Programs that were compiled since the engine was ready, in any thread."""
        return 0

    def start_profile(self) -> None:
        """Begin a trace of device and host.

        Raises:
            RequestError: there is nothing to trace, or that was not asked for at the start.
        """
        raise UnsupportedError("there is no device here to trace")

    def stop_profile(self) -> None:
        """End the trace and write it.

        Raises:
            RequestError: as `start_profile`; also when none is running.
        """
        raise UnsupportedError("there is no device here to trace")

    def close(self) -> None:
        """Give up what runs, and free the device. Closing twice is fine."""
        if self.grammars is not None:
            self.grammars.close()
        self.core.close()


def make_grammars(
    config: EngineConfig, tokenizer: Tokenizer | None, generation: GenerationDefaults, *, vocab_size: int
) -> Grammars | None:
    """What compiles structured outputs; None without a tokenizer."""
    if tokenizer is None:
        return None
    options = config.structured
    return Grammars(
        tokenizer,
        vocab_size=vocab_size,
        end_ids=end_token_ids(tokenizer, generation),
        limits=GrammarLimits(max_bytes=options.max_grammar_bytes, compile_timeout_s=options.grammar_timeout),
    )
