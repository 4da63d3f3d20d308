"""From the options of adapters to slots on the device, and to what reads adapters into them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from jaxengine.contract.adapters import AdapterFacts
from jaxengine.device.layers.adapters import AdapterSpec, slot_rank
from jaxengine.device.runtime.adapter_slots import Packed, ReadAdapter
from jaxengine.device.weights.adapter_packing import Packer
from jaxengine.device.weights.base_tensors import BaseTensors
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint, open_checkpoint
from jaxengine.device.weights.peft import read_adapter
from jaxengine.options.lora import LoraConfig

if TYPE_CHECKING:
    from jaxengine.startup.model_plan import ModelPlan


def plan_adapters(options: LoraConfig) -> AdapterSpec | None:
    """The slots that were asked for; None: the engine has no adapters."""
    if not options.enable_lora:
        return None
    dtype = None if options.lora_dtype == "auto" else jnp.dtype(options.lora_dtype)
    return AdapterSpec(slots=options.max_loras, rank=slot_rank(options.max_lora_rank), dtype=dtype)


def adapter_facts(options: LoraConfig) -> AdapterFacts | None:
    """What the front is told of them."""
    if not options.enable_lora:
        return None
    return AdapterFacts(max_loras=options.max_loras, most_on_host=options.most_on_host)


def adapter_reader(model: ModelPlan, load_format: str) -> ReadAdapter | None:
    """What reads an adapter of this model from its directory; None: the engine has no adapters."""
    if model.adapters is None:
        return None
    pack = Packer(
        rules=model.weights,
        config=model.config,
        structs=model.graph.adapters,
        by_rank=model.adapters.by_rank(model.layout),
        base=BaseTensors(
            model.weights, tied=model.config.tie_word_embeddings, open=lambda: _checkpoint(model, load_format)
        ),
    )

    def read(path: str) -> tuple[str, Packed]:
        adapter = read_adapter(path)
        return adapter.digest, pack(adapter)

    return read


def _checkpoint(model: ModelPlan, load_format: str) -> TensorCheckpoint | None:
    """The model's tensors as they were published; None of one that was converted, or has random weights."""
    if load_format == "dummy":
        return None
    stored = open_checkpoint(model.source.path, load_format=load_format)
    return None if isinstance(stored, OrbaxCheckpoint) else stored
