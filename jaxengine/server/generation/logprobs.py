"""Log probabilities in the forms of the API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxengine.contract.outputs import Logprob, PositionLogprobs
from jaxengine.server.endpoints.chat.protocol import TokenLogprob, TopLogprob
from jaxengine.server.endpoints.completions.protocol import CompletionLogprobs
from jaxengine.server.generation.protocol import PromptLogprobs, TokenScore


def token_name(token_id: int, entry: Logprob, *, as_id: bool) -> str:
    """A token's text, or `token_id:N` where that is wanted or there is no text."""
    return f"token_id:{token_id}" if as_id or entry.decoded_token is None else entry.decoded_token


class CompletionLogprobsWriter:
    """Writes the log probabilities of one choice piece by piece; text offsets go on from piece to piece.

    `hidden` are the ids that the choice's text leaves out (special tokens): they have a name and no length.
    """

    def __init__(self, *, as_ids: bool, hidden: frozenset[int] = frozenset()) -> None:
        self._as_ids = as_ids
        self._hidden = hidden
        self._offset = 0

    def write(
        self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None], first_text: str = ""
    ) -> CompletionLogprobs:
        """The next tokens. A position is None for the first token of a prompt, whose text is `first_text`."""
        written: CompletionLogprobs = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token_id, position in zip(token_ids, positions, strict=True):
            if position is None:
                text = f"token_id:{token_id}" if self._as_ids else first_text
                length = len(first_text)
            else:
                entry = position[token_id]
                text = token_name(token_id, entry, as_id=self._as_ids)
                length = len(entry.decoded_token or "")
            written["text_offset"].append(self._offset)
            written["tokens"].append(text)
            written["token_logprobs"].append(None if position is None else position[token_id].logprob)
            written["top_logprobs"].append(None if position is None else self._top(position))
            self._offset += 0 if token_id in self._hidden else length
        return written

    def _top(self, position: PositionLogprobs) -> dict[str, float]:
        """By text. Of tokens with equal text the most likely counts, so that the best of all is always there."""
        top: dict[str, float] = {}
        for token_id, entry in position.items():
            name = token_name(token_id, entry, as_id=self._as_ids)
            top[name] = max(entry.logprob, top.get(name, entry.logprob))
        return top


def chat_logprobs(
    token_ids: Sequence[int], positions: Sequence[PositionLogprobs], *, top: int, as_ids: bool
) -> list[TokenLogprob]:
    """One entry per token, each with the `top` most likely ones (fewer where the vocabulary is smaller), -1 for all."""
    return [_token(token_id, position, top, as_ids) for token_id, position in zip(token_ids, positions, strict=True)]


def _token(token_id: int, position: PositionLogprobs, top: int, as_ids: bool) -> TokenLogprob:
    best = sorted(position.items(), key=lambda item: -item[1].logprob)[: None if top == -1 else top]
    ranked = [_ranked(other, entry, as_ids) for other, entry in best]
    return {**_ranked(token_id, position[token_id], as_ids), "top_logprobs": ranked}


def _ranked(token_id: int, entry: Logprob, as_ids: bool) -> TopLogprob:
    name = token_name(token_id, entry, as_id=as_ids)
    return {"token": name, "logprob": entry.logprob, "bytes": list(name.encode("utf-8", "replace"))}


def prompt_logprobs(positions: Iterable[PositionLogprobs | None] | None) -> PromptLogprobs | None:
    """vLLM's `prompt_logprobs`."""
    if positions is None:
        return None
    return [
        None if position is None else {str(i): _score(entry) for i, entry in position.items()} for position in positions
    ]


def _score(entry: Logprob) -> TokenScore:
    return {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": entry.decoded_token}
