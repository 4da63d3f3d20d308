"""On what terms a request is served: of whose share, until when, by which replica, and whether it outlives its engine."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jaxengine.errors import RequestError
from jaxengine.server.telemetry.tracing import Origin

TIMEOUT_HEADER = "x-request-timeout"
RANK_HEADER = "x-data-parallel-rank"

SECRET = secrets.token_bytes(16)
"""Makes the digests of this process its own: nobody finds a key by trying its digest."""


class Termed(Protocol):
    """What a body says about it. `timeout` is in seconds; without `resume` the request fails when its engine dies."""

    user: str | None
    safety_identifier: str | None
    timeout: float | None
    resume: bool | None


@dataclass(frozen=True, slots=True)
class Terms:
    """`share` is a digest, `until` a time of `time.monotonic`; None is as long as the server allows, and whichever replica.

    `resume` as in `contract.request.Request`.
    """

    share: str = ""
    until: float | None = None
    data_parallel_rank: int | None = None
    resume: bool = True

    @property
    def left_s(self) -> float | None:
        """Seconds that are left, perhaps none; None where there is no limit."""
        return None if self.until is None else self.until - time.monotonic()


def terms_of(body: Termed, origin: Origin, *, by: str) -> Terms:
    """The terms of a request, with shares `by` key or by user.

    The field `timeout` and the header `X-Request-Timeout` are seconds, of which the fewer count. What OpenAI's clients send of
    their own accord, `x-stainless-read-timeout`, is how long they wait for the next byte, which says nothing about the whole.

    Raises:
        RequestError: a header is no such number.
    """
    seconds = [] if body.timeout is None else [body.timeout]
    if (header := origin.headers.get(TIMEOUT_HEADER)) is not None:
        seconds.append(_number(header))
    return Terms(
        share=share_of(body, origin.headers, by=by),
        until=origin.began + min(seconds) if seconds else None,
        data_parallel_rank=_rank(origin.headers),
        resume=body.resume is not False,
    )


def share_of(body: Termed, headers: Mapping[str, str], *, by: str) -> str:
    """A digest of the key that a request bears, checked or not, and by user of the user that it names besides."""
    bearer = headers.get("authorization", "").partition(" ")[2].strip()
    parts = [bearer or headers.get("x-api-key", "").strip()]
    if by == "user":
        parts.append(body.safety_identifier or body.user or "")
    return digest(*parts)


def digest(*parts: str) -> str:
    """Tells apart what it is made of, and does not tell what that is."""
    keyed = hashlib.blake2b(key=SECRET, digest_size=16)
    for part in parts:
        keyed.update(hashlib.blake2b(part.encode(), digest_size=16).digest())
    return keyed.hexdigest()


def _rank(headers: Mapping[str, str]) -> int | None:
    """The replica that `X-data-parallel-rank` names, whether there is such a one or not."""
    header = headers.get(RANK_HEADER)
    if header is None:
        return None
    if not (header.isascii() and header.isdigit() and len(header) < 10):
        raise RequestError(
            f"X-data-parallel-rank must be the number of a replica, got {header[:40]!r}", param="data_parallel_rank"
        )
    return int(header)


def _number(header: str) -> float:
    try:
        seconds = float(header)
    except ValueError:
        seconds = 0.0
    if not (0 < seconds < math.inf):
        raise RequestError(
            f"X-Request-Timeout must be a positive number of seconds, got {header[:40]!r}", param="timeout"
        )
    return seconds
