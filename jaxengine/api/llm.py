"""`LLM`: all tasks in one process, with vLLM's names."""

from __future__ import annotations

import dataclasses
import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jaxengine.api.checks import params_for
from jaxengine.api.operation import OperationMethods
from jaxengine.api.pooling import PoolingMethods
from jaxengine.api.start import start_engine
from jaxengine.contract.adapters import Adapter
from jaxengine.contract.lora_request import LoRARequest
from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.front.adapters import KnownAdapters, LoRARequests, requests_for, with_adapters
from jaxengine.front.beam_search import Beams, BeamSearchOutput, beam_step, search_beams
from jaxengine.front.inline_client import InlineClient
from jaxengine.front.intake import naming
from jaxengine.front.offline import run_to_end
from jaxengine.front.postprocess import Postprocessor
from jaxengine.front.prompts import ParsedPrompt, Prompt, no_eyes, split_prompts
from jaxengine.media.parts import lift
from jaxengine.options.names import reasons
from jaxengine.text.placeholders import NO_PLACEHOLDERS
from jaxengine.text.tokenizer import Tokenizer, require_tokenizer

if TYPE_CHECKING:
    from jaxengine.contract.sampling_params import BeamSearchParams
    from jaxengine.front.intake import Params
    from jaxengine.front.showing import Showing
    from jaxengine.startup.engine import HostedEngine

logger = logging.getLogger("jaxengine")

Messages = Sequence[Mapping[str, Any]]
"""One conversation: dicts with `role` and `content`."""


class LLM(PoolingMethods, OperationMethods):
    """A model, ready to generate, or to embed, classify, score or reward.

    Args:
        model: checkpoint directory or hub id; the embedded model when left out.
        options: any option of `EngineConfig`, by name, such as `max_model_len`, `dtype` or `tensor_parallel_size`.

    Raises:
        ConfigError: an option that is unknown or not allowed; nothing has been loaded.
        CheckpointError: the model's files are missing or damaged.
        CapacityError: the model or its KV cache does not fit.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._use(start_engine(model, options))
        gc.collect()
        gc.freeze()  # what the start has left lives as long as the engine; to look through it took an encoder 5% of its time

    @classmethod
    def from_engine(cls, engine: HostedEngine) -> LLM:
        """An LLM around an engine that was built elsewhere; closing the one closes the other."""
        llm = cls.__new__(cls)
        llm._use(engine)
        return llm

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if (reason := reasons("methods").get(name)) is not None:
                raise AbsentError(f"LLM.{name} is not supported: {reason}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the device. Closing twice is fine; generating afterwards raises EngineDeadError."""
        self._engine.close()
        gc.unfreeze()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequests = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts.

        Args:
            prompts: text, token ids, a dict with `prompt` or `prompt_token_ids` (and `cache_salt`), or a list of those. Where the
                model sees, a dict may have `multi_modal_data`, such as `{"image": picture}` or a list of pictures, for as many
                placeholders in its text, and `mm_processor_kwargs`.
            sampling_params: for all prompts, or one each; the model's defaults when left out.
            use_tqdm: show a progress bar.
            lora_request: the adapter to run with, or one (or None) for each prompt; needs `enable_lora=True`.
            priority: one number per prompt, lower runs first; needs `scheduling_policy="priority"`.

        Returns:
            One output per prompt, in their order.

        Raises:
            RequestError: a prompt or its parameters are invalid (the message says which); nothing has run.
            EngineDeadError: the engine failed or was closed.
        """
        items, _ = split_prompts(prompts)
        params = self._sampling(sampling_params, len(items))
        if priority is not None and len(priority) != len(items):
            raise RequestError(f"{len(items)} prompts need as many priorities, got {len(priority)}", param="priority")
        items = self._with_adapters(items, lora_request)
        return self._run(items, params, priorities=priority, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequests = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several.

        Args:
            messages: a list of messages, or a list of such lists. Beside text their content may have parts such as
                `{"type": "image_url", "image_url": {"url": ...}}`, or `{"type": "image", "image": picture}` with a PIL picture or
                an array `[height, width, 3]` of uint8, where the model sees.
            sampling_params: as in `generate`.
            use_tqdm: show a progress bar.
            lora_request: the adapter to run with, or one (or None) for each prompt; needs `enable_lora=True`.
            chat_template: jinja text, or the name of one of the model's templates.
            chat_template_content_format: `string`, `openai` or `auto`: whether the template reads text or a list of parts.
            add_generation_prompt: end the prompt where the assistant begins.
            continue_final_message: go on with the last message; excludes `add_generation_prompt`.
            tools: JSON schemas of functions the model may call.
            chat_template_kwargs: more variables for the template, such as `enable_thinking`.
            mm_processor_kwargs: what the model's processor is told for what these messages show, such as `max_pixels`.

        Returns:
            One output per conversation, in their order.

        Raises:
            RequestError: no chat template, malformed messages, or as in `generate`.
        """
        tokenizer, showing = self.get_tokenizer(), self._front.intake.showing
        conversations = _split_conversations(messages)
        params = self._sampling(sampling_params, len(conversations))
        render = partial(
            tokenizer.apply_chat_template,
            chat_template=chat_template,
            content_format=chat_template_content_format,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            placeholders=NO_PLACEHOLDERS if showing is None else showing.placeholders,
            **(chat_template_kwargs or {}),
        )
        prompts = []
        for index, conversation in enumerate(conversations):
            with naming(index, several=len(conversations) > 1, what="conversation"):
                prompt = _prompt_of(conversation, render, tokenizer, showing)
            prompts.append(dataclasses.replace(prompt, mm_processor_kwargs=mm_processor_kwargs))
        return self._run(self._with_adapters(prompts, lora_request), params, use_tqdm=use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        lora_request: LoRARequests = None,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` most likely continuations of each prompt, best first; their text includes the prompt's.

        The beams of all prompts grow together, a token a step; the prefix cache keeps what they share.

        Raises:
            RequestError: as in `generate`; also when `2 * beam_width` is more than the engine's `max_logprobs`.
        """
        intake = self._front.intake
        items, _ = split_prompts(prompts)
        step = beam_step(params)
        requests = intake.prepare(self._with_adapters(items, lora_request), [step] * len(items))
        searches = search_beams(
            requests,
            params,
            end_ids=intake.end_token_ids,
            max_model_len=intake.facts.max_model_len,
            run=lambda batch: self._run(batch, [step] * len(batch), use_tqdm=use_tqdm),
        )
        return [self._beam_output(search, params) for search in searches]

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            RequestError: the engine was started with `skip_tokenizer_init`.
        """
        return require_tokenizer(self._front.tokenizer, "this call")

    @property
    def vocab_size(self) -> int:
        """Token ids that the model has embeddings for."""
        return self._client.facts.vocab_size

    def get_default_sampling_params(self) -> SamplingParams:
        """What calls without `sampling_params` use: the model's generation_config.json over vLLM's defaults."""
        return self._front.intake.default_params.clone()

    def _use(self, engine: HostedEngine) -> None:
        self._engine = engine
        self._front = engine.front
        postprocessor = Postprocessor(self._front.tokenizer, output_kind=RequestOutputKind.FINAL_ONLY)
        self._client = InlineClient(engine.host, postprocessor)
        self._adapters = KnownAdapters(self._client.facts)
        defaults = self.get_default_sampling_params()
        changed = {
            field.name: value
            for field in dataclasses.fields(defaults)
            if (value := getattr(defaults, field.name)) != getattr(_PLAIN, field.name)
        }
        named = ", ".join(f"{name}={value}" for name, value in changed.items())
        logger.info("default sampling: %s", f"{named} (generation config)" if named else "SamplingParams()")

    def _sampling(
        self, sampling_params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        given = self.get_default_sampling_params() if sampling_params is None else sampling_params
        return params_for(SamplingParams, "sampling_params", given, count)

    def _with_adapters(self, prompts: Sequence[Any], given: LoRARequests) -> list[Any]:
        return with_adapters(prompts, [self._adapter(each) for each in requests_for(given, len(prompts))])

    def _adapter(self, request: LoRARequest | None) -> Adapter | None:
        """What a caller names, which is read if it was not."""
        if request is None:
            return None
        self._adapters.check(request)
        return self._adapters.find(request) or self._adapters.note(
            request, self._client.load_adapter(self._adapters.path(request))
        )

    def _run(
        self,
        prompts: Sequence[Any],
        params: Sequence[Params],
        *,
        priorities: Sequence[int] | None = None,
        use_tqdm: bool,
    ) -> list[Any]:
        requests = self._front.intake.prepare(prompts, params, priorities=priorities)
        return run_to_end(self._client, requests, show_progress=use_tqdm)

    def _beam_output(self, search: Beams, params: BeamSearchParams) -> BeamSearchOutput:
        tokenizer = self._front.tokenizer
        sequences = []
        for beam in search.best():
            text = None
            if tokenizer is not None:
                text = tokenizer.decode(beam.tokens, skip_special_tokens=params.skip_special_tokens)
            sequences.append(dataclasses.replace(beam, text=text, finish_reason=beam.finish_reason or "length"))
        return BeamSearchOutput(tuple(sequences))


_PLAIN = SamplingParams()


class AbsentError(UnsupportedError, AttributeError):
    """An attribute that vLLM's `LLM` has; to `hasattr` it is one that is not there."""


def _split_conversations(messages: Any) -> list[Any]:
    """A list of messages is one conversation, a list of such lists is several.

    Raises:
        RequestError: neither.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise RequestError.of(
            "messages", f"must be a list of {{'role': ..., 'content': ...}} or a list of such lists, got {messages!r}"
        )
    return [messages] if isinstance(messages[0], Mapping) else list(messages)


def _prompt_of(
    messages: Messages, render: Callable[..., str], tokenizer: Tokenizer, showing: Showing | None
) -> ParsedPrompt:
    """The prompt that a template makes of a conversation, and what its messages show.

    Raises:
        RequestError: malformed messages, or the model does not see or hear.
    """
    lifted, shown = lift(messages)
    if shown and showing is None:
        raise no_eyes(shown)
    text = render(lifted)
    whole = showing.surrounded(text) if shown and showing is not None else text
    ids = tokenizer.encode(whole, add_special_tokens=False)  # the template has written BOS and the like already
    return ParsedPrompt(text, tuple(ids), shown=shown)
