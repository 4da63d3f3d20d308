"""Bodies of the endpoints for trainers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from jaxengine.contract.messages import PauseMode


class UpdateWeightsRequest(BaseModel):
    """Use the weights of another checkpoint of the model, a directory on the engine's machine."""

    model_config = ConfigDict(extra="allow")

    path: str = Field(description="a checkpoint's directory")
    weight_version: str | None = Field(None, description="what answers call the weights; by default they are counted")
    mode: PauseMode = Field(
        "wait", description="what becomes of requests that run: they end first, are kept, or end with abort"
    )


class Sleeping(TypedDict):
    """Whether the engine sleeps, as a whole or in part."""

    is_sleeping: bool


class Paused(TypedDict):
    """Whether generation is paused."""

    is_paused: bool


class Status(TypedDict):
    """What was done."""

    status: str


class WeightVersion(TypedDict):
    """What answers call the weights in use."""

    weight_version: str
