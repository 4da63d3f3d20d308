"""`/classify`: the request and the answer."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from jaxengine.server.pooling.protocol import InputRequest, PooledUsage


class ClassificationRequest(InputRequest):
    """Classify one or more texts, or one conversation as the chat template renders it."""


class Classification(TypedDict):
    """One input's class, the most likely one, and a number for each."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classifications(TypedDict):
    """The answer, with `data` in the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Classification]
    usage: PooledUsage
