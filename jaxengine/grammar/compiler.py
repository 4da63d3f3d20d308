"""The engine's side of structured output: sources are compiled, once, for every sequence that needs them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from jaxengine.errors import RequestError
from jaxengine.grammar.matching import Grammar
from jaxengine.grammar.once import Once
from jaxengine.grammar.source import PARAM
from jaxengine.grammar.sources import short
from jaxengine.grammar.tokenizer import GrammarTokenizer

MAX_LEXER_STATES = 30_000
"""Of one sequence, at 1 to 2 kB each: a sequence whose grammar needs more ends with an error."""

CACHE_SIZE, CACHE_BYTES = 256, 2 << 20
"""Grammars that are kept, and bytes of their sources: compiled, a large one takes some 60 times that."""

THREADS = 2


class GrammarCompiler:
    """The compiled grammars of one engine. Thread-safe.

    Args:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: GrammarTokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiled = Once(
            self._compile,
            size=lambda source: len(source.encode("utf-8", "surrogatepass")),
            max_entries=CACHE_SIZE,
            max_bytes=CACHE_BYTES,
        )
        self._threads = ThreadPoolExecutor(THREADS, "grammar")

    def compile(self, source: str) -> Grammar:
        """The grammar of a source that `GrammarSources` has tried. Blocks unless it `is_ready`.

        Raises:
            RequestError: it cannot be used after all.
        """
        return self._compiled.get(source)

    def is_ready(self, source: str) -> bool:
        """Whether `compile` would return, or raise, at once."""
        return self._compiled.is_ready(source)

    def begin(self, source: str) -> Future[Grammar]:
        """Compile on a thread."""
        return self._threads.submit(self.compile, source)

    def close(self) -> None:
        """End the threads. Closing twice is fine."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, source: str) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        tokenizer = self._tokenizer
        limits = LLParserLimits(verbose_errors=False, max_lexer_states=MAX_LEXER_STATES)
        matcher = LLMatcher(tokenizer.of_llguidance, source, log_level=0, limits=limits)
        grammar = Grammar(matcher, vocab_size=tokenizer.vocab_size, end_ids=tokenizer.end_ids)
        if (error := grammar.error()) is not None:
            raise RequestError(f"structured_outputs cannot be used: {short(error)}", param=PARAM)
        return grammar
