"""The answer to Cohere's request for embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.arrays import Floats
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.request import Request as EngineRequest
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.server.endpoints.embed.protocol import EmbedRequest
from jaxengine.server.http.body import read_as
from jaxengine.server.http.names import called
from jaxengine.server.pooling.answer import PooledAnswer, encoded_inputs, listed
from jaxengine.server.pooling.numbers import written
from jaxengine.server.pooling.protocol import PooledRequest
from jaxengine.server.service import Service

PROMPTS = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
"""By Cohere's type of an input, names under which models' files have a prompt for it."""

SMALLEST = 1e-30
"""An embedding of zeros stays one."""


def in_bytes(data: Floats) -> NDArray[np.int16]:
    """Integers from -127 to 127 that point where an embedding does: its largest number is one of the ends."""
    largest = max(float(np.abs(data).max(initial=0.0)), SMALLEST)
    integers: NDArray[np.int16] = np.rint(data * (127.0 / largest)).astype(np.int16)
    return integers


TYPES: Mapping[str, Callable[[Floats], Any]] = {
    "float": lambda data: written(data, None, None),
    "base64": lambda data: written(data, "base64", None),
    "int8": lambda data: in_bytes(data).tolist(),
    "uint8": lambda data: (in_bytes(data) + 128).tolist(),
    "ubinary": lambda data: np.packbits(data > 0).tolist(),
    "binary": lambda data: (np.packbits(data > 0).astype(np.int16) - 128).tolist(),
}
"""What an embedding is written as: bits are the signs, eight in a number; a uint8 is the int8 and 128."""


class CohereAnswer(PooledAnswer):
    """One body and its texts."""

    def __init__(self, body: EmbedRequest, service: Service, response_id: str) -> None:
        pooled = read_as(PooledRequest, {"model": body.model, "priority": body.priority, **(body.model_extra or {})})
        super().__init__(pooled, service, response_id)
        self._embed = body
        self._types = body.embedding_types or ["float"]
        if unknown := [name for name in self._types if name not in TYPES]:
            raise UnsupportedError(
                f"embedding_types has {unknown[0]!r}, which is not supported; there are {', '.join(TYPES)}",
                param="embedding_types",
            )
        if body.images:
            raise UnsupportedError("images are not supported: only text models are built", param="images")
        self._texts = _texts(body)

    @property
    def task(self) -> str:
        return "embed"

    async def prepare(self) -> list[EngineRequest]:
        with called({"dimensions": "output_dimension", "truncate_prompt_tokens": "max_tokens"}):
            return await super().prepare()

    def params(self) -> PoolingParams:
        body = self._embed
        if body.truncate not in (None, "NONE", "END"):
            raise UnsupportedError(f"truncate must be NONE or END, got {body.truncate!r}", param="truncate")
        params = super().params()
        cut = params.truncate_prompt_tokens if body.max_tokens is None else body.max_tokens
        if cut is None and body.truncate != "NONE":
            cut = -1
        return params.replace(dimensions=body.output_dimension, truncate_prompt_tokens=cut)

    async def prompts(self, params: PoolingParams) -> Sequence[ParsedPrompt]:
        before = self._prompt()
        texts = [f"{before}{text}" for text in self._texts]
        return await self.service.in_thread(lambda: encoded_inputs(texts, params, self.service))

    def answer(self, found: Sequence[Floats], usage: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "id": self.head["id"],
            "response_type": "embeddings_by_type",
            "embeddings": {name: [TYPES[name](numbers) for numbers in found] for name in self._types},
            "texts": self._texts,
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"input_tokens": usage["prompt_tokens"]},
            },
        }

    def _prompt(self) -> str:
        """What the model's files say is put before such a text."""
        prompts, kind = self.service.intake.facts.pooler.prompts, self._embed.input_type
        if kind is None:
            return ""
        names = PROMPTS.get(kind, (kind,))
        if kind not in PROMPTS and kind not in prompts:
            allowed = ", ".join(dict.fromkeys((*PROMPTS, *prompts)))
            raise RequestError(f"input_type must be one of {allowed}, got {kind[:50]!r}", param="input_type")
        return next((prompts[name] for name in names if name in prompts), "")


def _texts(body: EmbedRequest) -> list[str]:
    if (body.texts is None) == (body.inputs is None):
        raise RequestError("give either texts or inputs", param="texts")
    if body.texts is not None:
        return listed(body.texts, "texts")
    texts = []
    for number, entry in enumerate(listed(body.inputs, "inputs")):
        parts = entry.get("content")
        if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
            raise RequestError(f"inputs[{number}] must have a list of parts as its content", param="inputs")
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
            raise UnsupportedError(f"inputs[{number}] has parts that are not text", param="inputs")
        texts.append("\n".join(part["text"] for part in parts))
    return texts
