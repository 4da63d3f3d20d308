"""The model's tokenizer as llguidance has it."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from jaxengine.errors import RequestError
from jaxengine.grammar.source import PARAM
from jaxengine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class GrammarTokenizer:
    """Made when it is first needed, for most starts need none: about a second, and 100 MB, at 150,000 tokens. Thread-safe.

    The engine compiles with it; the front has its checker for that, and needs no more than its attributes.

    Args:
        tokenizer: the model's.
        vocab_size: ids that the model has embeddings for; masks have that many bits.
        end_ids: ids that end a sequence; they are allowed exactly where the text may end.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self.vocab_size = vocab_size
        self.end_ids = end_ids
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    @property
    def of_llguidance(self) -> LLTokenizer:
        """What llguidance's matchers take.

        Raises:
            RequestError: the model has no end of sequence, or llguidance cannot use its tokenizer.
        """
        with self._lock:
            return self._made

    def prepare(self) -> None:
        """Make it now. What does not work is told to whoever needs it."""
        with suppress(RequestError):
            _ = self.of_llguidance

    def check(self) -> None:
        """Accept a model whose texts can end.

        Raises:
            RequestError: it has no end of sequence.
        """
        if not self.end_ids:
            raise RequestError("structured output needs an end-of-sequence token, and the model has none", param=PARAM)

    def token_id(self, text: str) -> int | None:
        """The id of a text that is one token; None for other texts."""
        token: int | None = self._tokenizer.backend.token_to_id(text)
        return token

    @cached_property
    def serialized(self) -> str:
        """tokenizer.json as text."""
        return str(self._tokenizer.backend.to_str())

    @cached_property
    def _made(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        self.check()
        try:
            return LLTokenizer(self.serialized, n_vocab=self.vocab_size, eos_token=list(self.end_ids))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # ValueError, or a Rust panic, which is no Exception
            raise RequestError(
                f"structured output does not work with this model's tokenizer: {error}", param=PARAM
            ) from None
