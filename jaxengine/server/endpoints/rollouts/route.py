"""Pausing, sleeping and other weights over HTTP, under vLLM's paths. They stop a server for all: off unless asked for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Response

from jaxengine.contract.messages import TAGS, PauseMode
from jaxengine.errors import CheckpointError, RequestError
from jaxengine.server.endpoints.endpoint import NotServedError
from jaxengine.server.endpoints.rollouts.protocol import Paused, Sleeping, Status, UpdateWeightsRequest, WeightVersion
from jaxengine.server.http.body import json_router
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.service import Service, ServiceDep

router = json_router("trainers")


def sleep_mode(service: ServiceDep) -> Service:
    """The service, where it may be put to sleep.

    Raises:
        NotServedError: it may not.
    """
    if not (service.options.api.server_dev_mode or service.front.config.cache.enable_sleep_mode):
        raise NotServedError("start the server with --enable-sleep-mode, or --server-dev-mode, to have this endpoint")
    return service


def dev_mode(service: ServiceDep) -> Service:
    """The service, where it may be stopped and changed.

    Raises:
        NotServedError: it may not.
    """
    if not service.options.api.server_dev_mode:
        raise NotServedError(
            "start the server with --server-dev-mode (or VLLM_SERVER_DEV_MODE=1) to have this endpoint"
        )
    return service


SleepMode = Annotated[Service, Depends(sleep_mode)]
DevMode = Annotated[Service, Depends(dev_mode)]


@router.post("/sleep")
async def sleep(
    service: SleepMode, level: Annotated[int, Query(ge=0, le=2)] = 1, mode: PauseMode = "abort"
) -> Response:
    """Give the device's memory back until `/wake_up`: level 1 keeps the weights on the host, 2 drops them, 0 gives nothing back.

    `mode` says what becomes of requests that run: they end with `abort`, end by themselves first (`wait`), or go on afterwards
    (`keep`).
    """
    await service.engine.sleep(level, mode)
    return Response()


@router.post("/wake_up")
async def wake_up(service: SleepMode, tags: Annotated[list[str] | None, Query()] = None) -> Response:
    """Take the memory of the `tags` again (`weights`, `kv_cache`), or all of it. Weights that were dropped are read again."""
    wanted = tags or list(TAGS)
    if wrong := [tag for tag in wanted if tag not in TAGS]:
        raise RequestError.of("tags", f"must be some of {', '.join(TAGS)}, got {wrong[0]!r}")
    await service.engine.wake(wanted)
    return Response()


@router.get("/is_sleeping")
async def is_sleeping(service: SleepMode) -> Sleeping:
    """Whether the engine sleeps, as a whole or in part."""
    return {"is_sleeping": service.engine.statistics.asleep}


@router.post("/pause")
async def pause(service: DevMode, mode: PauseMode = "abort", clear_cache: bool = True) -> Status:
    """Compute nothing until `/resume`. Requests that come meanwhile wait."""
    await service.engine.pause(mode, clear_cache=clear_cache)
    return {"status": "paused"}


@router.post("/resume")
async def resume(service: DevMode) -> Status:
    """Go on computing."""
    await service.engine.resume()
    return {"status": "resumed"}


@router.get("/is_paused")
async def is_paused(service: DevMode) -> Paused:
    """Whether generation is paused."""
    return {"is_paused": service.engine.statistics.paused}


@router.post("/update_weights")
async def update_weights(body: UpdateWeightsRequest, service: DevMode) -> WeightVersion:
    """Use the weights of another checkpoint of the model from now on. Nothing compiles; cached prefixes are forgotten."""
    check_unknown(body.model_extra)
    try:
        await service.engine.update(body.path, body.weight_version, body.mode)
    except CheckpointError as error:
        raise RequestError(str(error), param="path") from error
    return {"weight_version": service.engine.statistics.weight_version}


@router.get("/get_weight_version")
async def get_weight_version(service: ServiceDep) -> WeightVersion:
    """What answers call the weights in use."""
    return {"weight_version": service.engine.statistics.weight_version}
