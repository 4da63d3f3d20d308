"""`AsyncLLM`: one model for many callers of an event loop, with vLLM's names."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxengine.api.engine_args import EngineArgs
from jaxengine.api.llm import check_adapter, check_level, check_tags, pooled, start_engine
from jaxengine.contract.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.errors import EngineDeadError, RequestError
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.intake import Params
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.postprocess import Postprocessor
from jaxengine.front.prompts import Prompt
from jaxengine.text.tokenizer import Tokenizer, require_tokenizer

if TYPE_CHECKING:
    from jaxengine.startup.engine import HostedEngine


class AsyncLLM:
    """A model that answers many requests at once, each of them when its tokens come.

    It belongs to the event loop of its first request. Close it, with `await llm.close()` or as a context.

        async with AsyncLLM("path/to/checkpoint") as llm:
            async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=64), "a"):
                print(output.outputs[0].text)

    Args:
        model: as of `LLM`.
        options: as of `LLM`.

    Raises:
        ConfigError, CheckpointError, CapacityError: as `LLM`.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._use(start_engine(model, options))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, *, start_engine_loop: bool = True) -> AsyncLLM:
        """An engine with these options. Its loop runs from the first request on, whatever `start_engine_loop` says."""
        return cls(**engine_args.options)

    @classmethod
    def from_engine(cls, engine: HostedEngine) -> AsyncLLM:
        """An AsyncLLM around an engine that was built elsewhere; closing the one closes the other."""
        llm = cls.__new__(cls)
        llm._use(engine)
        return llm

    def _use(self, engine: HostedEngine) -> None:
        self._front = engine.front
        self._client = AsyncClient(self._front.channel, Postprocessor(self._front.tokenizer))
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
        lora_request: None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Continue a prompt: an output whenever there are new tokens, with all of them or only the new ones (`output_kind`).

        Args:
            prompt: text, token ids, or a dict with `prompt` or `prompt_token_ids`.
            sampling_params: the model's defaults when None.
            request_id: a name for `abort`, which no other request in flight may have.
            lora_request: None; adapters are not built.
            priority: lower runs first; needs `scheduling_policy="priority"`.

        Leaving the iteration early aborts the request. After `abort` it ends without a last output.

        Raises:
            RequestError: the prompt, its parameters or the id are invalid.
            EngineDeadError: the engine failed or was closed.
        """
        check_adapter(lora_request)
        params = self._front.intake.default_params if sampling_params is None else sampling_params
        async with aclosing(self._outputs(prompt, params, request_id, priority)) as outputs:
            async for output in outputs:
                yield output

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: None = None,
        priority: int = 0,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput]]:
        """The embedding of a prompt, as the only item. Arguments and errors are those of `generate`."""
        check_adapter(lora_request)
        async with aclosing(self._outputs(prompt, pooling_params, request_id, priority)) as outputs:
            async for output in outputs:
                yield pooled(output)

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

    async def sleep(self, level: int = 1) -> None:
        """Give the device's memory back until `wake_up`, with the weights kept on the host; the KV cache is lost.

        Raises:
            RequestError: a request has not ended.
            UnsupportedError: another level than 1, which is the one that is built.
        """
        check_level(level)
        await self._started().sleep()

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take the device's memory again: the same weights, an empty cache. Nothing compiles."""
        check_tags(tags)
        await self._started().wake()

    async def is_sleeping(self) -> bool:
        """Whether the device's memory was given back."""
        return self._client.statistics.asleep

    async def update_weights(self, path: str | os.PathLike[str]) -> None:
        """Use the weights of another checkpoint of this model from now on; there has to be room for both at once.

        Raises:
            RequestError: a request has not ended.
            CheckpointError: there is no such checkpoint, or it is of another model. Nothing was changed.
            OverloadedError: the engine sleeps.
        """
        await self._started().update(os.fspath(path))

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
        self, prompt: Prompt, params: Params, request_id: str, priority: int
    ) -> AsyncGenerator[RequestOutput]:
        client = self._started()
        if request_id in self._in_flight:
            raise RequestError(f"the request_id {request_id!r} is in flight already", param="request_id")
        mine = self._in_flight[request_id] = _InFlight()
        try:
            make = partial(self._front.intake.request, prompt, params, request_id=request_id, priority=priority)
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


class _InFlight:
    """A request from the moment that its name is taken. It can be aborted before the engine knows of it."""

    def __init__(self) -> None:
        self._stream: OutputStream | None = None
        self.aborted = False

    def follow(self, stream: OutputStream) -> None:
        self._stream = stream
        if self.aborted:
            stream.close()

    def abort(self) -> None:
        self.aborted = True
        if self._stream is not None:
            self._stream.close()
