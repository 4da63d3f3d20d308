"""What `LLM` does with models that pool: embeddings, classes, scores, rewards, with vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxengine.api.checks import params_for
from jaxengine.contract.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PooledOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from jaxengine.contract.pooling_params import PoolingParams, check_task
from jaxengine.errors import RequestError
from jaxengine.front.adapters import LoRARequests
from jaxengine.front.long_inputs import joined, parts_of
from jaxengine.front.pairs import match_pairs, pair_prompts, pair_template
from jaxengine.front.pooled import data_of, similarity
from jaxengine.front.prompts import Prompt, split_prompts
from jaxengine.text.tokenizer import require_tokenizer

if TYPE_CHECKING:
    from jaxengine.front.front import Front

PoolingParamsFor = PoolingParams | Sequence[PoolingParams] | None
"""Parameters for all prompts, or one each; what the model was made for when left out."""


class PoolingMethods:
    """The base of `LLM` that has these methods."""

    _front: Front

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParamsFor = None,
        use_tqdm: bool = True,
        lora_request: LoRARequests = None,
    ) -> list[EmbeddingRequestOutput]:
        """Embed prompts: a vector each, pooled and scaled as the model was made for.

        An engine that generates embeds too, by the last token's hidden state; models that were made for it give embeddings that
        mean something.

        Args:
            prompts: as in `generate`.
            pooling_params: for all prompts, or one each.
            use_tqdm: show a progress bar.
            lora_request: the adapter to run with, or one (or None) for each prompt; needs `enable_lora=True`.

        Returns:
            One output per prompt, in their order.

        Raises:
            RequestError: a prompt or its parameters are invalid (the message says which); nothing has run.
            EngineDeadError: the engine failed or was closed.
        """
        outputs = self._pool(prompts, pooling_params, "embed", use_tqdm=use_tqdm, lora_request=lora_request)
        return [
            EmbeddingRequestOutput(
                output.request_id,
                EmbeddingOutput(data_of(output).tolist()),
                output.prompt_token_ids,
                output.num_cached_tokens,
            )
            for output in outputs
        ]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParamsFor = None,
        *,
        pooling_task: str | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequests = None,
    ) -> list[PooledOutput]:
        """What prompts are pooled to, as NumPy arrays: `[D]`, or `[tokens, D]` of the tasks `token_embed` and `token_classify`.

        Raises:
            RequestError: a task that the model has not (`pooling_task`, its first when left out), and as `embed`.
            EngineDeadError: as `embed`.
        """
        check_task(pooling_task)
        return self._pool(prompts, pooling_params, pooling_task, use_tqdm=use_tqdm, lora_request=lora_request)

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParamsFor = None,
        use_tqdm: bool = True,
        lora_request: LoRARequests = None,
    ) -> list[ClassificationRequestOutput]:
        """A number for each class of each prompt: probabilities, unless `use_activation` is false.

        Raises:
            RequestError, EngineDeadError: as `embed`.
        """
        outputs = self._pool(prompts, pooling_params, "classify", use_tqdm=use_tqdm, lora_request=lora_request)
        return [
            ClassificationRequestOutput(
                output.request_id,
                ClassificationOutput(data_of(output).tolist()),
                output.prompt_token_ids,
                output.num_cached_tokens,
            )
            for output in outputs
        ]

    def reward(
        self,
        prompts: Prompt | Sequence[Prompt],
        /,
        *,
        pooling_params: PoolingParamsFor = None,
        use_tqdm: bool = True,
        lora_request: LoRARequests = None,
    ) -> list[PooledOutput]:
        """The rewards of each token of each prompt, `[tokens, D]`, or of those that end a step.

        Raises:
            RequestError, EngineDeadError: as `embed`.
        """
        return self._pool(prompts, pooling_params, "token_classify", use_tqdm=use_tqdm, lora_request=lora_request)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequests = None,
        chat_template: str | None = None,
        instruction: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well texts fit: one with each of the others, or as many with as many.

        A model with one label reads both texts at once; of embeddings it is their cosine, of a vector for each token the sum over
        the tokens of the first text of the best products (late interaction).

        Args:
            data_1: one text (a query), or as many as `data_2`.
            data_2: the texts to compare with.
            use_tqdm: show a progress bar.
            pooling_params: for all of them.
            lora_request: the adapter to run with, or one (or None) for each prompt; needs `enable_lora=True`.
            chat_template: jinja text that makes one prompt of messages of the roles `query` and `document`.
            instruction: what the template says to the model, where it is made for it.
            chat_template_kwargs: more variables for the template.

        Raises:
            RequestError: the model cannot compare, and as `embed`.
            EngineDeadError: as `embed`.
        """
        if isinstance(lora_request, Sequence):
            raise RequestError.of("lora_request", "must be one LoRARequest: a score is of two texts")
        pairs = match_pairs(_texts("data_1", data_1), _texts("data_2", data_2))
        params = pooling_params or PoolingParams()
        front = self._front
        if not front.intake.facts.pooler.scores:
            raise RequestError("this model cannot compare texts: it has more than one label", param="data_1")
        tokenizer = require_tokenizer(front.tokenizer, "a score")
        if front.intake.facts.pooler.classifies:
            own = pair_template(tokenizer, given=front.config.model.chat_template is not None)
            prompts = pair_prompts(
                tokenizer,
                pairs,
                template=chat_template or own,
                instruction=instruction,
                variables=chat_template_kwargs,
                max_length=front.intake.longest_prompt(params),
            )
            outputs = self._pool(prompts, params, "score", use_tqdm=use_tqdm, lora_request=lora_request)
            return [_scored([output], float(data_of(output)[0])) for output in outputs]
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        pooled = self._pool(texts, params, "score", use_tqdm=use_tqdm, lora_request=lora_request)
        found = dict(zip(texts, pooled, strict=True))
        compared = [(found[query], found[document]) for query, document in pairs]
        return [_scored(pair, similarity(*map(data_of, pair))) for pair in compared]

    def _pool(
        self,
        prompts: Any,
        given: PoolingParamsFor,
        task: str | None,
        *,
        use_tqdm: bool,
        lora_request: LoRARequests = None,
    ) -> list[PooledOutput]:
        items, _ = split_prompts(prompts)
        each = params_for(PoolingParams, "pooling_params", PoolingParams() if given is None else given, len(items))
        params = [one if task is None else one.replace(task=task) for one in each]
        items = self._with_adapters(items, lora_request)
        intake = self._front.intake
        if not intake.facts.pooler.chunk_long:
            return self._run(items, params, use_tqdm=use_tqdm)
        parts = [parts_of(intake, item, one) for item, one in zip(items, params, strict=True)]
        raw = [replace(one, **part.params) for one, part in zip(params, parts, strict=True) for _ in part.prompts]
        outputs = iter(self._run([prompt for part in parts for prompt in part.prompts], raw, use_tqdm=use_tqdm))
        return [
            joined([next(outputs) for _ in part.prompts], intake.facts.pooler.wanted(one))
            for one, part in zip(params, parts, strict=True)
        ]

    def _run(self, prompts: Sequence[Any], params: Sequence[Any], *, use_tqdm: bool) -> list[Any]:
        raise NotImplementedError

    def _with_adapters(self, prompts: Sequence[Any], given: LoRARequests) -> list[Any]:
        raise NotImplementedError


def _scored(outputs: Sequence[PooledOutput], score: float) -> ScoringRequestOutput:
    ids = tuple(np.concatenate([output.prompt_token_ids for output in outputs]).tolist())
    cached = sum(output.num_cached_tokens for output in outputs)
    return ScoringRequestOutput(outputs[0].request_id, ScoringOutput(score), ids, cached)


def _texts(name: str, given: Any) -> list[str]:
    texts = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(f"{name} must be text or a list of texts", param=name)
    return texts
