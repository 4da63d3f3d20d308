"""What every request passes on its way in, whatever answers it."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from jaxengine.options.option import MIB
from jaxengine.server.http.auth import RequireKey
from jaxengine.server.http.body import LimitBody
from jaxengine.server.http.hosts import KnownHosts, known_hosts
from jaxengine.server.http.middleware import RequestId, RootPath
from jaxengine.server.options import ServerConfig
from jaxengine.server.pages.files import public_paths

MOST_BYTES, MOST_BYTES_SHOWN = 4 * MIB, 64 * MIB
"""Of a body, and of one that may have pictures in it, unless the user says otherwise."""


def layers(options: ServerConfig, *own: Middleware, shows: bool = False) -> list[Middleware]:
    """The outermost first: a browser asks for permission without a key, everything else needs one. `own` follow the prefix.

    Where requests may show something (`shows`) they may be larger.

    Raises:
        ConfigError: an API key or an allowed host cannot be used.
    """
    network, limits = options.network, options.limits
    found = [Middleware(RootPath, root_path=network.root_path)] if network.root_path else []
    found += own
    if options.api.enable_request_id_headers:
        found.append(Middleware(RequestId))
    if network.allowed_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=network.allowed_origins,
                allow_methods=network.allowed_methods,
                allow_headers=network.allowed_headers,
                allow_credentials=network.allow_credentials,
            )
        )
    if (known := known_hosts(options)) is not None:
        found.append(Middleware(KnownHosts, **known))
    if keys := options.api_keys():
        pages = public_paths() if options.api.ui else ()
        found.append(Middleware(RequireKey, keys=keys, scope=options.api.api_key_scope, pages=pages))
    most = limits.max_body_bytes
    if most is None:
        most = MOST_BYTES_SHOWN if shows else MOST_BYTES
    return [*found, Middleware(LimitBody, max_bytes=most)]
