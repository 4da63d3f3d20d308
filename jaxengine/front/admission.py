"""Who may come in: what bounds the queue, a share of it, and the time that a request has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jaxengine.contract.metrics import SchedulerStats
from jaxengine.contract.request import Request
from jaxengine.errors import DeadlineError, OverloadedError, ShareFullError

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Limits; zero is none.

    `max_requests` and `max_tokens` bound what waits for its first step, `timeout_s` a request's whole life: queue, prompt and
    output. What requests in progress show has at most `max_media_bytes`: it is held until they end, to be computed again. A
    stream whose reader is behind by more than `max_unread` tokens for each of its sequences is paused until it has read them.
    With `fair` no share may fill more than half of the queue.
    """

    max_requests: int = 0
    max_tokens: int = 0
    max_media_bytes: int = 0
    max_unread: int = 0
    timeout_s: float = 0.0
    fair: bool = False

    def deadline(self, own: float | None) -> tuple[float, DeadlineError] | None:
        """In how many seconds a request that asks for `own` is over, and what it is told then; None for no limit.

        Raises:
            DeadlineError: it is over.
        """
        if own is not None and own <= 0:
            raise DeadlineError("the request was not done within its timeout")
        longest = self.timeout_s
        if own is not None and (not longest or own < longest):
            return own, DeadlineError(
                f"the request was not done within its timeout, of which {own:.3g} s were left to run it"
            )
        if not longest:
            return None
        return longest, DeadlineError(
            f"the request was not done within {longest:g} s, the longest that this server allows (--request-timeout)"
        )


class Gate:
    """Refuses requests for which there is no room, and counts those that the engine has not taken yet.

    Attributes:
        rejections: how many submissions were refused, by reason (`requests`, `tokens`, `media`, `share`, `draining`).
    """

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.rejections = {"requests": 0, "tokens": 0, "media": 0, "share": 0, "draining": 0}
        self._requests = self._tokens = 0
        self._draining = False

    @property
    def draining(self) -> bool:
        """Whether nobody is let in any more."""
        return self._draining

    def drain(self) -> None:
        """Let nobody in from now on."""
        self._draining = True

    def check(
        self,
        requests: Sequence[Request],
        queue: SchedulerStats,
        waiting_of: Callable[[str | None], int],
        media_bytes: Callable[[], int],
    ) -> None:
        """Let these requests in, or refuse them all. `waiting_of` counts the queued ones of a share, `media_bytes` what all show.

        Raises:
            OverloadedError: too much waits already, of all or of their share, or the end is near.
        """
        if self._draining:
            self._refuse("draining", "the server is shutting down and takes no new requests")
        waiting, limit = queue.num_waiting + self._requests, self.admission.max_requests
        if limit and waiting + len(requests) > limit:
            self._refuse("requests", f"{waiting} requests are queued and at most {limit} may be; try again later")
        if limit and self.admission.fair and waiting + len(requests) > limit // 2:
            self._check_shares(requests, limit // 2, waiting_of)
        waiting, limit = queue.num_waiting_tokens + self._tokens, self.admission.max_tokens
        if limit and waiting and waiting + num_tokens(requests) > limit:
            self._refuse("tokens", f"{waiting} prompt tokens are queued and at most {limit} may be; try again later")
        limit, shown = self.admission.max_media_bytes, num_media_bytes(requests)
        if limit and shown and (held := media_bytes()) and held + shown > limit:
            self._refuse(
                "media",
                f"requests in progress show {held / MIB:,.0f} MiB of pictures and sounds, this one {shown / MIB:,.0f} more, and "
                f"at most {limit / MIB:,.0f} may be held (--max-media-gb); try again later",
            )

    @contextmanager
    def entering(self, requests: Sequence[Request]) -> Iterator[None]:
        """Count them as waiting until the engine has taken or refused them."""
        tokens = num_tokens(requests)
        self._requests += len(requests)
        self._tokens += tokens
        try:
            yield
        finally:
            self._requests -= len(requests)
            self._tokens -= tokens

    def _check_shares(self, requests: Sequence[Request], limit: int, waiting_of: Callable[[str | None], int]) -> None:
        for share, count in Counter(request.share for request in requests).items():
            waiting = waiting_of(share)
            if waiting + count > limit:
                self._refuse(
                    "share",
                    f"{waiting} requests of this key or user are queued and at most {limit} may be; try again later",
                    ShareFullError,
                )

    def _refuse(self, reason: str, message: str, error: type[OverloadedError] = OverloadedError) -> None:
        self.rejections[reason] += 1
        raise error(message)


def num_tokens(requests: Sequence[Request]) -> int:
    """Of their prompts."""
    return sum(len(request.prompt_token_ids) for request in requests)


def num_media_bytes(requests: Sequence[Request]) -> int:
    """Of what they show, as encoders take it."""
    media = [request.media for request in requests if request.media is not None]
    return sum(item.patches.nbytes for each in media for item in each.items)
