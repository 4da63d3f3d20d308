"""Bodies of the endpoints that load and unload adapters."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LoadAdapterRequest(BaseModel):
    """Serve the adapter in a directory of the engine's machine under a name."""

    model_config = ConfigDict(extra="allow")

    lora_name: str = Field(min_length=1, max_length=256)
    lora_path: str = Field(min_length=1, description="a directory with an adapter as PEFT saves it")
    load_inplace: bool = Field(False, description="replace the adapter of this name, where there is one")
    base_model_name: str | None = Field(None, description="what /v1/models tells as its parent")


class UnloadAdapterRequest(BaseModel):
    """Serve an adapter no more."""

    model_config = ConfigDict(extra="allow")

    lora_name: str = Field(min_length=1)
    lora_int_id: int | None = Field(None, description="vLLM's number of it, which says nothing here")
