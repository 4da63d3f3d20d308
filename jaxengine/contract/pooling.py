"""What an engine makes of prompts that it pools: its tasks, and what becomes of the numbers that the device brings up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.rows import Align
from jaxengine.errors import RequestError


class Pooling(StrEnum):
    """Which hidden state stands for a prompt: its last token's, its first one's, or the mean of all; or it is the mean of what is
    made of each, which is late."""

    LAST = "last"
    FIRST = "first"
    MEAN = "mean"
    LATE = "late"


class Finish(StrEnum):
    """What numbers of the device go through: nothing, scaling to length one, a sigmoid each, a softmax over all of them, or
    zero in place of what is negative."""

    NONE = "none"
    NORMALIZE = "normalize"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"
    RELU = "relu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """What one request wants of its prompt, with nothing left to decide.

    With `each` it wants the numbers of every token, of which those of the tokens `step_tag_id` are kept where that is given, and
    otherwise those of what stands for the prompt. Of each token's those from `columns[0]` to `columns[1]` are meant, of the first
    token none if it is `first`, nor of the last one if it is `last`. Of these the `chosen` ones, or the first `dimensions`, are
    kept, `mean` is taken off them, they are divided by `sigma`, and go through `finish`. With `whole` all tokens have to be
    computed in one step. With `align` it wants that, and nothing is pooled.
    """

    task: str
    each: bool = False
    whole: bool = False
    finish: Finish = Finish.NORMALIZE
    dimensions: int | None = None
    chosen: tuple[int, ...] | None = None
    step_tag_id: int | None = None
    columns: tuple[int, int | None] = (0, None)
    first: int | None = None
    last: int | None = None
    mean: float = 0.0
    sigma: float = 1.0
    align: Align | None = None


@dataclass(frozen=True, kw_only=True)
class PoolerTraits:
    """What an engine pools, as the model's files and `pooler_config` say it.

    `pooling` makes the vector of a prompt; None: there is none, and each token has its own (late interaction). `with_each` says
    whether each token's can be had. A vector has `size` numbers, a token's `each_size`; they are scores of `labels` where there
    are some, and otherwise embeddings; the last `num_weights` of a token's are its weights (lexical ones, of sparse embeddings).
    Nothing is given of a first token `first`, nor the weights of a last one `last`. `finish` is what numbers go through where a
    request does not say, and `activation` what it is switched on to. With `whole_prompts` tokens see those after them, so that
    a prompt is computed in one step. A model that `tells_apart` two texts in one prompt is told where the second begins.

    `dimensions`, `step_tag_id`, `returned_token_ids`, `mean` and `sigma` are as in `Pooled`, for requests that do not say.
    `prompts` are texts that go before others, by what these are (`query`, `document`).
    With `chunk_long` embeddings of prompts that are longer than the context are means of those of their parts, up to
    `longest_input` tokens.
    """

    pooling: Pooling | None = Pooling.LAST
    with_each: bool = False
    size: int = 0
    each_size: int = 0
    num_weights: int = 0
    first: int | None = None
    last: int | None = None
    labels: tuple[str, ...] = ()
    finish: Finish = Finish.NORMALIZE
    activation: Finish = Finish.NORMALIZE
    whole_prompts: bool = False
    tells_apart: bool = False
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] | None = None
    mean: float = 0.0
    sigma: float = 1.0
    chunk_long: bool = False
    longest_input: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)

    @property
    def classifies(self) -> bool:
        """Whether the numbers are scores of classes."""
        return bool(self.labels)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of a request, the first being that of one which names none."""
        of_prompt, of_each = ("classify", "token_classify") if self.classifies else ("embed", "token_embed")
        return (
            *((of_prompt,) if self.pooling is not None else ()),
            *((of_each,) if self.with_each else ()),
            *(("token_classify",) if self.num_weights else ()),
        )

    @property
    def computes_whole(self) -> bool:
        """Whether every prompt is computed in one step."""
        return self.whole_prompts or self.pooling is not Pooling.LAST

    @property
    def scores(self) -> bool:
        """Whether two texts can be compared: by embeddings, or by a model that reads both and has one label."""
        return not self.classifies or (self.pooling is not None and len(self.labels) == 1)

    def wanted(self, params: PoolingParams) -> Pooled:
        """What a request with these parameters wants.

        Raises:
            RequestError: another task than the engine's, or values that it does not allow.
        """
        task = self._task(params.task)
        each = task.startswith("token_")
        weights = task == "token_classify" and not self.classifies
        vectors = self.each_size - self.num_weights
        given = params.activates
        finish = self.finish if given is None else self.activation if given else Finish.NONE
        if weights:
            finish = Finish.NONE if given is False else Finish.RELU
        chosen = params.returned_token_ids if params.returned_token_ids is not None else self.returned_token_ids
        tag = params.step_tag_id if params.step_tag_id is not None else self.step_tag_id
        size = self.num_weights if weights else vectors if each else self.size
        self._check_values(params, each=each, size=size)
        return Pooled(
            task=task,
            each=each,
            whole=each or self.computes_whole,
            finish=finish,
            dimensions=None if self.classifies else params.dimensions or self.dimensions,
            chosen=None if chosen is None else tuple(chosen),
            step_tag_id=tag if each else None,
            columns=(vectors, None) if weights else (0, vectors) if self.num_weights and each else (0, None),
            first=self.first if each else None,
            last=self.last if weights else None,
            mean=self.mean,
            sigma=self.sigma,
        )

    def _task(self, asked: str | None) -> str:
        if not self.tasks:
            raise RequestError(
                "beside generation this model's embeddings are not built; start the engine with runner='pooling'",
                param="task",
            )
        if asked is None:
            return self.tasks[0]
        task = ALIASES.get(asked, asked)
        if task == "score":
            task = "classify" if self.classifies else "embed" if self.pooling is not None else "token_embed"
        if task == "reward":
            task = "token_classify"
        if task not in self.tasks:
            raise RequestError(f"this model has no task {asked!r}; it has {', '.join(self.tasks)}", param="task")
        return task

    def _check_values(self, params: PoolingParams, *, each: bool, size: int) -> None:
        if params.dimensions is not None and (self.classifies or params.dimensions > size):
            allowed = (
                "left out: this model classifies"
                if self.classifies
                else f"from 1 to {size}, the length of an embedding"
            )
            raise RequestError(f"dimensions must be {allowed}, got {params.dimensions}", param="dimensions")
        if params.step_tag_id is not None and not each:
            raise RequestError("step_tag_id chooses among tokens; give it with a token task", param="step_tag_id")
        wrong: Sequence[int] = [number for number in params.returned_token_ids or () if number >= size]
        if wrong:
            raise RequestError(f"returned_token_ids must be below {size}, got {wrong[0]}", param="returned_token_ids")


ALIASES = {"embedding": "embed"}
"""Older names of tasks."""
