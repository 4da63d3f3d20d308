"""The front's side of structured output: what users ask for becomes a source that has been tried.

llguidance is loaded with the first grammar: most starts need none.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import cached_property

from jaxengine.contract.answer_form import AnswerForm
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import JaxEngineError, RequestError
from jaxengine.grammar.checking import GrammarChecker
from jaxengine.grammar.once import Once
from jaxengine.grammar.source import PARAM, grammar_source
from jaxengine.grammar.tokenizer import GrammarTokenizer

logger = logging.getLogger("jaxengine")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """What one request may cost: the size of its grammar in bytes, and seconds to compile it.

    `cache_size` sources are kept, as long as what they were made from is at most `cache_bytes` together.
    """

    max_bytes: int = 128 * 1024
    compile_timeout_s: float = 5.0
    cache_size: int = 256
    cache_bytes: int = 2 << 20


class GrammarSources:
    """The grammars that requests may use, as text. Thread-safe; `source` blocks and belongs on no event loop.

    Each is compiled first in a process of its own, which one that hangs or crashes the compiler takes along: its sender is told,
    and nobody else notices.

    Args:
        tokenizer: the model's.
        limits: what a request may cost.

    Attributes:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: GrammarTokenizer, limits: GrammarLimits | None = None) -> None:
        self._limits = limits or GrammarLimits()
        self.tokenizer = tokenizer
        self._tried = Once(
            self._try, size=size_of, max_entries=self._limits.cache_size, max_bytes=self._limits.cache_bytes
        )
        self._starting = threading.Lock()
        self._special = frozenset[int]()

    def source(self, params: StructuredOutputsParams) -> str:
        """The grammar of `params` as `GrammarCompiler` takes it: kept, from another caller who is trying it, or tried here.

        Raises:
            RequestError: it is malformed, matches nothing, uses what llguidance does not support, or is over a limit.
        """
        self._check_size(params)
        return self._tried.get(params)

    def is_ready(self, params: StructuredOutputsParams) -> bool:
        """Whether `source` would return, or raise, at once."""
        return self._tried.is_ready(params)

    def warm_up(self) -> None:
        """Start the checker process before the first request; it takes about a second for 150,000 tokens.

        Raises:
            RequestError: the model has no end of sequence, or llguidance cannot use its tokenizer.
            CheckerError: the process does not come up.
        """
        with self._starting:
            self.tokenizer.check()
            self._special = self._checker.start()

    def prepare(self) -> None:
        """The same where nobody asks yet: what does not work is told in the log."""
        try:
            self.warm_up()
        except JaxEngineError as error:
            logger.warning("requests for structured output will be refused: %s", error)

    def close(self) -> None:
        """End the checker process."""
        if "_checker" in self.__dict__:
            self._checker.close()

    def _try(self, params: StructuredOutputsParams) -> str:
        self.warm_up()
        source = grammar_source(params, special=self._special_token)
        if (error := self._checker.check(source)) is not None:
            raise RequestError(f"structured_outputs.{params.kind} cannot be used: {short(error)}", param=PARAM)
        return source

    def _special_token(self, text: str) -> int | None:
        token = self.tokenizer.token_id(text)
        return token if token in self._special else None

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
    def _checker(self) -> GrammarChecker:
        return GrammarChecker(
            self.tokenizer.serialized,
            vocab_size=self.tokenizer.vocab_size,
            end_ids=self.tokenizer.end_ids,
            timeout_s=self._limits.compile_timeout_s,
        )


def size_of(params: StructuredOutputsParams) -> int:
    """Bytes of the text that a request brings."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(params))


def _texts(params: StructuredOutputsParams) -> tuple[str, ...]:
    given = getattr(params, params.kind)
    texts = given if isinstance(given, tuple) else (str(given),)
    instead = params.instead if isinstance(params, AnswerForm) else None
    return (*texts, params.whitespace_pattern or "", instead or "")


def short(error: str) -> str:
    """An error of llguidance in one line of at most 500 characters."""
    line = " ".join(error.replace("<non-verbose/>", "").split())
    if line == "NoExtensionBias":
        return "it matches nothing"
    return line if len(line) <= 500 else f"{line[:497]}..."
