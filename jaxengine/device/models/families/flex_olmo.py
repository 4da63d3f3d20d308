"""FlexOlmo: OLMo 2 with experts in every layer."""

from __future__ import annotations

from jaxengine.device.layers.block import Norms
from jaxengine.device.models.families.olmoe import OlmoeForCausalLM
from jaxengine.device.models.shared.rotary_decoder import BEFORE, POST_NORM_WEIGHTS
from jaxengine.device.weights.rules import Rule

BEHIND = tuple(row for row in POST_NORM_WEIGHTS if isinstance(row, Rule) and "_output_norm" in row.target)


class FlexOlmoForCausalLM(OlmoeForCausalLM):
    """A `Model`."""

    WEIGHTS = (
        *(row for row in OlmoeForCausalLM.WEIGHTS if not isinstance(row, Rule) or row.target not in BEFORE),
        *BEHIND,
    )
    NORMS = Norms.POST
