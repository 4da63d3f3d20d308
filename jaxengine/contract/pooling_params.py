"""Pooling parameters: vLLM's names, validated when they are made, immutable."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxengine.contract.checks import check_boolean, check_integer, check_names
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.options.names import reasons


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """What becomes of a prompt's final hidden states.

    `task` is one of the engine's: `embed` or `classify` (one answer for the prompt), `token_embed` or `token_classify` (one for
    each token), `score` or `reward`; None is its first. `dimensions` keeps the first so many numbers of an embedding
    (Matryoshka). `use_activation` then scales embeddings to length one, and puts scores of classes through the model's sigmoid or
    softmax; None is what the model was made for. `normalize`, `activation` and `softmax` are older names of it.
    `truncate_prompt_tokens` keeps the first so many tokens of the prompt, of a text with the special tokens that are added; -1
    keeps as many as the model takes. Of each token's scores `returned_token_ids` are kept, and `step_tag_id` keeps those of the
    tokens that end a step (process rewards).

    Raises:
        RequestError: a value out of range; the message names the field, the value and what is allowed.
        UnsupportedError: a field or task that is known and not implemented.
    """

    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None
    truncate_prompt_tokens: int | None = None
    task: str | None = None
    step_tag_id: int | None = None
    returned_token_ids: Sequence[int] | None = None

    if not TYPE_CHECKING:  # a type checker knows the names from the fields

        def __new__(cls, **fields: Any) -> PoolingParams:
            check_names(cls, fields, "pooling option", "pooling")
            return super().__new__(cls)

    def __post_init__(self) -> None:
        check_task(self.task)
        given = {name: value for name in ACTIVATIONS if (value := getattr(self, name)) is not None}
        for name, value in given.items():
            check_boolean(name, value)
        if len(set(given.values())) > 1:
            said = " and ".join(f"{name}={value}" for name, value in given.items())
            raise RequestError(f"{said} are the same setting; give one", param=list(given)[-1])
        if self.dimensions is not None:
            check_integer("dimensions", self.dimensions, low=1)
        if self.truncate_prompt_tokens is not None:
            check_integer("truncate_prompt_tokens", self.truncate_prompt_tokens, low=1, besides=-1)
        if self.step_tag_id is not None:
            check_integer("step_tag_id", self.step_tag_id, low=0)
        for number in self.returned_token_ids or ():
            check_integer("returned_token_ids", number, low=0)

    @property
    def activates(self) -> bool | None:
        """Whether to scale to length one or to use the activation of the classes, under whichever name it was said."""
        return next((value for name in ACTIVATIONS if (value := getattr(self, name)) is not None), None)

    def replace(self, **changes: Any) -> PoolingParams:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


TASKS = ("embed", "embedding", "classify", "score", "reward", "token_embed", "token_classify")
"""What `task` may be; which of them an engine has depends on its model."""

ACTIVATIONS = ("use_activation", "normalize", "activation", "softmax")
"""The names of one setting."""


def check_task(task: object) -> None:
    """Accept the names of tasks, and None.

    Raises:
        UnsupportedError: a task of vLLM's that is not built.
        RequestError: no task at all.
    """
    if task is None or task in TASKS:
        return
    if isinstance(task, str) and (reason := reasons("pooling_tasks").get(task)) is not None:
        raise UnsupportedError(f"pooling task {task!r} is not supported: {reason}", param="task")
    raise RequestError(f"unknown pooling task {task!r}; there are {', '.join(TASKS)}", param="task")
