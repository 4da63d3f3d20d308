"""MiMo 7B: Qwen2 with layers that predict several tokens behind it, which `drafts/` has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.families.qwen2 import Qwen2ForCausalLM
from jaxengine.device.weights.rules import Ignore


class MiMoForCausalLM(Qwen2ForCausalLM):
    """A `Model`."""

    WEIGHTS = (
        *Qwen2ForCausalLM.WEIGHTS,
        Ignore("[model.]mtp_layers.**", "predicts several tokens: read by what drafts"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **Qwen2ForCausalLM.IGNORED,
        "auto_map": Ignored("code of the repository, which is never run"),
        "attention_bias": Ignored("queries, keys and values always have biases", allowed=(True,)),
        "num_nextn_predict_layers": Ignored("layers that predict several tokens are read by what drafts"),
        "use_mrope": Ignored("positions have one dimension", allowed=(False,)),
    }
