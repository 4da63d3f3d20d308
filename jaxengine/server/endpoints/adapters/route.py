"""Adapters that come and go while a server runs, under vLLM's paths. They make it read directories: off unless asked for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from fastapi.responses import PlainTextResponse

from jaxengine.errors import CheckpointError, RequestError
from jaxengine.server.endpoints.adapters.protocol import LoadAdapterRequest, UnloadAdapterRequest
from jaxengine.server.endpoints.endpoint import NotServedError
from jaxengine.server.http.body import json_router
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.service import Service, ServiceDep

router = json_router("adapters")


def updatable(service: ServiceDep) -> Service:
    """The service, where adapters may come and go.

    Raises:
        NotServedError: they may not.
    """
    if not service.options.adapters.allow_runtime_lora_updating:
        raise NotServedError(
            "start the server with --enable-lora and --allow-runtime-lora-updating (or VLLM_ALLOW_RUNTIME_LORA_UPDATING=1) to "
            "have this endpoint"
        )
    return service


Updatable = Annotated[Service, Depends(updatable)]


@router.post("/v1/load_lora_adapter", response_class=PlainTextResponse)
async def load_lora_adapter(body: LoadAdapterRequest, service: Updatable) -> str:
    """Serve an adapter; answers when it has been read."""
    check_unknown(body.model_extra)
    try:
        await service.adapters.add(body.lora_name, body.lora_path, base=body.base_model_name, inplace=body.load_inplace)
    except CheckpointError as error:
        raise RequestError(str(error), param="lora_path") from error
    return f"Success: LoRA adapter '{body.lora_name}' added successfully."


@router.post("/v1/unload_lora_adapter", response_class=PlainTextResponse)
async def unload_lora_adapter(body: UnloadAdapterRequest, service: Updatable) -> str:
    """Serve an adapter no more. Requests that have come go on with it."""
    check_unknown(body.model_extra)
    service.adapters.remove(body.lora_name)
    return f"Success: LoRA adapter '{body.lora_name}' removed successfully."
