"""Log probabilities as completions have them: four lists, a place in each for every token."""

from __future__ import annotations

from collections.abc import Sequence

from jaxengine.contract.outputs import PositionLogprobs
from jaxengine.server.endpoints.completions.protocol import CompletionLogprobs
from jaxengine.server.generation.logprobs import token_name
from jaxengine.server.generation.offsets import TextOffsets
from jaxengine.server.http.pieces import JsonArray


class CompletionLogprobsWriter:
    """Writes the log probabilities of one choice piece by piece; text offsets go on from piece to piece.

    `offsets` know the choice's text.
    """

    def __init__(self, *, as_ids: bool, offsets: TextOffsets) -> None:
        self._as_ids = as_ids
        self._offsets = offsets

    def write(
        self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None], first_text: str = ""
    ) -> CompletionLogprobs:
        """The next tokens. A position is None for the first token of a prompt, whose text is `first_text`."""
        written: CompletionLogprobs = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token_id, position in zip(token_ids, positions, strict=True):
            if position is None:
                name = f"token_id:{token_id}" if self._as_ids else first_text
                text = first_text
            else:
                entry = position[token_id]
                name = token_name(token_id, entry, as_id=self._as_ids)
                text = entry.decoded_token or ""
            written["text_offset"].append(self._offsets.place(token_id, text))
            written["tokens"].append(name)
            written["token_logprobs"].append(None if position is None else position[token_id].logprob)
            written["top_logprobs"].append(None if position is None else self._top(position))
        return written

    def _top(self, position: PositionLogprobs) -> dict[str, float]:
        """By text. Of tokens with equal text the most likely counts, so that the best of all is always there."""
        top: dict[str, float] = {}
        for token_id, entry in position.items():
            name = token_name(token_id, entry, as_id=self._as_ids)
            top[name] = max(entry.logprob, top.get(name, entry.logprob))
        return top


class LogprobColumns:
    """The four lists of many tokens, kept as JSON."""

    def __init__(self) -> None:
        self._columns = {name: JsonArray() for name in CompletionLogprobs.__annotations__}

    def extend(self, written: CompletionLogprobs) -> None:
        """Add what was written of the next tokens."""
        for name, column in self._columns.items():
            column.extend(written[name])  # type: ignore[literal-required]

    def whole(self) -> CompletionLogprobs:
        """All of it, for an answer."""
        return {name: column.as_list() for name, column in self._columns.items()}  # type: ignore[return-value]
