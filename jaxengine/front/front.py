"""The user's side of one engine: what makes requests of prompts and text of tokens, and the way to the engine. No JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from jaxengine.contract.channel import Channel
from jaxengine.front.intake import Intake, end_token_ids
from jaxengine.grammar.sources import GrammarLimits, GrammarSources
from jaxengine.grammar.tokenizer import GrammarTokenizer
from jaxengine.options.config import EngineConfig
from jaxengine.text.generation_config import GenerationDefaults
from jaxengine.text.pooling_config import PoolingDefaults
from jaxengine.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Front:
    """All that the server and `AsyncLLM` need: an engine is known here by its facts, and reached by its channel.

    `grammars` and `tokenizer` are None where the engine works on ids only.
    """

    config: EngineConfig
    channel: Channel
    intake: Intake
    tokenizer: Tokenizer | None
    grammars: GrammarSources | None

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        channel: Channel,
        *,
        tokenizer: Tokenizer | None,
        generation: GenerationDefaults,
        pooling: PoolingDefaults | None = None,
        grammars: GrammarSources | None = None,
    ) -> Self:
        """The front of the engine at the end of `channel`, with what the model's files say about its text."""
        intake = Intake(
            tokenizer,
            channel.facts,
            max_logprobs=config.model.max_logprobs,
            seed=config.model.seed,
            defaults=generation,
            grammars=grammars,
            pooling=pooling,
        )
        return cls(config=config, channel=channel, intake=intake, tokenizer=tokenizer, grammars=grammars)

    def close(self) -> None:
        """Give up what runs, and free the device. Closing twice is fine."""
        if self.grammars is not None:
            self.grammars.close()
        self.channel.close()


def make_grammars(
    config: EngineConfig, tokenizer: Tokenizer | None, generation: GenerationDefaults, *, vocab_size: int
) -> GrammarSources | None:
    """What tries structured outputs; None without a tokenizer."""
    if tokenizer is None:
        return None
    options = config.structured
    return GrammarSources(
        GrammarTokenizer(tokenizer, vocab_size=vocab_size, end_ids=end_token_ids(tokenizer, generation)),
        GrammarLimits(max_bytes=options.max_grammar_bytes, compile_timeout_s=options.grammar_timeout),
    )
