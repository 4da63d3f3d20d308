"""Of every open request what was asked and what was delivered: enough to go on with it on another engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from jaxengine.contract.request import NOTHING_YIELDED, Request, SequenceHistory
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.errors import JaxEngineError

TO_COME = 256
"""Tokens that a sequence is expected to yield yet, where it may."""


class MissingTokensError(JaxEngineError):
    """Tokens of a request were lost between the engine and the front; what follows them would be wrong."""


@dataclass(slots=True)
class _Delivered:
    """One sequence, as far as it was delivered."""

    tokens: list[int] = field(default_factory=list)
    num_prompt_logprobs: int = 0
    admission: Admission = field(default_factory=Admission)
    ended: bool = False

    def history(self) -> SequenceHistory:
        return SequenceHistory(tuple(self.tokens), self.num_prompt_logprobs, self.admission, self.ended)


class Entry:
    """One open request. It holds token ids and counts, never text. `paused`: nobody reads what comes of it."""

    __slots__ = ("_sequences", "paused", "request", "request_id")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.request_id = request.request_id
        self.paused = False
        self._sequences = [_Delivered() for _ in range(request.sampling.n)]

    @property
    def num_running(self) -> int:
        """Sequences that have not ended."""
        return sum(not sequence.ended for sequence in self._sequences)

    @property
    def ended(self) -> bool:
        """Whether all its sequences have."""
        return all(sequence.ended for sequence in self._sequences)

    @property
    def load(self) -> int:
        """What it weighs on its engine: tokens of the prompt and of the output that was delivered, and some of those to come."""
        most = self.request.max_tokens
        outputs = (
            len(sequence.tokens) + (0 if sequence.ended else min(TO_COME, most - len(sequence.tokens)))
            for sequence in self._sequences
        )
        return len(self.request.prompt_token_ids) + sum(outputs)

    @property
    def progress(self) -> int:
        """How far it has come: output tokens and log probabilities of the prompt that were delivered."""
        return sum(len(sequence.tokens) + sequence.num_prompt_logprobs for sequence in self._sequences)

    def resumed(self) -> Request:
        """The request as another engine goes on with it."""
        history = tuple(sequence.history() for sequence in self._sequences)
        return replace(self.request, history=() if all(each == NOTHING_YIELDED for each in history) else history)

    def take(self, update: SequenceUpdate) -> SequenceUpdate | None:
        """Note what is delivered with this update; of it what was not delivered before, None where that is nothing.

        Raises:
            MissingTokensError: it does not follow what was delivered last.
        """
        sequence = self._sequences[update.index]
        known = len(sequence.tokens) - update.position
        if sequence.ended:
            return None
        if known:
            if known < 0:
                raise MissingTokensError(f"{-known} tokens of request {self.request_id} were lost on their way")
            if known >= len(update.token_ids) and update.finish_reason is None:
                return None
            update = update._replace(
                token_ids=update.token_ids[known:], logprobs=update.logprobs[known:], position=len(sequence.tokens)
            )
        sequence.tokens += update.token_ids
        sequence.num_prompt_logprobs += len(update.prompt_logprobs)
        sequence.admission = update.admission
        sequence.ended = update.finish_reason is not None
        return update

    def gain(self, index: int, token: int, position: int, admission: Admission) -> bool:
        """Note that a sequence that runs was delivered this token; False, and nothing noted, where it is not the next one."""
        sequence = self._sequences[index]
        if sequence.ended or len(sequence.tokens) != position:
            return False
        sequence.tokens.append(token)
        sequence.admission = admission
        return True

    def stop(self, index: int) -> None:
        """The front has ended this sequence, because of its text."""
        self._sequences[index].ended = True


class Book:
    """The open requests, in the order in which they came."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def open(self, request: Request) -> Entry:
        """Begin an entry."""
        entry = self._entries[request.request_id] = Entry(request)
        return entry

    def find(self, request_id: str) -> Entry | None:
        """The entry of an open request."""
        return self._entries.get(request_id)

    def close(self, entry: Entry) -> bool:
        """Forget a request, which has ended or is not wanted; False when it was closed before."""
        if self._entries.get(entry.request_id) is not entry:
            return False
        del self._entries[entry.request_id]
        return True
