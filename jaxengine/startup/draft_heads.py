"""What reads the states of a model and drafts for it: layers of its own checkpoint, or a head with a checkpoint of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxengine.device.models.drafts.interface import Draft
from jaxengine.device.models.drafts.registry import head_of, predictor_of, read_head_config
from jaxengine.device.models.parameters import abstract_model, merge
from jaxengine.device.runtime.draft_space import DraftSpace
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.speculation import DraftSpeculation, Method
from jaxengine.startup.model_files import find_model, read_config_json
from jaxengine.startup.quantization import choose_head, choose_schemes

if TYPE_CHECKING:
    from jaxengine.startup.model_plan import ModelPlan

OTHERS = Ignore("**", "of the model that is drafted for", others=True)


def plan_predictor(config: EngineConfig, target: ModelPlan) -> tuple[DraftSpace, ModelPlan]:
    """Layers of the target's checkpoint that predict several tokens, as programs see them and as they are read.

    Raises:
        ConfigError: its family has none.
    """
    draft_class = predictor_of(target.model_class)
    return _plan(config, target, replace(target, weights=(*draft_class.rules(target.config), OTHERS)), draft_class)


def plan_head(
    config: EngineConfig, speculation: DraftSpeculation, target: ModelPlan, *, weights: bool
) -> tuple[DraftSpace, ModelPlan] | None:
    """A draft with a checkpoint of its own that reads states; None: it is a model that stands for itself.

    Raises:
        ConfigError, CheckpointError: there is no such draft, or it drafts for another model.
    """
    options = replace(config.model, model=speculation.model, revision=speculation.revision)
    source = find_model(options, options.revision, weights=False)
    values = read_config_json(source.path)
    draft_class = None if speculation.method is Method.DRAFT_MODEL else head_of(values, speculation.method)
    if draft_class is None:
        return None
    own = read_head_config(draft_class, values, target.config)
    if weights and config.model.load_format != "dummy":
        source = find_model(options, source.commit, weights=True)
    plan = replace(target, source=source, config_json=values, config=own, weights=tuple(draft_class.rules(own)))
    return _plan(config, target, plan, draft_class)


def _plan(
    config: EngineConfig, target: ModelPlan, plan: ModelPlan, draft_class: type[Any]
) -> tuple[DraftSpace, ModelPlan]:
    """`plan` has all but matrices, graph and parameters. What is the target's is kept as the target keeps it."""
    outside = tuple(
        row for row in target.weights if isinstance(row, Rule) and row.target.startswith(draft_class.SHARED)
    )
    option = config.model.quantization if plan.config_json is target.config_json else None
    schemes = choose_schemes(option, plan.config_json, (*plan.weights, *outside))
    schemes = choose_head(schemes, config.model.lm_head_dtype, tied=target.config.tie_word_embeddings)
    graph, parameters = abstract_model(
        draft_class,
        plan.config,
        dtype=target.dtype,
        layout=target.layout,
        platform=target.platform,
        schemes=schemes,
        kv_dtype=target.kv_dtype,
    )
    shared = {path: path for path in parameters if path.startswith(draft_class.SHARED)}
    for path in shared:
        if path not in target.parameters or target.parameters[path].shape != parameters[path].shape:
            raise ConfigError(
                f"speculative_config: what drafts takes {path} from the model, which keeps it in another form; leave "
                "quantization and lm_head_dtype out, or use another method"
            )
    draft: Draft = _itself(merge(graph, list(parameters.values())))
    space = DraftSpace(
        graph=graph, parameters=parameters, shared=shared, ahead=draft.ahead, taps=draft.taps, as_draft=_itself
    )
    return space, replace(
        plan,
        model_class=draft_class,
        schemes=schemes,
        graph=graph,
        parameters={path: struct for path, struct in parameters.items() if path not in shared},
        adapters=None,
    )


def _itself(module: Any) -> Any:
    """The module is what drafts."""
    return module
