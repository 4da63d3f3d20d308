"""`AsyncLLM`: one model for many callers of an event loop, with vLLM's names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxengine.api.checks import WeightSource, check_level, check_mode, check_tags, weight_source
from jaxengine.api.engine_args import EngineArgs
from jaxengine.api.start import read_options, start_engine
from jaxengine.contract.adapters import Adapter
from jaxengine.contract.lora_request import LoRARequest
from jaxengine.contract.messages import Begin, PauseMode
from jaxengine.contract.outputs import PooledOutput, RequestOutput
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.errors import EngineDeadError, RequestError
from jaxengine.front.adapters import KnownAdapters, with_adapters
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.engine_process import EngineProcess
from jaxengine.front.front import Front
from jaxengine.front.intake import Params
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.pooled import data_of
from jaxengine.front.postprocess import Postprocessor
from jaxengine.front.prompts import Prompt
from jaxengine.front.replicas import begin_of, supervised
from jaxengine.text.tokenizer import Tokenizer, require_tokenizer

if TYPE_CHECKING:
    from jaxengine.startup.engine import HostedEngine

logger = logging.getLogger("jaxengine")


class AsyncLLM:
    """A model that answers many requests at once, each of them when its tokens come.

    It belongs to the event loop of its first request. Close it, with `await llm.close()` or as a context.

        async with AsyncLLM("path/to/checkpoint") as llm:
            async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=64), "a"):
                print(output.outputs[0].text)

    Args:
        model: as of `LLM`.
        enable_multiprocessing: run the engine in a process of its own, and not on a thread of this one: its work and that of the
            event loop do not wait for each other then. Nothing is forked, and the program's own script is not run again. When the
            process dies another is started, and every request goes on where it was. With `data_parallel_size` there is one for
            each replica.
        options: as of `LLM`.

    Raises:
        ConfigError, CheckpointError, CapacityError: as `LLM`.
        EngineDeadError: the engine's process ended before it was ready.
    """

    def __init__(self, model: str | None = None, *, enable_multiprocessing: bool = False, **options: Any) -> None:
        self._use(_start_process(model, options) if enable_multiprocessing else start_engine(model, options).front)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, *, start_engine_loop: bool = True) -> AsyncLLM:
        """An engine with these options. Its loop runs from the first request on, whatever `start_engine_loop` says."""
        return cls(**engine_args.options)

    @classmethod
    def from_engine(cls, engine: HostedEngine) -> AsyncLLM:
        """An AsyncLLM around an engine that was built elsewhere; closing the one closes the other."""
        llm = cls.__new__(cls)
        llm._use(engine.front)
        return llm

    def _use(self, front: Front) -> None:
        self._front = front
        self._client = AsyncClient(self._front.channel, Postprocessor(self._front.tokenizer))
        self._adapters = KnownAdapters(self._client.facts)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._in_flight: dict[str, _InFlight] = {}

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Continue a prompt: an output whenever there are new tokens, with all of them or only the new ones (`output_kind`).

        Args:
            prompt: text, token ids, or a dict with `prompt` or `prompt_token_ids`.
            sampling_params: the model's defaults when None.
            request_id: a name for `abort`, which no other request in flight may have.
            lora_request: the adapter to run with; needs `enable_lora=True`.
            priority: lower runs first; needs `scheduling_policy="priority"`.

        Leaving the iteration early aborts the request. After `abort` it ends without a last output.

        Raises:
            RequestError: the prompt, its parameters or the id are invalid.
            EngineDeadError: the engine failed or was closed.
        """
        params = self._front.intake.default_params if sampling_params is None else sampling_params
        async with aclosing(self._outputs(prompt, params, request_id, priority, lora_request)) as outputs:
            async for output in outputs:
                yield output

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[PooledOutput]:
        """What a prompt is pooled to, as the only item. Arguments and errors are those of `generate`."""
        async with aclosing(self._outputs(prompt, pooling_params, request_id, priority, lora_request)) as outputs:
            async for output in outputs:
                data_of(output)  # raises where the request was given up
                yield output

    async def abort(self, request_id: str | Sequence[str]) -> None:
        """End these requests; ids that have ended are passed over."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if name in self._in_flight:
                self._in_flight[name].abort()

    async def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            RequestError: the engine was started with `skip_tokenizer_init`.
        """
        return require_tokenizer(self._front.tokenizer, "this call")

    def get_default_sampling_params(self) -> SamplingParams:
        """What requests without `sampling_params` use."""
        return self._front.intake.default_params.clone()

    async def check_health(self) -> None:
        """Return when the engine can be trusted with a request.

        Raises:
            EngineDeadError: it has failed or was closed.
        """
        self._started().check_health()

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False when requests still hold some of them."""
        return await self._started().reset_prefix_cache()

    async def pause_generation(self, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Compute nothing until `resume_generation`. Requests that come meanwhile wait.

        Args:
            mode: those that run end with the finish reason `abort` and what they have so far; end by themselves first (`wait`);
                or are kept and go on afterwards (`keep`).
            clear_cache: forget cached prefixes; requests that are kept are computed again.
        """
        await self._started().pause(check_mode(mode), clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        """Go on computing."""
        await self._started().resume()

    async def is_paused(self) -> bool:
        """Whether `pause_generation` was called, and `resume_generation` was not."""
        return self._client.statistics.paused

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Give the device's memory back until `wake_up`, as `LLM.sleep`; `mode` as of `pause_generation`.

        Raises:
            RequestError: there is no such level or mode.
        """
        check_level(level)
        await self._started().sleep(level, check_mode(mode))

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take the device's memory again, or that of what the tags name, as `LLM.wake_up`. Requests that were kept go on.

        Raises:
            RequestError: a tag that is none.
        """
        await self._started().wake(check_tags(tags))

    async def is_sleeping(self) -> bool:
        """Whether the engine sleeps, as a whole or in part."""
        return self._client.statistics.asleep

    async def update_weights(
        self, weights: WeightSource, *, weight_version: str | None = None, mode: PauseMode = "wait"
    ) -> None:
        """Use other weights of this model from now on, as `LLM.update_weights`; requests that come meanwhile wait.

        Args:
            weights: as there. To an engine in another process arrays are copied.
            weight_version: as there.
            mode: what becomes of requests that run, as of `pause_generation`. Those that are kept go on with the tokens that they
                have, computed again by the new weights; each output says which version made which of its tokens.

        Raises:
            CheckpointError, RequestError, OverloadedError: as there.
        """
        await self._started().update(weight_source(weights), weight_version, check_mode(mode))

    @property
    def weight_version(self) -> str:
        """The version of the weights in use, as far as the engine was heard of."""
        return self._client.statistics.weight_version

    async def start_profile(self) -> None:
        """Begin a trace, with the option `profile`."""
        await self._started().profile(begin=True)

    async def stop_profile(self) -> None:
        """End the trace and write it."""
        await self._started().profile(begin=False)

    async def close(self) -> None:
        """Free the device. Requests in flight fail. Closing twice is fine."""
        self._closed = True
        await self._client.close()
        self._front.close()

    def shutdown(self) -> None:
        """The same as `close`, holding up the caller until the step in progress has ended."""
        self._closed = True
        self._client.join()
        self._front.close()

    async def _outputs(
        self, prompt: Prompt, params: Params, request_id: str, priority: int, lora_request: LoRARequest | None
    ) -> AsyncGenerator[Any]:
        client = self._started()
        if request_id in self._in_flight:
            raise RequestError(f"the request_id {request_id!r} is in flight already", param="request_id")
        mine = self._in_flight[request_id] = _InFlight()
        try:
            [item] = with_adapters([prompt], [await self._adapter(lora_request)])
            make = partial(self._front.intake.request, item, params, request_id=request_id, priority=priority)
            request = await asyncio.to_thread(make)  # a long text or a grammar takes its time
            if mine.aborted:
                return
            with await client.submit([request]) as stream:
                mine.follow(stream)
                async for outputs in stream:
                    if mine.aborted:  # while the engine took it, which may have answered all of it since
                        return
                    for output in outputs:
                        yield output
        finally:
            del self._in_flight[request_id]

    async def _adapter(self, request: LoRARequest | None) -> Adapter | None:
        """What a caller names, which is read if it was not."""
        if request is None:
            return None
        self._adapters.check(request)
        return self._adapters.find(request) or self._adapters.note(
            request, await self._started().load_adapter(self._adapters.path(request))
        )

    def _started(self) -> AsyncClient:
        """The client, on behalf of the event loop that is running."""
        if self._closed:
            raise EngineDeadError("the engine was closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._client.start()
        if self._loop is not loop:
            raise RequestError("an AsyncLLM belongs to the event loop of its first request; make one for each loop")
        return self._client


AsyncLLMEngine = AsyncLLM


def _start_process(model: str | None, options: Mapping[str, Any]) -> Front:
    """The front of an engine in a process of its own, or of replicas in several, which are ready."""
    config = read_options(model, options)
    begin = Begin(config=config, log_level=logger.getEffectiveLevel())

    def launch(index: int) -> EngineProcess:
        return EngineProcess(begin_of(begin, index))

    engines: list[EngineProcess] = []
    try:
        engines.extend(map(launch, range(len(config.parallel.ranks))))
        front = Front.beside(engines[0])
        return replace(
            front, channel=supervised(engines, launch), config=replace(front.config, parallel=config.parallel)
        )
    except BaseException:
        for engine in engines:
            engine.close()
        raise


class _InFlight:
    """A request from the moment that its name is taken. It can be aborted before the engine knows of it."""

    def __init__(self) -> None:
        self._stream: OutputStream[Any] | None = None
        self.aborted = False

    def follow(self, stream: OutputStream[Any]) -> None:
        self._stream = stream
        if self.aborted:
            stream.close()

    def abort(self) -> None:
        self.aborted = True
        if self._stream is not None:
            self._stream.close()
