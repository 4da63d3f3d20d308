"""The way in: a prompt and its parameters become a `Request` in which nothing is left to decide or to go wrong."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.pooling import Finish, Pooled
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.request import Request, ThinkingBudget
from jaxengine.contract.rows import Align
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.errors import ConfigError, RequestError, UnsupportedError
from jaxengine.front.checks import check_generates, check_params, check_prompt, check_room, handover, output_room
from jaxengine.front.prompts import ParsedPrompt, no_eyes, parse_prompt
from jaxengine.text.generation_config import GenerationDefaults
from jaxengine.text.tokenizer import Tokenizer, require_tokenizer

if TYPE_CHECKING:
    from jaxengine.front.showing import Showing
    from jaxengine.grammar.sources import GrammarSources

MAX_BAD_WORDS_TOKENS = 1024

Params = SamplingParams | PoolingParams
"""What is wanted of a prompt: a continuation, or what it is pooled to."""

NEUTRAL = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
"""The sampling of a request that samples nothing."""


class Intake:
    """Validates prompts against one engine and turns them into requests.

    Args:
        tokenizer: None when the engine works on ids only.
        facts: of the engine.
        max_logprobs: most log probabilities a request may ask for; -1 is no limit.
        seed: what the seeds of requests without one are derived from, together with their number, so that runs repeat.
        defaults: the model's generation defaults.
        grammars: tries structured outputs; None when the engine works on ids only.
        showing: the way in for what prompts show; None when the model neither sees nor hears.
        clock: read for `Request.arrival`.

    Attributes:
        facts: of the engine.
        showing: as given.
        end_token_ids: every id that ends a sequence of its own accord, the tokenizer's first.
        default_params: sampling for requests that name none: the model's defaults over vLLM's.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        facts: EngineFacts,
        *,
        max_logprobs: int = 20,
        seed: int = 0,
        defaults: GenerationDefaults | None = None,
        grammars: GrammarSources | None = None,
        showing: Showing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self.facts = facts
        self._max_logprobs = max_logprobs
        self._seed = seed
        self._defaults = defaults or GenerationDefaults()
        self._grammars = grammars
        self.showing = showing
        self._clock = clock
        self._count = 0
        self._lock = threading.Lock()
        self.end_token_ids = end_token_ids(tokenizer, self._defaults)
        self._eos_token_id = self.end_token_ids[0] if self.end_token_ids else None
        self._more_eos_ids = self.end_token_ids[1:]
        try:
            self.default_params = SamplingParams.from_optional(**self._defaults.sampling)
        except RequestError as error:
            raise ConfigError(f"generation_config.json or override_generation_config: {error}") from error

    def prepare(
        self, prompts: Sequence[Any], params: Sequence[Params], *, priorities: Sequence[int] | None = None
    ) -> list[Request]:
        """Requests for many prompts, or none: all are checked before any is returned. Their ids are running numbers.

        Raises:
            RequestError: a prompt or its parameters are invalid; with more than one prompt the message begins with which.
        """
        several = len(prompts) > 1
        parsed = []
        for index, prompt in enumerate(prompts):
            with naming(index, several=several):
                parsed.append(parse_prompt(prompt))
        parsed = self._encode_all(parsed, [self._longest(each) for each in params])
        for index, prompt in enumerate(parsed):
            with naming(index, several=several):
                parsed[index] = self._show(prompt, params[index])
        requests = []
        for index, prompt in enumerate(parsed):
            number = self._count + index
            priority = 0 if priorities is None else priorities[index]
            with naming(index, several=several):
                requests.append(self._request(prompt, params[index], str(number), number, priority))
        self._count += len(requests)
        return requests

    def request(
        self,
        prompt: Any,
        params: Params,
        *,
        request_id: str,
        priority: int = 0,
        thinking: ThinkingBudget | None = None,
    ) -> Request:
        """One request under the caller's id, with what its `thinking_token_budget` comes to.

        May be called from several threads at once.

        Raises:
            RequestError: the prompt or the parameters are invalid.
        """
        parsed = self._show(self.encoded(prompt, params), params)
        with self._lock:
            number, self._count = self._count, self._count + 1
        return self._request(parsed, params, request_id, number, priority, thinking)

    def aligned(self, prompt: ParsedPrompt, align: Align, *, request_id: str, priority: int = 0) -> Request:
        """A request for when a text is said, whose ids end the prompt, in the sound that it shows.

        Raises:
            RequestError: the prompt is invalid.
        """
        pooling = Pooled(task="align", whole=True, finish=Finish.NONE, align=align)
        return self._pooling_request(self._show(prompt, NEUTRAL), pooling, request_id, priority)

    def encoded(self, prompt: Any, params: Params) -> ParsedPrompt:
        """A prompt with its token ids, however long.

        Raises:
            RequestError: it is none.
        """
        [parsed] = self._encode_all([parse_prompt(prompt)], [self._longest(params)])
        return parsed

    def longest_prompt(self, params: PoolingParams) -> int | None:
        """How many tokens of a prompt to keep, if they are not all kept.

        Raises:
            RequestError: more than the model takes.
        """
        length, limit = params.truncate_prompt_tokens, self.facts.max_model_len
        if length is not None and length > limit:
            raise RequestError(
                f"truncate_prompt_tokens must be from 1 to max_model_len ({limit}), or -1, got {length}",
                param="truncate_prompt_tokens",
            )
        return limit if length == -1 else length

    def _show(self, prompt: ParsedPrompt, params: Params) -> ParsedPrompt:
        """A prompt of ids with its items, and their places among the ids.

        Raises:
            RequestError: they cannot be shown to this model.
        """
        needed = None if self.showing is None else self.showing.processor.needs
        if needed is not None and prompt.media is None and [item.modality for item in prompt.shown] != [needed]:
            raise RequestError(
                f"a prompt of this model is of one {needed}: give it as multi_modal_data={{'{needed}': ...}}",
                param="multi_modal_data",
            )
        if not prompt.shown:
            return prompt
        if self._longest(params) is not None:
            raise RequestError.of("truncate_prompt_tokens", "is for prompts that show nothing")
        if self.showing is None:
            raise no_eyes(prompt.shown)
        items = self.showing.prepare(prompt.shown, prompt.mm_processor_kwargs)
        ids, media = self.showing.placed(prompt.token_ids or (), items)
        return replace(prompt, token_ids=ids, shown=(), media=media)

    def _longest(self, params: Params) -> int | None:
        return self.longest_prompt(params) if isinstance(params, PoolingParams) else None

    def _encode_all(self, prompts: Sequence[ParsedPrompt], longest: Sequence[int | None]) -> list[ParsedPrompt]:
        """The prompts with ids, at most as many as their entry of `longest` says. Texts of one limit are encoded together."""
        ids = [(prompt.token_ids or ())[:limit] for prompt, limit in zip(prompts, longest, strict=True)]
        texts: dict[int | None, list[int]] = defaultdict(list)
        for index, prompt in enumerate(prompts):
            if prompt.token_ids is None:
                texts[longest[index]].append(index)
        for limit, indices in texts.items():
            tokenizer = require_tokenizer(self._tokenizer, "a text prompt")
            special = self.showing is None or self.showing.processor.special
            given = [self._text(prompts[index]) for index in indices]
            encoded = tokenizer.encode_batch(given, add_special_tokens=special, max_length=limit)
            for index, found in zip(indices, encoded, strict=True):
                ids[index] = tuple(found)
        return [replace(prompt, token_ids=found) for prompt, found in zip(prompts, ids, strict=True)]

    def _text(self, prompt: ParsedPrompt) -> str:
        text = _sound(prompt.text or "")
        return self.showing.surrounded(text) if prompt.shown and self.showing is not None else text

    def _request(
        self,
        prompt: ParsedPrompt,
        params: Params,
        request_id: str,
        number: int,
        priority: int,
        thinking: ThinkingBudget | None = None,
    ) -> Request:
        """The request of a prompt that has ids, the engine's `number`-th."""
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise RequestError(f"priority must be an integer (lower runs first), got {priority!r}", param="priority")
        if isinstance(params, PoolingParams):
            return self._pooling_request(prompt, self.facts.pooler.wanted(params), request_id, priority)
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        ids = prompt.token_ids or ()
        check_generates(self.facts)
        check_prompt(ids, self.facts)
        check_room(len(ids), params, self.facts)
        check_params(params, self.facts, max_logprobs=self._max_logprobs)
        if params.stop:
            require_tokenizer(self._tokenizer, "stop strings (stop_token_ids does not)")
        if params.thinking_token_budget is not None and thinking is None:
            raise UnsupportedError(
                "thinking_token_budget is for a server with --reasoning-parser, which knows where thoughts begin and end",
                param="thinking_token_budget",
            )
        return Request(
            request_id=request_id,
            prompt_token_ids=ids,
            sampling=copy(params),  # which stays as it is now, whatever its owner assigns
            max_tokens=output_room(len(ids), params, self.facts, most=self._defaults.max_new_tokens),
            prompt=prompt.text,
            eos_token_id=self._eos_token_id,
            more_eos_ids=self._more_eos_ids,
            bad_words_token_ids=self._bad_words(params),
            grammar=self._grammar(params),
            thinking=thinking,
            speech=prompt.speech,
            adapter=prompt.adapter,
            media=prompt.media,
            cache_salt=prompt.cache_salt,
            priority=priority,
            seed=params.seed if params.seed is not None else derived_seed(self._seed, number),
            arrival=self._clock(),
            transfer=params.transfer,
            handover=handover(params.transfer, self.facts),
        )

    def _pooling_request(self, prompt: ParsedPrompt, pooling: Pooled, request_id: str, priority: int) -> Request:
        ids = prompt.token_ids or ()
        check_prompt(ids, self.facts)
        return Request(
            request_id=request_id,
            prompt_token_ids=ids,
            sampling=NEUTRAL,
            max_tokens=1,
            prompt=prompt.text,
            adapter=prompt.adapter,
            media=prompt.media,
            cache_salt=prompt.cache_salt,
            priority=priority,
            arrival=self._clock(),
            pooling=pooling,
            second_from=prompt.second_from if self.facts.pooler.tells_apart else None,
            second_offset=self.facts.vocab_size,
        )

    def _grammar(self, params: SamplingParams) -> str | None:
        if params.structured_outputs is None:
            return None
        require_tokenizer(self._tokenizer, "structured_outputs")
        assert self._grammars is not None
        return self._grammars.source(params.structured_outputs)

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Each word as it is tokenised at the start of a text and after a space."""
        if not params.bad_words:
            return ()
        tokenizer = require_tokenizer(self._tokenizer, "bad_words")
        forms = [form for word in params.bad_words for form in (word.lstrip(), f" {word.lstrip()}")]
        most = MAX_BAD_WORDS_TOKENS
        if any(tokenizer.certainly_exceeds(form, most) for form in forms):
            raise RequestError(f"bad_words come to more than {most} tokens, which are allowed", param="bad_words")
        encoded = tokenizer.encode_batch(forms, add_special_tokens=False)
        words = tuple(dict.fromkeys(tuple(ids) for ids in encoded if ids))
        total = sum(map(len, words))
        if total > most:
            raise RequestError(f"bad_words come to {total} tokens; at most {most} are allowed", param="bad_words")
        return words


def end_token_ids(tokenizer: Tokenizer | None, defaults: GenerationDefaults) -> tuple[int, ...]:
    """Every id that ends a sequence of its own accord, the tokenizer's first."""
    own = tokenizer.eos_token_id if tokenizer is not None else None
    return tuple(dict.fromkeys((*(() if own is None else (own,)), *defaults.eos_token_ids)))


@contextmanager
def naming(index: int, *, several: bool, what: str = "prompt") -> Iterator[None]:
    """Let a `RequestError` say which of several prompts, or of what else, it is about."""
    try:
        yield
    except RequestError as error:
        if not several:
            raise
        raise type(error)(f"{what} {index}: {error}", param=error.param) from error


def derived_seed(engine_seed: int, number: int) -> int:
    """A seed of 62 bits for the engine's `number`-th request, so that seed + n stays within 63."""
    digest = hashlib.blake2b(f"{engine_seed}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def _sound(text: str) -> str:
    """The tokenizer takes no lone surrogates (bytes that Python could not decode); they become replacement characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if not text.isascii() else text
