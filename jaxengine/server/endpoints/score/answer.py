"""The answer to a request for scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.contract.arrays import Floats
from jaxengine.errors import RequestError
from jaxengine.server.endpoints.score.protocol import ScoreRequest
from jaxengine.server.pooling.answer import listed
from jaxengine.server.pooling.pairs import PairAnswer
from jaxengine.server.service import Service

SIDES = (("text_1", "data_1", "queries"), ("text_2", "data_2", "documents", "items"))


class ScoreAnswer(PairAnswer):
    """One body and its pairs."""

    def __init__(self, body: ScoreRequest, service: Service, response_id: str) -> None:
        first, second = (_side(body, names) for names in SIDES)
        super().__init__(body, service, response_id, first=first, second=second)

    def answer(self, found: Sequence[Floats], usage: Mapping[str, Any]) -> Mapping[str, Any]:
        data = [{"object": "score", "index": index, "score": score} for index, score in enumerate(self.scores(found))]
        return {**self.head, "data": data, "usage": usage}


def _side(body: ScoreRequest, names: Sequence[str]) -> list[str]:
    given = [name for name in names if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError(f"give one of {', '.join(names)}, got {', '.join(given) or 'none'}", param=names[0])
    return listed(getattr(body, given[0]), given[0])
