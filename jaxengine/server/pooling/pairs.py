"""From texts that are compared in pairs to their scores: by a model that reads both, or by their embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxengine.contract.arrays import Floats
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.errors import RequestError
from jaxengine.front.pairs import Pair, match_pairs, pair_prompts, pair_template
from jaxengine.front.pooled import similarity
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.server.pooling.answer import PooledAnswer, encoded_inputs
from jaxengine.server.pooling.protocol import PairRequest
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import require_tokenizer


class PairAnswer(PooledAnswer):
    """An answer of a score for each pair of `first` and `second` texts, one of the first or as many as of the second."""

    def __init__(
        self, body: PairRequest, service: Service, response_id: str, *, first: Sequence[str], second: Sequence[str]
    ) -> None:
        super().__init__(body, service, response_id)
        self._asked = body
        self._pairs: list[Pair] = match_pairs(first, second)
        self._texts = list(dict.fromkeys(text for pair in self._pairs for text in pair))

    @property
    def task(self) -> str:
        return "score"

    async def prompts(self, params: PoolingParams) -> Sequence[ParsedPrompt]:
        service, pooler = self.service, self.service.intake.facts.pooler
        if not pooler.scores:
            raise RequestError("this model cannot compare texts: it has more than one label", param="model")
        if pooler.classifies:
            return await service.in_thread(lambda: self._paired(params))
        for name in ("instruction", "chat_template", "chat_template_kwargs"):
            if getattr(self._asked, name):
                raise RequestError.of(name, "is for rerankers with a template, and this model compares embeddings")
        return await service.in_thread(lambda: encoded_inputs(self._texts, params, service))

    def scores(self, found: Sequence[Floats]) -> list[float]:
        """The score of each pair."""
        if self.service.intake.facts.pooler.classifies:
            return [float(numbers[0]) for numbers in found]
        of_text = dict(zip(self._texts, found, strict=True))
        return [similarity(of_text[first], of_text[second]) for first, second in self._pairs]

    def _paired(self, params: PoolingParams) -> list[ParsedPrompt]:
        service, body = self.service, self._asked
        if body.chat_template is not None and not service.options.api.trust_request_chat_template:
            raise RequestError.of(
                "chat_template",
                "is refused: this server does not run templates of requests (--trust-request-chat-template)",
            )
        tokenizer = require_tokenizer(service.tokenizer, "a score")
        own = pair_template(tokenizer, given=service.front.config.model.chat_template is not None)
        variables: Mapping[str, object] = body.chat_template_kwargs or {}
        return pair_prompts(
            tokenizer,
            self._pairs,
            template=body.chat_template or own,
            instruction=body.instruction,
            variables=variables,
            max_length=service.intake.longest_prompt(params),
        )
