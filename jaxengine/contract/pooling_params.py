"""Pooling parameters: vLLM's names, validated when they are made, immutable."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxengine.contract.checks import check_boolean, check_integer, check_names
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.options.names import reasons


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """What becomes of the final hidden state of a prompt's last token.

    `dimensions` keeps the first so many numbers (Matryoshka). `normalize` then scales to length one; None is what the model was
    made for. `use_activation` is vLLM's newer name of `normalize`. `truncate_prompt_tokens` keeps the first so many tokens of the
    prompt, and of a text the special tokens that the tokenizer adds too; -1 keeps as many as the model takes.

    Raises:
        RequestError: a value out of range; the message names the field, the value and what is allowed.
        UnsupportedError: a field or task that is known and not implemented.
    """

    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    task: str | None = None

    if not TYPE_CHECKING:  # a type checker knows the names from the fields

        def __new__(cls, **fields: Any) -> PoolingParams:
            check_names(cls, fields, "pooling option", "pooling")
            return super().__new__(cls)

    def __post_init__(self) -> None:
        check_task(self.task)
        for name in ("normalize", "use_activation"):
            if getattr(self, name) is not None:
                check_boolean(name, getattr(self, name))
        if None not in (self.normalize, self.use_activation) and self.normalize != self.use_activation:
            raise RequestError(
                f"normalize={self.normalize} and use_activation={self.use_activation} are the same setting; give one",
                param="use_activation",
            )
        if self.dimensions is not None:
            check_integer("dimensions", self.dimensions, low=1)
        if self.truncate_prompt_tokens is not None:
            check_integer("truncate_prompt_tokens", self.truncate_prompt_tokens, low=1, besides=-1)

    def normalizes(self, *, default: bool) -> bool:
        """Whether to scale to length one, under whichever name it was said."""
        given = self.use_activation if self.normalize is None else self.normalize
        return default if given is None else given

    def replace(self, **changes: Any) -> PoolingParams:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


TASKS = ("embed", "embedding")
"""What `task` may be; the second is an older name of the first."""


def check_task(task: object) -> None:
    """Accept the names of the one task that is built, and None.

    Raises:
        UnsupportedError: another of vLLM's tasks.
        RequestError: no task at all.
    """
    if task is None or task in TASKS:
        return
    if isinstance(task, str) and (reason := reasons("pooling_tasks").get(task)) is not None:
        raise UnsupportedError(f"pooling task {task!r} is not supported: {reason}", param="task")
    raise RequestError(f"unknown pooling task {task!r}; built is 'embed'", param="task")
