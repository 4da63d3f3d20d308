"""The user's side of one engine: what makes requests of prompts and text of tokens, and the way to the engine. No JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from jaxengine.contract.channel import Channel
from jaxengine.front.instructed_speech import InstructedSpeech
from jaxengine.front.intake import Intake, end_token_ids
from jaxengine.front.model_text import ModelText
from jaxengine.front.speech import SpeechTokens
from jaxengine.front.starting import StartingEngine
from jaxengine.grammar.sources import GrammarLimits, GrammarSources
from jaxengine.grammar.tokenizer import GrammarTokenizer
from jaxengine.options.config import EngineConfig
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
    speech: SpeechTokens | InstructedSpeech | None = None

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        channel: Channel,
        text: ModelText,
        *,
        grammars: GrammarSources | None = None,
    ) -> Self:
        """The front of the engine at the end of `channel`, which is ready."""
        facts = channel.facts
        showing = None
        if facts.media is not None and text.processor is not None:
            from jaxengine.front.showing import Showing  # asks other hosts; most engines show nothing

            showing = Showing(text.processor, facts.media, config.media, max_model_len=facts.max_model_len)
        intake = Intake(
            text.tokenizer,
            facts,
            max_logprobs=config.model.max_logprobs,
            seed=config.model.seed,
            defaults=text.generation,
            grammars=grammars,
            showing=showing,
        )
        return cls(
            config=config,
            channel=channel,
            intake=intake,
            tokenizer=text.tokenizer,
            grammars=grammars,
            speech=text.speech,
        )

    @classmethod
    def beside(
        cls,
        engine: StartingEngine,
        *,
        check: Callable[[Tokenizer | None], object] | None = None,
        prepare_grammars: bool = False,
    ) -> Self:
        """The front of an engine that starts: reads what the model's files say of text, and waits until the engine is ready.

        Args:
            engine: the engine, which the caller closes if this fails.
            check: may refuse the model's tokenizer.
            prepare_grammars: whether to make what structured output needs before the first request that wants it.

        Raises:
            JaxEngineError: the engine does not start, or the model's files do not do.
        """
        source = engine.source.result()
        text = ModelText.load(source)
        if check is not None:
            check(text.tokenizer)
        grammars = make_grammars(source.config, text, vocab_size=source.vocab_size)
        try:
            if prepare_grammars and grammars is not None:
                grammars.prepare()
            engine.ready.result()
            return cls.of(source.config, engine, text, grammars=grammars)
        except BaseException:
            if grammars is not None:
                grammars.close()
            raise

    def close(self) -> None:
        """Give up what runs, and free the device. Closing twice is fine."""
        if self.grammars is not None:
            self.grammars.close()
        self.channel.close()


def make_grammars(config: EngineConfig, text: ModelText, *, vocab_size: int) -> GrammarSources | None:
    """What tries structured outputs; None without a tokenizer."""
    if text.tokenizer is None:
        return None
    options = config.structured
    return GrammarSources(
        GrammarTokenizer(text.tokenizer, vocab_size=vocab_size, end_ids=end_token_ids(text.tokenizer, text.generation)),
        GrammarLimits(max_bytes=options.max_grammar_bytes, compile_timeout_s=options.grammar_timeout),
    )
