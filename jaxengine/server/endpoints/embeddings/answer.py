"""The answer to an embedding request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.contract.arrays import Floats
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.errors import RequestError
from jaxengine.server.endpoints.embeddings.protocol import EmbeddingRequest
from jaxengine.server.pooling.answer import InputAnswer
from jaxengine.server.pooling.numbers import check_encoding, written
from jaxengine.server.service import Service


class EmbeddingAnswer(InputAnswer):
    """One body and its inputs."""

    def __init__(self, body: EmbeddingRequest, service: Service, response_id: str) -> None:
        super().__init__(body, service, response_id)
        self._embedding = body
        self._format = body.embedding_type or body.encoding_format

    @property
    def task(self) -> str:
        return "embed"

    def params(self) -> PoolingParams:
        body = self._embedding
        check_encoding(self._format, body.embed_dtype)
        params = super().params().replace(dimensions=body.dimensions)
        if body.normalized is not None:
            if params.activates not in (None, body.normalized):
                raise RequestError("normalized and use_activation are the same setting; give one", param="normalized")
            params = params.replace(use_activation=body.normalized)
        if body.truncate and params.truncate_prompt_tokens is None:
            params = params.replace(truncate_prompt_tokens=-1)
        return params

    def answer(self, found: Sequence[Floats], usage: Mapping[str, Any]) -> Mapping[str, Any]:
        endianness = self._embedding.endianness
        data = [
            {"object": "embedding", "index": index, "embedding": written(numbers, self._format, endianness)}
            for index, numbers in enumerate(found)
        ]
        return {**self.head, "data": data, "usage": usage}
