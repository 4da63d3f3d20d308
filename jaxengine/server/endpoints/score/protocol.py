"""`/score`: the request and the answer."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from jaxengine.server.http.fields import Texts
from jaxengine.server.pooling.protocol import PairRequest, PooledUsage


class ScoreRequest(PairRequest):
    """Say how well texts fit: one with each of the others, or as many with as many.

    The two sides are `text_1` and `text_2`, `data_1` and `data_2`, `queries` and `documents`, or `queries` and `items`.
    """

    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    data_1: str | Texts | None = None
    data_2: str | Texts | None = None
    queries: str | Texts | None = None
    documents: str | Texts | None = None
    items: str | Texts | None = None


class Score(TypedDict):
    """How well one pair fits."""

    object: Literal["score"]
    index: int
    score: float


class Scores(TypedDict):
    """The answer, with `data` in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PooledUsage
