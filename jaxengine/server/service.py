"""What the routes share: the engine, the way in, the names of the model, the options."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from jaxengine import __version__
from jaxengine.contract.metrics import NOTHING_YET
from jaxengine.contract.request import Request as EngineRequest
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import ModelNotFoundError, RequestError
from jaxengine.front.admission import Admission
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.front import Front
from jaxengine.front.intake import Intake
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.parsers.reasoning import REASONING_FORMATS, ReasoningFormat
from jaxengine.front.postprocess import Postprocessor
from jaxengine.grammar.sources import GrammarSources
from jaxengine.server.adapters.served import ServedAdapters
from jaxengine.server.formats import Formats
from jaxengine.server.http.terms import Terms
from jaxengine.server.options import LimitConfig, ServerConfig
from jaxengine.server.telemetry.prometheus import EngineCollector, make_registry
from jaxengine.server.telemetry.pulse import Pulse
from jaxengine.server.telemetry.stats_log import StatsLog
from jaxengine.server.telemetry.tally import EngineNumbers, Tally
from jaxengine.server.telemetry.tracing import Origin, RequestTraces, open_traces
from jaxengine.text.tokenizer import Tokenizer

logger = logging.getLogger("jaxengine")

T = TypeVar("T")

MEDIA_THREADS = 8
"""Prompts that show something and are prepared at once."""
TEXT_THREADS = 4
"""Threads that render templates and tokenise, so that a long prompt does not hold up the event loop."""


GRAMMAR_THREADS = 2
"""Threads that wait for the grammar checker: of their own, because a slow grammar takes seconds."""

EMBEDDED = "embedded"
"""The name of the model that comes with the package."""


@dataclass
class Service:
    """One served model."""

    engine: AsyncClient
    front: Front
    options: ServerConfig
    formats: Formats
    root: str
    registry: CollectorRegistry
    stats_log: StatsLog
    engines: Callable[[], Sequence[EngineNumbers]]
    pulses: Sequence[Pulse]
    adapters: ServedAdapters
    traces: RequestTraces | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    num_active: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(TEXT_THREADS, "text"))
    _media_threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(MEDIA_THREADS, "media"))
    _grammar_threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(GRAMMAR_THREADS, "grammar"))

    @classmethod
    def of(cls, front: Front, options: ServerConfig) -> Service:
        """A service of an engine that has been started and has no other client.

        Raises:
            ConfigError: an option that the engine's model does not allow.
        """
        root = front.config.model.model or EMBEDDED
        if front.tokenizer is not None:
            _ = front.tokenizer.longest_token  # looked for in the whole vocabulary: better now than among streams
        tallies = [Tally(max_model_len=front.intake.facts.max_model_len) for _ in front.config.parallel.ranks]
        pulses = [Pulse() for _ in tallies]
        traces = open_traces(options.traces, options.model_names(root)[0])
        others = () if traces is None else (traces,)
        client = AsyncClient(
            front.channel,
            Postprocessor(front.tokenizer, lazy=True),
            admission=_admission(options.limits, fair=front.config.scheduler.scheduling_policy == "fair"),
            listeners=lambda engine: (tallies[engine], pulses[engine], *others),
        )

        def engines() -> list[EngineNumbers]:
            return [
                EngineNumbers(rank, client.engines.get(engine, NOTHING_YET), tallies[engine])
                for engine, rank in enumerate(front.config.parallel.ranks)
            ]

        formats = Formats.choose(options.api, front.tokenizer)
        for line in formats.report:
            logger.info("%s", line)
        if formats.tools and not options.api.enable_auto_tool_choice:
            logger.info(
                "tool calls: only those that a request asks for; --enable-auto-tool-choice lets the model decide, as in vLLM"
            )
        return cls(
            engine=client,
            front=front,
            options=options,
            formats=formats,
            root=root,
            registry=make_registry(
                EngineCollector(
                    front,
                    options.model_names(root)[0],
                    engines=engines,
                    rejections=lambda: client.gate.rejections,
                )
            ),
            stats_log=StatsLog(engines),
            engines=engines,
            pulses=pulses,
            adapters=ServedAdapters(options.adapters, client.load_adapter, reserved=options.model_names(root)),
            traces=traces,
        )

    @property
    def intake(self) -> Intake:
        """The way in for prompts."""
        return self.front.intake

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's; None where the engine works on ids only."""
        return self.front.tokenizer

    @property
    def grammars(self) -> GrammarSources | None:
        """What tries structured outputs; None without a tokenizer."""
        return self.front.grammars

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that requests may use; responses carry the first."""
        return self.options.model_names(self.root)

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return self.intake.facts.max_model_len

    @property
    def fingerprint(self) -> str:
        """What a response tells about the build that made it."""
        return f"jaxengine-{__version__}"

    @property
    def reasoning_format(self) -> ReasoningFormat | None:
        """The format of the model's reasoning, where one is known."""
        name = self.formats.reasoning
        return None if name is None else REASONING_FORMATS[name]

    async def submit(self, requests: Sequence[EngineRequest], origin: Origin, terms: Terms) -> OutputStream[Any]:
        """Hand requests to the engine, and follow them where they are traced.

        Raises:
            RequestError: the terms name a replica that is not there.
            JaxEngineError: what `AsyncClient.submit` raises.
        """
        rank, ranks = terms.data_parallel_rank, self.front.config.parallel.ranks
        if rank is not None and rank not in ranks:
            raise RequestError(
                f"X-data-parallel-rank={rank} names no replica of this server, which has {', '.join(map(str, ranks))}",
                param="data_parallel_rank",
            )
        shared = [
            replace(request, share=terms.share, data_parallel_rank=rank, resume=terms.resume) for request in requests
        ]
        if self.traces is None:
            return await self.engine.submit(shared, timeout_s=terms.left_s)
        return await self.traces.submit(self.engine, shared, origin, timeout_s=terms.left_s)

    async def check_grammar(self, structure: StructuredOutputsParams | None) -> None:
        """Have the grammar of a structured answer tried, so that making the request need not wait for it.

        Raises:
            RequestError: it cannot be used.
        """
        if structure is None or self.grammars is None or self.grammars.is_ready(structure):
            return
        grammars = self.grammars
        await asyncio.get_running_loop().run_in_executor(self._grammar_threads, grammars.source, structure)

    def check_model(self, name: str | None) -> None:
        """Accept a request's `model`; leaving it out is fine.

        Raises:
            ModelNotFoundError: it is not served here.
        """
        if name is not None and name not in self.model_names and not self.adapters.has(name):
            served = ", ".join((*self.model_names, *self.adapters.served))
            raise ModelNotFoundError(f"The model `{name[:200]}` does not exist. Served: {served}.")

    def answered_by(self, name: str | None) -> str:
        """What an answer calls its model, where the request names it so: the adapter, or the model by its first name."""
        return self.model_names[0] if name is None or name in self.model_names else name

    def engine_id(self) -> str:
        """An id for the engine, never the caller's: an id that a caller chose could be another's."""
        return str(next(self._numbers))

    def response_id(self, prefix: str, label: str | None) -> str:
        """An id for a response; a label that the caller gave is part of it."""
        return f"{prefix}-{label or uuid.uuid4().hex}"

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run work on text away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def in_media_thread(self, function: Callable[[], T]) -> T:
        """Run work on what prompts show away from the event loop, and from work on text: it may wait for other hosts."""
        return await asyncio.get_running_loop().run_in_executor(self._media_threads, function)

    def close(self) -> None:
        """End the threads, and pass on the last traces."""
        for threads in (self._threads, self._grammar_threads, self._media_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        if self.traces is not None:
            self.traces.close()


def service_of(request: Request) -> Service:
    """The service that the app was made for."""
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(service_of)]


def _admission(limits: LimitConfig, *, fair: bool) -> Admission:
    """What requests have to keep to on their way in; with `fair` no share of the queue is more than half."""
    return Admission(
        max_requests=limits.max_num_queued_reqs,
        max_tokens=limits.max_num_queued_tokens,
        max_media_bytes=int(limits.max_media_gb * 2**30),
        max_unread=limits.max_unread_tokens,
        timeout_s=limits.request_timeout,
        fair=fair,
    )
