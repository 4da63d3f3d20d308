"""The answer to a request that names its task, or takes the model's first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.contract.arrays import Floats
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.server.endpoints.pooling.protocol import PoolingRequest
from jaxengine.server.pooling.answer import InputAnswer
from jaxengine.server.pooling.numbers import check_encoding, written
from jaxengine.server.service import Service


class PoolingAnswer(InputAnswer):
    """One body and its inputs."""

    def __init__(self, body: PoolingRequest, service: Service, response_id: str) -> None:
        super().__init__(body, service, response_id)
        self._pooling = body

    @property
    def task(self) -> str | None:
        return self._pooling.task

    def params(self) -> PoolingParams:
        body = self._pooling
        check_encoding(body.encoding_format, body.embed_dtype)
        return (
            super()
            .params()
            .replace(
                dimensions=body.dimensions, step_tag_id=body.step_tag_id, returned_token_ids=body.returned_token_ids
            )
        )

    def answer(self, found: Sequence[Floats], usage: Mapping[str, Any]) -> Mapping[str, Any]:
        form, endianness = self._pooling.encoding_format, self._pooling.endianness
        data = [
            {"object": "pooling", "index": index, "data": written(numbers, form, endianness)}
            for index, numbers in enumerate(found)
        ]
        return {**self.head, "data": data, "usage": usage}
