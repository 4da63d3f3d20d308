"""An application of Ray Serve around `AsyncLLM`: OpenAI's completions, on more replicas while requests wait.

    pip install 'jaxengine[ray]' 'ray[serve]'
    MODEL=Qwen/Qwen3-0.6B serve run examples.deploy.ray_serve:app

A replica is an engine with devices of its own. `REPLICAS` is the most that there may be, `DEVICES` what each takes of Ray's
`RESOURCE` (TPU, GPU, or CPU). Beyond `REQUESTS` a replica Ray starts another, by its own rule of how soon: `SCALING` has more of
its `autoscaling_config`, as JSON (`{"upscale_delay_s": 10}`). For all of OpenAI's and Anthropic's endpoints run
`jaxengine serve`.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from jaxengine import AsyncLLM, RequestOutputKind, SamplingParams
from jaxengine.errors import JaxEngineError, OverloadedError, RequestError

MODEL = os.environ.get("MODEL")
RESOURCE, DEVICES = os.environ.get("RESOURCE", "CPU"), int(os.environ.get("DEVICES", "1"))
REPLICAS, REQUESTS = int(os.environ.get("REPLICAS", "2")), int(os.environ.get("REQUESTS", "64"))
SCALING: dict[str, Any] = json.loads(os.environ.get("SCALING", "{}"))
OPTIONS: dict[str, Any] = json.loads(os.environ.get("OPTIONS", "{}"))

PASSED_ON = ("max_tokens", "temperature", "top_p", "seed", "stop", "n", "presence_penalty", "frequency_penalty")
"""Fields of a request that mean the same in `SamplingParams`."""


def resources() -> dict[str, Any]:
    """What Ray gives a replica."""
    amounts: dict[str, Any] = {"CPU": {"num_cpus": DEVICES}, "GPU": {"num_cpus": 1, "num_gpus": DEVICES}}
    return amounts.get(RESOURCE, {"num_cpus": 1, "resources": {RESOURCE: DEVICES}})


@serve.deployment(
    ray_actor_options=resources(),
    max_ongoing_requests=2 * REQUESTS,
    autoscaling_config={"min_replicas": 1, "max_replicas": REPLICAS, "target_ongoing_requests": REQUESTS, **SCALING},
    health_check_period_s=5,
)
class Completions:
    """A replica: `/v1/completions` and `/v1/models`."""

    def __init__(self) -> None:
        devices = {} if RESOURCE == "CPU" else {"tensor_parallel_size": DEVICES}
        self._llm = AsyncLLM(MODEL, enable_multiprocessing=True, **devices, **OPTIONS)
        self._name = MODEL or "embedded"

    async def check_health(self) -> None:
        """Ray asks, and replaces a replica that raises. An engine that starts, or starts again, has its requests wait."""
        with suppress(OverloadedError):
            await self._llm.check_health()

    async def __call__(self, request: Request) -> Response:
        """Answer one HTTP request."""
        if request.url.path.endswith("/v1/models"):
            return JSONResponse(
                {"object": "list", "data": [{"id": self._name, "object": "model", "owned_by": "jaxengine"}]}
            )
        if not request.url.path.endswith("/v1/completions"):
            return _error(404, f"there is no {request.url.path}; there are /v1/completions and /v1/models")
        body = await request.json()
        name = f"cmpl-{uuid.uuid4().hex}"
        try:
            given = {field: body[field] for field in PASSED_ON if body.get(field) is not None}
            kind = RequestOutputKind.DELTA if body.get("stream") else RequestOutputKind.FINAL_ONLY
            outputs = self._llm.generate(body["prompt"], SamplingParams(**given, output_kind=kind), name)
            if body.get("stream"):
                return StreamingResponse(self._events(name, outputs), media_type="text/event-stream")
            async for output in outputs:
                last = output
        except (RequestError, KeyError) as error:
            return _error(400, str(error))
        except JaxEngineError as error:
            return _error(503, str(error))
        count = sum(len(each.token_ids) for each in last.outputs)
        length = len(last.prompt_token_ids or ())
        usage = {"prompt_tokens": length, "completion_tokens": count, "total_tokens": length + count}
        return JSONResponse(self._completion(name, last) | {"usage": usage})

    async def _events(self, name: str, outputs: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for output in outputs:
            yield f"data: {json.dumps(self._completion(name, output))}\n\n"
        yield "data: [DONE]\n\n"

    def _completion(self, name: str, output: Any) -> dict[str, Any]:
        choices = [
            {"index": each.index, "text": each.text, "finish_reason": each.finish_reason, "logprobs": None}
            for each in output.outputs
        ]
        return {
            "id": name,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._name,
            "choices": choices,
        }


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": status}}, status)


app = Completions.bind()  # type: ignore[attr-defined]
