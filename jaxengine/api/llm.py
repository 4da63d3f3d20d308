"""`LLM`: text generation and embeddings in one process, with vLLM's names."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from jaxengine.contract.outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
)
from jaxengine.contract.pooling_params import PoolingParams, check_task
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.device.weights.source import check_name
from jaxengine.errors import JaxEngineError, RequestError, UnsupportedError
from jaxengine.front.beam_search import Beams, BeamSearchOutput, beam_step, search_beams
from jaxengine.front.inline_client import InlineClient
from jaxengine.front.offline import run_to_end
from jaxengine.front.postprocess import Postprocessor
from jaxengine.front.prompts import ParsedPrompt, Prompt, split_prompts
from jaxengine.options.config import EngineConfig
from jaxengine.options.names import read_environment, reasons
from jaxengine.startup.progress import show_log
from jaxengine.text.tokenizer import Tokenizer, require_tokenizer

if TYPE_CHECKING:
    from jaxengine.contract.sampling_params import BeamSearchParams
    from jaxengine.front.intake import Params
    from jaxengine.startup.engine import HostedEngine

logger = logging.getLogger("jaxengine")

Messages = Sequence[Mapping[str, Any]]
"""One conversation: dicts with `role` and `content`."""

P = TypeVar("P", SamplingParams, PoolingParams)


class LLM:
    """A model, ready to generate and to embed.

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

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts.

        Args:
            prompts: text, token ids, a dict with `prompt` or `prompt_token_ids` (and `cache_salt`), or a list of those.
            sampling_params: for all prompts, or one each; the model's defaults when left out.
            use_tqdm: show a progress bar.
            lora_request: None; adapters are not built.
            priority: one number per prompt, lower runs first; needs `scheduling_policy="priority"`.

        Returns:
            One output per prompt, in their order.

        Raises:
            RequestError: a prompt or its parameters are invalid (the message says which); nothing has run.
            EngineDeadError: the engine failed or was closed.
        """
        check_adapter(lora_request)
        items, _ = split_prompts(prompts)
        params = self._sampling(sampling_params, len(items))
        if priority is not None and len(priority) != len(items):
            raise RequestError(f"{len(items)} prompts need as many priorities, got {len(priority)}", param="priority")
        return self._run(items, params, priorities=priority, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several.

        Args:
            messages: a list of messages, or a list of such lists.
            sampling_params: as in `generate`.
            use_tqdm: show a progress bar.
            lora_request: None; adapters are not built.
            chat_template: jinja text, or the name of one of the model's templates.
            chat_template_content_format: `string`, `openai` or `auto`: whether the template reads text or a list of parts.
            add_generation_prompt: end the prompt where the assistant begins.
            continue_final_message: go on with the last message; excludes `add_generation_prompt`.
            tools: JSON schemas of functions the model may call.
            chat_template_kwargs: more variables for the template, such as `enable_thinking`.

        Returns:
            One output per conversation, in their order.

        Raises:
            RequestError: no chat template, malformed messages, or as in `generate`.
        """
        check_adapter(lora_request)
        tokenizer = self.get_tokenizer()
        conversations = _split_conversations(messages)
        params = self._sampling(sampling_params, len(conversations))
        prompts = []
        for index, conversation in enumerate(conversations):
            try:
                text = tokenizer.apply_chat_template(
                    conversation,
                    chat_template=chat_template,
                    content_format=chat_template_content_format,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    tools=tools,
                    **(chat_template_kwargs or {}),
                )
            except RequestError as error:
                if len(conversations) == 1:
                    raise
                raise type(error)(f"conversation {index}: {error}", param=error.param) from error
            # the template has written BOS and the like already
            ids = tokenizer.encode(text, add_special_tokens=False)
            prompts.append(ParsedPrompt(text, tuple(ids)))
        return self._run(prompts, params, use_tqdm=use_tqdm)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, *, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The `beam_width` most likely continuations of each prompt, best first; their text includes the prompt's.

        The beams of all prompts grow together, a token a step; the prefix cache keeps what they share.

        Raises:
            RequestError: as in `generate`; also when `2 * beam_width` is more than the engine's `max_logprobs`.
        """
        intake = self._front.intake
        items, _ = split_prompts(prompts)
        step = beam_step(params)
        requests = intake.prepare(items, [step] * len(items))
        searches = search_beams(
            requests,
            params,
            end_ids=intake.end_token_ids,
            max_model_len=intake.facts.max_model_len,
            run=lambda batch: self._run(batch, [step] * len(batch), use_tqdm=use_tqdm),
        )
        return [self._beam_output(search, params) for search in searches]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Embed prompts: the final hidden state of each one's last token, scaled to length one.

        Any decoder can; models that were made for it give embeddings that mean something.

        Args:
            prompts: as in `generate`.
            pooling_params: for all prompts, or one each.
            use_tqdm: show a progress bar.
            lora_request: None; adapters are not built.

        Returns:
            One output per prompt, in their order.

        Raises:
            RequestError: a prompt or its parameters are invalid (the message says which); nothing has run.
            EngineDeadError: the engine failed or was closed.
        """
        check_adapter(lora_request)
        return [
            EmbeddingRequestOutput(
                pooled.request_id,
                EmbeddingOutput(pooled.outputs.data.tolist()),
                pooled.prompt_token_ids,
                pooled.num_cached_tokens,
            )
            for pooled in self.encode(prompts, pooling_params, use_tqdm=use_tqdm)
        ]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        pooling_task: str | None = None,
        use_tqdm: bool = True,
        lora_request: None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The same as `embed`, with embeddings as NumPy arrays. `pooling_task` may be `embed`, the one task that is built.

        Raises:
            UnsupportedError: another of vLLM's pooling tasks.
            RequestError, EngineDeadError: as in `embed`.
        """
        check_task(pooling_task)
        check_adapter(lora_request)
        items, _ = split_prompts(prompts)
        given = PoolingParams() if pooling_params is None else pooling_params
        params = _params_for(PoolingParams, "pooling_params", given, len(items))
        return [pooled(output) for output in self._run(items, params, use_tqdm=use_tqdm)]

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

    def start_profile(self) -> None:
        """Begin a trace of device and host, in the directory that the option `profile` names.

        Raises:
            RequestError: the engine was started without it, or a trace is running.
        """
        self._client.profile(begin=True)

    def stop_profile(self) -> None:
        """End the trace and write it.

        Raises:
            RequestError: none is running.
        """
        self._client.profile(begin=False)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, for example between measurements. False when requests still hold some of them."""
        return self._client.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Give the device's memory back until `wake_up`, with the weights kept on the host; the KV cache is lost.

        Raises:
            UnsupportedError: another level than 1, which is the one that is built.
        """
        check_level(level)
        self._client.sleep()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take the device's memory again: the same weights, an empty cache. Nothing compiles.

        Raises:
            UnsupportedError: `tags` of what is to wake up; all of it does.
        """
        check_tags(tags)
        self._client.wake()

    def update_weights(self, path: str | os.PathLike[str]) -> None:
        """Use the weights of another checkpoint of this model from now on; there has to be room for both at once.

        Raises:
            CheckpointError: there is no such checkpoint, or it is of another model. Nothing was changed.
            OverloadedError: the engine sleeps.
        """
        self._client.update(os.fspath(path))

    def get_metrics(self) -> dict[str, float]:
        """Counts since the start: requests, tokens, steps, preemptions, prefix cache, KV use, compilations after warm-up."""
        statistics = self._client.statistics
        stats = statistics.scheduler
        return {
            "num_requests_running": stats.num_running,
            "num_requests_waiting": stats.num_waiting,
            "num_preemptions": stats.num_preemptions,
            "num_steps": sum(count.steps for count in stats.shapes.values()),
            "num_computed_tokens": stats.num_tokens,
            "num_padded_tokens": stats.num_padded_tokens,
            "prefix_cache_queries": stats.prefix_cache_queries,
            "prefix_cache_hits": stats.prefix_cache_hits,
            "kv_cache_usage_perc": stats.kv_cache_usage,
            "num_compilations": statistics.num_compilations,
        }

    def _use(self, engine: HostedEngine) -> None:
        self._engine = engine
        self._front = engine.front
        postprocessor = Postprocessor(self._front.tokenizer, output_kind=RequestOutputKind.FINAL_ONLY)
        self._client = InlineClient(engine.host, postprocessor)
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
        return _params_for(SamplingParams, "sampling_params", given, count)

    def _run(
        self,
        prompts: Sequence[Any],
        params: Sequence[Params],
        *,
        priorities: Sequence[int] | None = None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
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


def start_engine(model: str | None, options: Mapping[str, Any]) -> HostedEngine:
    """The engine of an LLM. Wrong options and names are told before anything large is loaded.

    Raises:
        ConfigError, CheckpointError, CapacityError: as `LLM`.
    """
    show_log()
    config = EngineConfig.from_options(**{**read_environment(os.environ), "model": model, **options})
    check_name(config.model.model)
    # The device half is loaded here and not above, so that a wrong option or path is reported without loading JAX.
    from jaxengine.startup.build import build_engine

    return build_engine(config)


def check_adapter(lora_request: object) -> None:
    """Accept the `lora_request` of those who have none.

    Raises:
        UnsupportedError: it is one.
    """
    if lora_request is not None:
        raise UnsupportedError("LoRA is not built yet; leave lora_request out", param="lora_request")


def check_level(level: int) -> None:
    """Accept the level of sleep that is built.

    Raises:
        UnsupportedError: it is another.
    """
    if level != 1:
        raise UnsupportedError(
            f"sleep level {level} is not supported: level 1 keeps the weights on the host; to free that too, close the engine",
            param="level",
        )


def check_tags(tags: Sequence[str] | None) -> None:
    """Accept to wake up everything.

    Raises:
        UnsupportedError: only a part is to wake up.
    """
    if tags is not None and set(tags) != {"weights", "kv_cache"}:
        raise UnsupportedError(
            f"wake_up takes no tags, got {list(tags)}: weights and KV cache wake up together", param="tags"
        )


def _params_for(kind: type[P], name: str, given: P | Sequence[P], count: int) -> list[P]:
    """Parameters for each of so many prompts.

    Raises:
        RequestError: neither one set of them nor as many as there are prompts.
    """
    if isinstance(given, kind):
        return [given] * count
    if isinstance(given, Sequence) and len(given) == count:
        wrong = next((item for item in given if not isinstance(item, kind)), None)
        if wrong is None:
            return list(given)
        raise RequestError(f"{name} must be {kind.__name__}, got {type(wrong).__name__}", param=name)
    shown = len(given) if isinstance(given, Sequence) else type(given).__name__
    raise RequestError(
        f"{name} must be one {kind.__name__} or a list of {count}, one per prompt, got {shown}", param=name
    )


def pooled(output: RequestOutput) -> PoolingRequestOutput[PoolingOutput]:
    """The embedding that a request for one ended with."""
    if output.embedding is None:
        raise JaxEngineError("the engine gave up a request")
    return PoolingRequestOutput(
        output.request_id, PoolingOutput(output.embedding), output.prompt_token_ids, output.num_cached_tokens
    )


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
