"""The application: routes, errors, and the layers that every request passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from jaxengine import __version__
from jaxengine.server.endpoints.admin import route as admin
from jaxengine.server.endpoints.batch import route as batch
from jaxengine.server.endpoints.batch.worker import BatchWorker
from jaxengine.server.endpoints.chat import route as chat
from jaxengine.server.endpoints.completions import route as completions
from jaxengine.server.endpoints.embeddings import route as embeddings
from jaxengine.server.endpoints.endpoint import Endpoint
from jaxengine.server.endpoints.health import route as health
from jaxengine.server.endpoints.invocations import route as invocations
from jaxengine.server.endpoints.messages import route as messages
from jaxengine.server.endpoints.metrics import route as metrics
from jaxengine.server.endpoints.models import route as models
from jaxengine.server.endpoints.profile import route as profile
from jaxengine.server.endpoints.responses import route as responses
from jaxengine.server.endpoints.responses.kept import KeptResponses
from jaxengine.server.endpoints.tokenize import route as tokenize
from jaxengine.server.http.auth import RequireKey
from jaxengine.server.http.body import LimitBody
from jaxengine.server.http.errors import add_handlers
from jaxengine.server.http.hosts import KnownHosts, known_hosts
from jaxengine.server.http.middleware import CountActive, RequestId, RootPath
from jaxengine.server.http.openapi import describe_errors
from jaxengine.server.service import Service
from jaxengine.server.telemetry.prometheus import count_http

ENDPOINTS = (
    Endpoint(health.router),
    Endpoint(metrics.router),
    Endpoint(models.router),
    Endpoint(completions.router),
    Endpoint(chat.router),
    Endpoint(responses.router, keeps=KeptResponses),
    Endpoint(embeddings.router),
    Endpoint(tokenize.router),
    Endpoint(messages.router),
    Endpoint(batch.router, keeps=BatchWorker.of),
    Endpoint(invocations.router),
    Endpoint(admin.router),
    Endpoint(profile.router),
)
"""Every endpoint: a folder with its route, its protocol and its answer, perhaps with what it keeps and its options."""


def create_app(service: Service) -> FastAPI:
    """The app of one service. It starts the engine's thread with its lifespan and closes it with it."""
    options = service.options
    documented = not options.api.disable_fastapi_docs

    kept = [endpoint.keeps(service) for endpoint in ENDPOINTS if endpoint.keeps is not None]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        for one in kept:
            one.start()
        log = asyncio.create_task(service.stats_log.run(options.api.log_stats_interval))
        try:
            yield
        finally:  # a second signal cancels this: the engine's thread must end all the same
            log.cancel()
            for one in kept:
                await one.close()
            await service.engine.close()
            service.close()

    app = FastAPI(
        title="jaxengine",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would repeat the caller's Host header
        middleware=_layers(service),
        openapi_url="/openapi.json" if documented else None,
        docs_url="/docs" if documented else None,
        redoc_url="/redoc" if documented else None,
    )
    app.state.service = service
    app.state.kept = {type(one): one for one in kept}
    for endpoint in ENDPOINTS:
        app.include_router(endpoint.router)
    add_handlers(app)
    describe_errors(app)
    count_http(app, service.registry)
    return app


def _layers(service: Service) -> list[Middleware]:
    """The outermost first: a browser asks for permission without a key, everything else needs one."""
    network, limits = service.options.network, service.options.limits
    layers = [Middleware(RootPath, root_path=network.root_path)] if network.root_path else []
    layers.append(Middleware(CountActive, service=service))
    if service.options.api.enable_request_id_headers:
        layers.append(Middleware(RequestId))
    if network.allowed_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=network.allowed_origins,
                allow_methods=network.allowed_methods,
                allow_headers=network.allowed_headers,
                allow_credentials=network.allow_credentials,
            )
        )
    if (known := known_hosts(service.options)) is not None:
        layers.append(Middleware(KnownHosts, **known))
    if keys := service.options.api_keys():
        layers.append(Middleware(RequireKey, keys=keys, scope=service.options.api.api_key_scope))
    return [*layers, Middleware(LimitBody, max_bytes=limits.max_body_bytes)]
