"""The application: routes, errors, and the layers that every request passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware import Middleware

from jaxengine import __version__
from jaxengine.server.endpoints.adapters import route as adapters
from jaxengine.server.endpoints.admin import route as admin
from jaxengine.server.endpoints.audio import route as audio
from jaxengine.server.endpoints.batch import route as batch
from jaxengine.server.endpoints.batch.worker import BatchWorker
from jaxengine.server.endpoints.chat import route as chat
from jaxengine.server.endpoints.classify import route as classify
from jaxengine.server.endpoints.completions import route as completions
from jaxengine.server.endpoints.embed import route as embed
from jaxengine.server.endpoints.embeddings import route as embeddings
from jaxengine.server.endpoints.endpoint import Endpoint, Kept
from jaxengine.server.endpoints.health import route as health
from jaxengine.server.endpoints.invocations import route as invocations
from jaxengine.server.endpoints.messages import route as messages
from jaxengine.server.endpoints.metrics import route as metrics
from jaxengine.server.endpoints.models import route as models
from jaxengine.server.endpoints.pooling import route as pooling
from jaxengine.server.endpoints.profile import route as profile
from jaxengine.server.endpoints.rerank import route as rerank
from jaxengine.server.endpoints.responses import route as responses
from jaxengine.server.endpoints.responses.kept import KeptResponses
from jaxengine.server.endpoints.rollouts import route as rollouts
from jaxengine.server.endpoints.score import route as score
from jaxengine.server.endpoints.tokenize import route as tokenize
from jaxengine.server.http.errors import add_handlers
from jaxengine.server.http.layers import layers
from jaxengine.server.http.middleware import CountActive
from jaxengine.server.http.openapi import describe_errors
from jaxengine.server.pages.files import file_routes
from jaxengine.server.pages.route import PAGES
from jaxengine.server.service import Service
from jaxengine.server.telemetry.prometheus import count_http

ENDPOINTS = (
    Endpoint(health.router),
    Endpoint(metrics.router),
    Endpoint(models.router),
    Endpoint(completions.router),
    Endpoint(chat.router),
    Endpoint(responses.router, keeps=KeptResponses),
    Endpoint(audio.router),
    Endpoint(embeddings.router),
    Endpoint(embed.router),
    Endpoint(pooling.router),
    Endpoint(classify.router),
    Endpoint(score.router),
    Endpoint(rerank.router),
    Endpoint(tokenize.router),
    Endpoint(messages.router),
    Endpoint(batch.router, keeps=BatchWorker.of),
    Endpoint(invocations.router),
    Endpoint(admin.router),
    Endpoint(profile.router),
    Endpoint(rollouts.router),
    Endpoint(adapters.router),
)
"""Every endpoint: a folder with its route, its protocol and its answer, perhaps with what it keeps and its options."""


def create_app(service: Service) -> FastAPI:
    """The app of one service. It starts the engine's thread with its lifespan and closes it with it."""
    options = service.options
    documented = not options.api.disable_fastapi_docs

    endpoints = (*ENDPOINTS, PAGES) if options.api.ui else ENDPOINTS
    kept = [endpoint.keeps(service) for endpoint in endpoints if endpoint.keeps is not None]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        log = asyncio.create_task(service.stats_log.run(options.api.log_stats_interval))
        started: list[Kept] = []
        try:
            await service.adapters.start()
            for one in kept:
                one.start()
                started.append(one)
            yield
        finally:  # a second signal cancels this: the engine's thread must end all the same
            log.cancel()
            for one in started:
                await one.close()
            await service.engine.close()
            service.close()

    app = FastAPI(
        title="jaxengine",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would repeat the caller's Host header
        middleware=layers(options, Middleware(CountActive, service=service), shows=service.intake.showing is not None),
        openapi_url="/openapi.json" if documented else None,
        docs_url="/docs" if documented else None,
        redoc_url="/redoc" if documented else None,
    )
    app.state.service = service
    app.state.kept = {type(one): one for one in kept}
    for endpoint in endpoints:
        app.include_router(endpoint.router)
    if options.api.ui:
        app.router.routes += file_routes(options.network.root_path)
    add_handlers(app)
    describe_errors(app)
    count_http(app, service.registry)
    return app
