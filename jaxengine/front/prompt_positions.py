"""The log probabilities of a prompt as they came, each position made when it is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

from jaxengine.contract.batch import RowLogprobs
from jaxengine.contract.outputs import PositionLogprobs
from jaxengine.contract.request import Request
from jaxengine.front.logprobs import TEXT_CONTEXT, position_logprobs
from jaxengine.text.tokenizer import Tokenizer


class PromptPositions(Sequence[PositionLogprobs | None]):
    """A row for each position but the first, which nothing precedes.

    Long prompts with many log probabilities are millions of objects once they are made: whoever reads them part by part has few.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._rows: list[RowLogprobs] = []

    def extend(self, rows: Iterable[RowLogprobs]) -> None:
        """Add those of the next positions."""
        self._rows += rows

    def __len__(self) -> int:
        return 1 + len(self._rows)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[PositionLogprobs | None]: ...

    def __getitem__(self, index: int | slice) -> PositionLogprobs | list[PositionLogprobs | None] | None:
        """One position, or several as a list."""
        places = range(len(self))[index]
        return list(map(self._position, places)) if isinstance(places, range) else self._position(places)

    def _position(self, at: int) -> PositionLogprobs | None:
        if at == 0:
            return None
        prompt, count = self._request.prompt_token_ids, self._request.sampling.prompt_logprobs
        assert count is not None, "log probabilities of the prompt came that nobody asked for"
        context = prompt[max(0, at - TEXT_CONTEXT) : at]
        return position_logprobs(
            self._rows[at - 1], prompt[at], count=count, context=context, tokenizer=self._tokenizer
        )
