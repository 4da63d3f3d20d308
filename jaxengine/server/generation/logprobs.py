"""Log probabilities in the forms of the API."""

from __future__ import annotations

from collections.abc import Sequence

from jaxengine.contract.outputs import Logprob, PositionLogprobs
from jaxengine.server.generation.protocol import PromptLogprobs, TokenLogprob, TokenScore, TopLogprob
from jaxengine.server.http.pieces import JsonArray, Slices, parts


def token_name(token_id: int, entry: Logprob, *, as_id: bool) -> str:
    """A token's text, or `token_id:N` where that is wanted or there is no text."""
    return f"token_id:{token_id}" if as_id or entry.decoded_token is None else entry.decoded_token


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


async def prompt_logprobs(positions: Sequence[PositionLogprobs | None], slices: Slices) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`."""
    written = JsonArray()
    for part in parts(positions):
        written.extend(
            [
                None if position is None else {str(i): _score(entry) for i, entry in position.items()}
                for position in part
            ]
        )
        await slices.turn()
    return written.as_list()


def _score(entry: Logprob) -> TokenScore:
    return {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": entry.decoded_token}
