"""Which models are served: one, under every name it was given, and adapters beside it."""

from __future__ import annotations

from jaxengine.server.endpoints.models.protocol import Model, ModelList, Permission
from jaxengine.server.http.body import json_router
from jaxengine.server.service import Service, ServiceDep

router = json_router("models")


@router.get("/v1/models")
async def list_models(service: ServiceDep) -> ModelList:
    """The names that requests may use."""
    names = (*service.model_names, *service.adapters.served)
    return {"object": "list", "data": [_model(service, name) for name in names]}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, service: ServiceDep) -> Model:
    """One of the names."""
    service.check_model(name)
    await service.adapters.find(name)
    return _model(service, name)


def _model(service: Service, name: str) -> Model:
    served = service.adapters.served.get(name)
    permission: Permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": service.created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": service.created if served is None else served.created,
        "owned_by": "jaxengine",
        "root": service.root if served is None else served.adapter.path,
        "parent": None if served is None else served.base or service.model_names[0],
        "max_model_len": service.max_model_len,
        "permission": [permission],
    }
