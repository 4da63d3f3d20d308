"""What the routes share: the engine, the way in, the names of the model, the options."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from jaxengine import __version__
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import ModelNotFoundError
from jaxengine.front.async_client import Admission, AsyncClient
from jaxengine.front.front import Front
from jaxengine.front.intake import Intake
from jaxengine.front.parsers.reasoning import REASONING_FORMATS, ReasoningFormat
from jaxengine.front.postprocess import Postprocessor
from jaxengine.grammar.sources import GrammarSources
from jaxengine.server.formats import Formats
from jaxengine.server.options import ServerConfig
from jaxengine.server.telemetry.prometheus import EngineCollector, make_registry
from jaxengine.server.telemetry.stats_log import StatsLog
from jaxengine.server.telemetry.tally import Tally
from jaxengine.text.tokenizer import Tokenizer

logger = logging.getLogger("jaxengine")

T = TypeVar("T")

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
    intake: Intake
    tokenizer: Tokenizer | None
    grammars: GrammarSources | None
    options: ServerConfig
    formats: Formats
    root: str
    registry: CollectorRegistry
    stats_log: StatsLog
    created: int = field(default_factory=lambda: int(time.time()))
    num_active: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(TEXT_THREADS, "text"))
    _grammar_threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(GRAMMAR_THREADS, "grammar"))

    @classmethod
    def of(cls, front: Front, options: ServerConfig) -> Service:
        """A service of an engine that has been started and has no other client.

        Raises:
            ConfigError: an option that the engine's model does not allow.
        """
        limits = options.limits
        admission = Admission(
            max_requests=limits.max_num_queued_reqs,
            max_tokens=limits.max_num_queued_tokens,
            timeout_s=limits.request_timeout,
            watchdog_s=limits.watchdog_timeout,
        )
        root = front.config.model.model or EMBEDDED
        if front.tokenizer is not None:
            _ = front.tokenizer.longest_token  # looked for in the whole vocabulary: better now than among streams
        tally = Tally(max_model_len=front.intake.facts.max_model_len)
        client = AsyncClient(front.channel, Postprocessor(front.tokenizer), admission=admission, listeners=(tally,))
        service = cls(
            engine=client,
            front=front,
            intake=front.intake,
            tokenizer=front.tokenizer,
            grammars=front.grammars,
            options=options,
            formats=Formats.choose(options.api, front.tokenizer),
            root=root,
            registry=make_registry(
                EngineCollector(
                    front,
                    tally,
                    options.model_names(root)[0],
                    statistics=lambda: client.statistics,
                    rejections=lambda: client.rejections,
                )
            ),
            stats_log=StatsLog(tally, lambda: client.statistics.scheduler),
        )
        for line in service.formats.report:
            logger.info("%s", line)
        if service.formats.tools and not options.api.enable_auto_tool_choice:
            logger.info(
                "tool calls: only those that a request asks for; --enable-auto-tool-choice lets the model decide, as in vLLM"
            )
        return service

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
        if name is not None and name not in self.model_names:
            raise ModelNotFoundError(f"The model `{name[:200]}` does not exist. Served: {', '.join(self.model_names)}.")

    def engine_id(self) -> str:
        """An id for the engine, never the caller's: an id that a caller chose could be another's."""
        return str(next(self._numbers))

    def response_id(self, prefix: str, label: str | None) -> str:
        """An id for a response; a label that the caller gave is part of it."""
        return f"{prefix}-{label or uuid.uuid4().hex}"

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run work on text away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        """End the threads."""
        for threads in (self._threads, self._grammar_threads):
            threads.shutdown(wait=False, cancel_futures=True)


def service_of(request: Request) -> Service:
    """The service that the app was made for."""
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(service_of)]
