"""Compiles what users ask for, once, and hands it out to every sequence that needs it.

llguidance is loaded with the first grammar: most starts need none.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import RequestError
from jaxengine.grammar.checking import GrammarChecker
from jaxengine.grammar.matching import Grammar
from jaxengine.grammar.source import PARAM, grammar_source
from jaxengine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_LEXER_STATES = 30_000
"""Of one sequence, at 1 to 2 kB each: a sequence whose grammar needs more ends with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """What one request may cost: the size of its grammar in bytes, and seconds to compile it.

    `cache_size` grammars are kept, as long as what they were compiled from is at most `cache_bytes` together: compiled, a large
    one takes some 60 times that.
    """

    max_bytes: int = 128 * 1024
    compile_timeout_s: float = 5.0
    cache_size: int = 256
    cache_bytes: int = 2 << 20


class Grammars:
    """The compiled grammars of one engine. Thread-safe; `compile` blocks and belongs on no event loop.

    Args:
        tokenizer: the model's.
        vocab_size: ids that the model has embeddings for; masks have that many bits.
        end_ids: ids that end a sequence; they are allowed exactly where the text may end.
        limits: what a request may cost.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, end_ids: tuple[int, ...], limits: GrammarLimits | None = None
    ) -> None:
        self._limits = limits or GrammarLimits()
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._cache: OrderedDict[StructuredOutputsParams, Future[Grammar]] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._starting = threading.Lock()

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """The grammar of `params`: from the cache, from another caller who is compiling it, or compiled here.

        Raises:
            RequestError: it is malformed, matches nothing, uses what llguidance does not support, or is over a limit.
        """
        self._check_size(params)
        with self._lock:
            future = self._cache.get(params)
            mine = future is None
            if future is None:
                future = self._cache[params] = Future()
                self._cached_bytes += size_of(params)
                self._evict()
            else:
                self._cache.move_to_end(params)
        if mine:
            self._fulfil(future, params)
        error = future.exception()
        if error is not None:
            raise RequestError(str(error), param=PARAM) if isinstance(error, RequestError) else error
        return future.result()

    def is_ready(self, params: StructuredOutputsParams) -> bool:
        """Whether `compile` would return, or raise, at once."""
        with self._lock:
            future = self._cache.get(params)
        return future is not None and future.done()

    def warm_up(self) -> None:
        """Prepare the tokenizer and the checker process (about a second for 150,000 tokens) before the first request."""
        with self._starting:
            _ = self._ll_tokenizer
            self._checker.start()

    def close(self) -> None:
        """End the checker process."""
        if "_checker" in self.__dict__:
            self._checker.close()

    def _fulfil(self, future: Future[Grammar], params: StructuredOutputsParams) -> None:
        try:
            future.set_result(self._compile(params))
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, RequestError):  # what is not the request's fault may go well the next time
                with self._lock:
                    if self._cache.pop(params, None) is not None:
                        self._cached_bytes -= size_of(params)

    def _evict(self) -> None:
        """Forget the least recently used; the newest stays."""
        limits = self._limits
        while len(self._cache) > limits.cache_size or (
            self._cached_bytes > limits.cache_bytes and len(self._cache) > 1
        ):
            params, _ = self._cache.popitem(last=False)
            self._cached_bytes -= size_of(params)

    def _compile(self, params: StructuredOutputsParams) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        self.warm_up()
        source = grammar_source(params, special=self._special)
        error = self._checker.check(source)
        if error is None:
            limits = LLParserLimits(verbose_errors=False, max_lexer_states=MAX_LEXER_STATES)
            matcher = LLMatcher(self._ll_tokenizer, source, log_level=0, limits=limits)
            grammar = Grammar(matcher, vocab_size=self._vocab_size, end_ids=self._end_ids)
            error = grammar.error()
        if error is not None:
            raise RequestError(f"structured_outputs.{params.kind} cannot be used: {_short(error)}", param=PARAM)
        return grammar

    def _check_size(self, params: StructuredOutputsParams) -> None:
        size = size_of(params)
        if size > self._limits.max_bytes:
            raise RequestError(
                f"structured_outputs.{params.kind} has {size} bytes; at most {self._limits.max_bytes} are allowed "
                "(max_grammar_bytes)",
                param=PARAM,
            )
        try:
            "".join(_texts(params)).encode()
        except UnicodeEncodeError:
            raise RequestError(f"structured_outputs.{params.kind} holds a lone surrogate", param=PARAM) from None

    @cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        if not self._end_ids:
            raise RequestError("structured output needs an end-of-sequence token, and the model has none", param=PARAM)
        try:
            return LLTokenizer(self._serialized, n_vocab=self._vocab_size, eos_token=list(self._end_ids))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # ValueError, or a Rust panic, which is no Exception
            raise RequestError(
                f"structured output does not work with this model's tokenizer: {error}", param=PARAM
            ) from None

    @cached_property
    def _serialized(self) -> str:
        return str(self._tokenizer.backend.to_str())

    @cached_property
    def _checker(self) -> GrammarChecker:
        return GrammarChecker(
            self._serialized,
            vocab_size=self._vocab_size,
            end_ids=self._end_ids,
            timeout_s=self._limits.compile_timeout_s,
        )

    def _special(self, text: str) -> int | None:
        token = self._tokenizer.backend.token_to_id(text)
        return token if token is not None and self._ll_tokenizer.is_special_token(token) else None


def size_of(params: StructuredOutputsParams) -> int:
    """Bytes of the text that a request brings."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(params))


def _texts(params: StructuredOutputsParams) -> tuple[str, ...]:
    given = getattr(params, params.kind)
    texts = given if isinstance(given, tuple) else (str(given),)
    return (*texts, params.whitespace_pattern or "", params.instead or "")


def _short(error: str) -> str:
    line = " ".join(error.replace("<non-verbose/>", "").split())
    if line == "NoExtensionBias":
        return "it matches nothing"
    return line if len(line) <= 500 else f"{line[:497]}..."
