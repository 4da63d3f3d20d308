"""What an operator asks of a running server."""

from __future__ import annotations

from typing_extensions import TypedDict

from jaxengine.server.http.body import json_router
from jaxengine.server.service import ServiceDep

router = json_router("server")


class ResetResult(TypedDict):
    """Whether every cached prefix was forgotten; false while requests hold some of them."""

    success: bool


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(service: ServiceDep) -> ResetResult:
    """Forget all cached prefixes, for example between measurements."""
    return {"success": await service.engine.reset_prefix_cache()}
