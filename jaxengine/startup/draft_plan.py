"""What drafts for a model on the device, before any of its weights are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxengine.device.layers.keeps import Keeps, Reads
from jaxengine.device.models.drafts.whole_model import WholeModel
from jaxengine.device.runtime.draft_space import DraftSpace
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.speculation import DraftSpeculation, Method
from jaxengine.startup.draft_heads import plan_head, plan_predictor

if TYPE_CHECKING:
    from jaxengine.startup.model_plan import ModelPlan


@dataclass(frozen=True, kw_only=True)
class DraftPlan:
    """A draft model as programs see it; `layers` say what each of its layers keeps.

    Its own weights are read as those of `model` are, by the options in `config`.
    """

    space: DraftSpace
    layers: tuple[Keeps, ...]
    model: ModelPlan
    config: EngineConfig

    def behind(self, cache: tuple[Keeps, ...]) -> tuple[Keeps, ...]:
        """What the layers of a target and, numbered behind them, its draft's keep."""

        def moved(keeps: Keeps) -> Keeps:
            return tuple(Reads(each.layer + len(cache)) if isinstance(each, Reads) else each for each in keeps)

        return (*cache, *map(moved, self.layers))


def plan_draft(
    config: EngineConfig, target: ModelPlan, plan: Callable[[EngineConfig], ModelPlan], *, weights: bool
) -> DraftPlan | None:
    """What `speculative_config` asks to draft on the device for `target`; None where nothing is to.

    `plan` makes the plan of a whole model. `weights` says whether a head on the hub is fetched whole, or its small files only.

    Raises:
        ConfigError, CheckpointError: there is no such model, or it cannot draft for the target.
    """
    speculation = config.scheduler.speculation
    if not isinstance(speculation, DraftSpeculation):
        return None
    _check_devices(config, speculation)
    if speculation.method is Method.MTP:
        head: tuple[DraftSpace, ModelPlan] | None = plan_predictor(config, target)
    else:
        head = plan_head(config, speculation, target, weights=weights)
    if head is None:
        return _whole_model(config, speculation, target, plan)
    space, model = head
    return DraftPlan(space=space, layers=space.graph.cache, model=model, config=config)


def _check_devices(config: EngineConfig, speculation: DraftSpeculation) -> None:
    size = speculation.tensor_parallel_size
    if size not in (None, config.parallel.tensor_parallel_size):
        raise ConfigError(
            f"speculative_config: draft_tensor_parallel_size={size} is not built; a draft is spread over the devices of the "
            f"model ({config.parallel.tensor_parallel_size})"
        )


def _whole_model(
    config: EngineConfig,
    speculation: DraftSpeculation,
    target: ModelPlan,
    plan: Callable[[EngineConfig], ModelPlan],
) -> DraftPlan:
    own = replace(
        config.model,
        model=speculation.model,
        revision=speculation.revision,
        dtype=str(target.dtype),
        max_model_len=None,
        quantization=None,
        lm_head_dtype="auto",
        hf_overrides={},
    )
    alone = replace(
        config, model=own, scheduler=replace(config.scheduler, speculative_config={}), lora=type(config.lora)()
    )
    model = plan(alone)
    if not model.generates or not model.traits.rewinds:
        what = "generates nothing" if not model.generates else "keeps a state of each sequence beside its pages"
        raise ConfigError(
            f"speculative_config: {speculation.model} cannot draft, as it {what}; use another draft model"
        )
    if model.config.vocab_size != target.config.vocab_size:
        raise ConfigError(
            f"speculative_config: the draft model {speculation.model} has {model.config.vocab_size} tokens and the model "
            f"{target.config.vocab_size}; a draft needs the same tokenizer"
        )
    return DraftPlan(
        space=DraftSpace(graph=model.graph, parameters=model.parameters, as_draft=WholeModel),
        layers=model.graph.cache,
        model=model,
        config=alone,
    )
