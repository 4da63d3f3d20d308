"""The answer to a request for an order of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.contract.arrays import Floats
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.server.endpoints.rerank.protocol import RerankRequest
from jaxengine.server.pooling.answer import listed
from jaxengine.server.pooling.pairs import PairAnswer
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import require_tokenizer


class RerankAnswer(PairAnswer):
    """One query and its documents; `version` is that of Cohere's interface, which tells more."""

    def __init__(self, body: RerankRequest, service: Service, response_id: str, *, version: str | None = None) -> None:
        self._rerank = body
        self._version = version
        documents = listed(body.documents, "documents")
        self._documents = [_text(f"documents[{number}]", document) for number, document in enumerate(documents)]
        if body.top_n is not None and body.top_n < 0:
            raise RequestError(f"top_n must be 0 (all) or more, got {body.top_n}", param="top_n")
        read = self._documents
        if body.max_tokens_per_doc is not None:
            read = _cut(read, body.max_tokens_per_doc, service)
        super().__init__(body, service, response_id, first=[_text("query", body.query)], second=read)

    def answer(self, found: Sequence[Floats], usage: Mapping[str, Any]) -> Mapping[str, Any]:
        scores = self.scores(found)
        best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: self._rerank.top_n or None]
        results = []
        for index in best:
            result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
            if self._rerank.return_documents is not False:
                result["document"] = {"text": self._documents[index]}
            results.append(result)
        answer = {"id": self.head["id"], "model": self.head["model"], "usage": usage, "results": results}
        if self._version is not None:
            answer["meta"] = {"api_version": {"version": self._version}, "billed_units": {"search_units": 1}}
        return answer


def _text(name: str, given: str | Mapping[str, Any]) -> str:
    """The text of a document or query: itself, Jina's `text`, or the text parts of vLLM's `content`."""
    if isinstance(given, str):
        return given
    if isinstance(text := given.get("text"), str):
        return text
    parts = given.get("content")
    if isinstance(parts, list) and parts and all(isinstance(part, Mapping) for part in parts):
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
            raise UnsupportedError(f"{name} has parts that are not text, which are not supported", param=name)
        return "\n".join(part["text"] for part in parts)
    raise RequestError(f"{name} must be text, or have text or content", param=name)


def _cut(texts: Sequence[str], most: int, service: Service) -> list[str]:
    """Texts of at most so many tokens."""
    if most < 1:
        raise RequestError(f"max_tokens_per_doc must be at least 1, got {most}", param="max_tokens_per_doc")
    tokenizer = require_tokenizer(service.tokenizer, "max_tokens_per_doc")
    cut = []
    for text in texts:
        offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
        cut.append(text if len(offsets) <= most else text[: offsets[most - 1][1]])
    return cut
