"""A proxy before engines that compute prompts and engines that generate: one request becomes two.

    python proxy.py --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200

A completion or chat goes to an engine of the first kind with `max_tokens=1` and `kv_transfer_params`, then with what that
answered to one of the second kind, whose answer or stream is passed on byte by byte. Where no engine of the first kind answers,
the second computes the prompt itself. It keeps nothing and needs no secret: pages go from engine to engine.

Needs fastapi, uvicorn and httpx.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

logger = logging.getLogger("proxy")

HAND_OVER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
ONLY_FOR_THE_ANSWER = (
    *("stream_options", "min_tokens", "echo", "logprobs", "top_logprobs", "prompt_logprobs"),
    *("n", "best_of", "response_format", "structured_outputs", "stop"),
)
"""Fields that say nothing of how a prompt is computed."""
PASSED_ON = ("authorization", "x-request-id", "traceparent", "tracestate")
REST_S = 5.0
"""How long a server that did not answer is asked last."""
CONNECT_S = 2.0


class Servers:
    """Takes turns between servers; those that did not answer lately come last."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._turns = itertools.count()
        self._failed: dict[str, float] = {}

    def in_turn(self) -> list[str]:
        """All of them, in the order in which to try them."""
        first = next(self._turns) % max(1, len(self.urls))
        turned = self.urls[first:] + self.urls[:first]
        return sorted(turned, key=self.is_resting)

    def is_resting(self, url: str) -> bool:
        """Whether it did not answer within the last seconds."""
        return time.monotonic() < self._failed.get(url, 0.0)

    def failed(self, url: str, error: Exception) -> None:
        """Note that it did not answer."""
        logger.warning("%s does not answer: %s", url, error or type(error).__name__)
        self._failed[url] = time.monotonic() + REST_S


class Proxy:
    """Sends what comes to the two kinds of servers.

    Args:
        prefill_timeout_s: how long a prompt may take on the other engine before it is computed where it goes on.
    """

    def __init__(
        self, client: httpx.AsyncClient, prefill: Sequence[str], decode: Sequence[str], *, prefill_timeout_s: float
    ) -> None:
        self._client = client
        self._prefill = Servers(prefill)
        self._decode = Servers(decode)
        self._timeout = httpx.Timeout(prefill_timeout_s, connect=CONNECT_S)

    async def generate(self, request: Request) -> Response:
        """A completion or chat."""
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return _error(400, "the body must be a JSON object")
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        path = request.url.path
        if (params := await self._compute_prompt(path, body, headers)) is not None:
            body = {**body, "kv_transfer_params": params}
        return await self._pass_on("POST", path, headers, body)

    async def models(self, request: Request) -> Response:
        """What the engines that generate say."""
        return await self._pass_on("GET", request.url.path, {})

    async def health(self) -> Response:
        """200 while some engine generates, with what each server says of itself."""
        states = {
            kind: {url: await self._is_healthy(url) for url in servers.urls}
            for kind, servers in (("prefill", self._prefill), ("decode", self._decode))
        }
        return JSONResponse(states, 200 if any(states["decode"].values()) else 503)

    async def _is_healthy(self, url: str) -> bool:
        try:
            return (await self._client.get(f"{url}/health", timeout=CONNECT_S)).status_code == 200
        except httpx.HTTPError:
            return False

    async def _compute_prompt(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any] | None:
        """Have the prompt computed; where its pages are, or None where the engine that goes on has to compute it."""
        asked = {name: value for name, value in body.items() if name not in ONLY_FOR_THE_ANSWER}
        asked |= {"stream": False, "max_tokens": 1, "kv_transfer_params": HAND_OVER}
        if "max_completion_tokens" in asked:
            asked["max_completion_tokens"] = 1
        for url in self._prefill.in_turn():
            if self._prefill.is_resting(url):
                break
            try:
                answer = await self._client.post(url + path, json=asked, headers=headers, timeout=self._timeout)
            except httpx.HTTPError as error:
                self._prefill.failed(url, error)
                continue
            if answer.status_code == 200:
                return _params(answer)
            if answer.status_code < 500:
                return None  # what is wrong with the request is for the other engine to say
            self._prefill.failed(url, RuntimeError(f"status {answer.status_code}"))
        return None

    async def _pass_on(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> Response:
        """The answer of a server that generates, as it comes. Before its first byte another one is tried."""
        urls = self._decode.in_turn()
        for url in urls:
            asked = self._client.build_request(method, url + path, json=body, headers=headers)
            try:
                answer = await self._client.send(asked, stream=True)
            except httpx.HTTPError as error:
                self._decode.failed(url, error)
                continue
            if answer.status_code == 503 and url != urls[-1]:  # it starts, or has too much to do
                await answer.aclose()
                continue
            kept = {name: answer.headers[name] for name in ("content-type", "retry-after") if name in answer.headers}
            return StreamingResponse(_bytes_of(answer), answer.status_code, kept)
        return _error(503, "no engine that generates answers")


def _params(answer: httpx.Response) -> dict[str, Any] | None:
    """Where an engine has laid out pages, if it says so."""
    try:
        params = answer.json()["kv_transfer_params"]
    except (ValueError, LookupError, TypeError):
        return None
    return params if isinstance(params, dict) else None


async def _bytes_of(answer: httpx.Response) -> AsyncIterator[bytes]:
    """An answer as it comes; it is given up when whoever reads it has gone, and so is the request behind it."""
    try:
        async for chunk in answer.aiter_bytes():
            yield chunk
    finally:
        await answer.aclose()


def _error(status: int, message: str) -> Response:
    kind = "BadRequestError" if status == 400 else "ServiceUnavailableError"
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


def make_app(
    prefill: Sequence[str],
    decode: Sequence[str],
    *,
    prefill_timeout_s: float = 60.0,
    transport: httpx.AsyncBaseTransport | None = None,
) -> FastAPI:
    """The proxy as an app. `transport` reaches the servers where not the network does, in tests."""
    # No limits of its own: the engines queue, and say no when that is too much.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    timeout = httpx.Timeout(None, connect=CONNECT_S)
    client = httpx.AsyncClient(timeout=timeout, limits=limits, transport=transport)
    proxy = Proxy(client, prefill, decode, prefill_timeout_s=prefill_timeout_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan)
    app.add_api_route("/v1/completions", proxy.generate, methods=["POST"])
    app.add_api_route("/v1/chat/completions", proxy.generate, methods=["POST"])
    app.add_api_route("/v1/models", proxy.models, methods=["GET"])
    for path in ("/health", "/healthcheck"):
        app.add_api_route(path, proxy.health, methods=["GET"])
    return app


def main() -> None:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefill", nargs="+", default=[], metavar="URL", help="servers that compute prompts")
    parser.add_argument("--decode", nargs="+", required=True, metavar="URL", help="servers that generate")
    parser.add_argument("--prefill-timeout", type=float, default=60.0, help="seconds that a prompt may take (60)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    app = make_app(options.prefill, options.decode, prefill_timeout_s=options.prefill_timeout)
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
