"""`/v1/models`, as vLLM answers it."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class Permission(TypedDict):
    """What OpenAI once told about a model; clients still read it."""

    id: str
    object: Literal["model_permission"]
    created: int
    allow_create_engine: bool
    allow_sampling: bool
    allow_logprobs: bool
    allow_search_indices: bool
    allow_view: bool
    allow_fine_tuning: bool
    organization: str
    group: str | None
    is_blocking: bool


class Model(TypedDict):
    """A name that requests may use, the checkpoint behind it, and its longest prompt plus output in tokens.

    An adapter has the model as its `parent`.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    permission: list[Permission]


class ModelList(TypedDict):
    """Every name."""

    object: Literal["list"]
    data: list[Model]
