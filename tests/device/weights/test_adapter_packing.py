"""Which matrices have slots, and what an adapter must be to be held by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.layers.adapters import AdapterSpec, slot_rank
from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.adapter_packing import Packer, has_slots
from jaxengine.device.weights.base_tensors import BaseTensors
from jaxengine.device.weights.named_arrays import NamedArrays
from jaxengine.device.weights.peft import LowRank, PeftAdapter
from jaxengine.errors import CheckpointError, ConfigError, JaxEngineError, RequestError, UnsupportedError
from tests.device.models.cases import Fixture

SPEC = AdapterSpec(slots=2, rank=8)
Q = "model.layers.0.self_attn.q_proj"


def packer(case: str, targets: tuple[str, ...] | None = None) -> Packer:
    hf_config = Fixture.load(case).config
    model_class = resolve(hf_config)
    config = read_config(model_class, hf_config)
    graph, _ = abstract_model(
        model_class,
        config,
        dtype=jnp.float32,
        layout=ONE_DEVICE,
        platform="cpu",
        adapters=SPEC,
        adapted=has_slots(model_class.WEIGHTS, targets),
    )
    return Packer(rules=model_class.WEIGHTS, config=config, structs=graph.adapters, by_rank=SPEC.by_rank(ONE_DEVICE))


def adapter(modules: Mapping[str, LowRank], saved: Mapping[str, np.ndarray] | None = None) -> PeftAdapter:
    return PeftAdapter("digest", modules, saved or {})


def low_rank(inputs: int, outputs: int, rank: int = 4, fill: float = 1.0) -> LowRank:
    return LowRank(np.full((rank, inputs), fill, np.float32), np.ones((outputs, rank), np.float32), 0.5)


def slots(case: str, targets: tuple[str, ...] | None) -> set[str]:
    return {path.partition(".adapters.")[0] for path in packer(case, targets).structs}


def test_every_matrix_of_layers_has_slots_but_those_of_experts() -> None:
    names = {f"layers.0.{name}" for name in ("attention.q", "attention.k", "attention.v", "attention.o")}
    dense = {f"layers.0.mlp.{name}" for name in ("gate", "up", "down")}
    assert {path for path in slots("llama", None) if path.startswith("layers.0")} == names | dense
    assert {path for path in slots("qwen3-moe", None) if path.startswith("layers.0")} == names


def test_targets_are_the_last_names_of_a_checkpoints_modules() -> None:
    found = slots("phi3", ("gate_up_proj",))
    assert {path.split(".", 2)[2] for path in found} == {"mlp.gate", "mlp.up"}
    found = slots("qwen3-moe", ("experts",))
    assert {path.rpartition(".")[2] for path in found} == {"gate", "up", "down"}


def test_a_target_without_slots_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"lora_target_modules: norm is no matrix .* embed_tokens, .*lm_head, o_proj, q_proj"
    ):
        packer("llama", ("q_proj", "norm"))


def test_a_slot_is_filled_up_with_zeros_and_scaled() -> None:
    pack = packer("llama")
    inputs, outputs = 64, 64
    values = dict(zip(pack.structs, pack(adapter({Q: low_rank(inputs, outputs)})), strict=True))
    inward, outward = (values[f"layers.0.attention.q.adapters.{side}"] for side in ("inward", "outward"))
    assert inward.shape == (8, inputs)
    assert (inward[:4] == 1).all()
    assert not inward[4:].any()
    assert (outward[:4] == 0.5).all()
    assert not outward[4:].any()
    assert not values["layers.1.attention.q.adapters.inward"].any()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (adapter({Q: low_rank(64, 64, rank=9)}), RequestError, "rank of 9 .* max_lora_rank=9"),
        (adapter({Q: low_rank(63, 64)}), CheckpointError, "model's has 64 inputs"),
        (adapter({Q: low_rank(64, 65)}), CheckpointError, "65 outputs .* does not make the 64"),
        (adapter({Q: low_rank(64, 64, fill=np.inf)}), CheckpointError, "not finite"),
        (adapter({"model.layers.0.self_attn.qq_proj": low_rank(64, 64)}), CheckpointError, "no such module"),
        (adapter({"model.layers.9.self_attn.q_proj": low_rank(64, 64)}), UnsupportedError, "has no slots"),
        (adapter({"lm_head": low_rank(64, 96)}), UnsupportedError, "lm_head, which has no slots .* name lm_head in"),
        (
            adapter({"model.embed_tokens": low_rank(96, 64)}),
            UnsupportedError,
            "embed_tokens, which has .* name embed_tokens in",
        ),
        (adapter({}, {"lm_head.weight": np.ones((96, 64), np.float32)}), UnsupportedError, "modules_to_save"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_slot_cannot_hold_is_refused_by_name(
    given: PeftAdapter, error: type[JaxEngineError], message: str
) -> None:
    with pytest.raises(error, match=message):
        packer("llama")(given)


def test_what_the_base_model_has_itself_may_be_brought() -> None:
    """A head that is tied to the embedding is the embedding's tensor; one number more, and it is another."""
    table = np.arange(96 * 64, dtype=np.float32).reshape(96, 64)
    base = BaseTensors(packer("qwen3").rules, tied=True, open=lambda: NamedArrays({"model.embed_tokens.weight": table}))
    pack = replace(packer("qwen3", ("lm_head",)), base=base)
    assert pack.structs.keys() == {"embed.scoring.inward", "embed.scoring.outward"}
    head = LowRank(np.ones((4, 64), np.float32), np.ones((96, 4), np.float32), 1.0)
    inward, outward = pack(adapter({"lm_head": head}, {"lm_head.weight": table, "embed_tokens.weight": table}))
    assert inward.sum() == 4 * 64
    assert outward.sum() == 4 * 96
    with pytest.raises(UnsupportedError, match=r"the whole of lm_head.weight, .* merge it"):
        pack(adapter({}, {"lm_head.weight": table + (table == 7)}))


def test_what_would_have_slots_if_it_were_named_is_told_apart_from_what_never_has_any() -> None:
    layer = "model.layers.1"
    with pytest.raises(UnsupportedError, match="which has no slots for adapters; name experts in lora_target_modules"):
        packer("qwen3-moe")(adapter({f"{layer}.mlp.experts.0.up_proj": low_rank(64, 32)}))
    with pytest.raises(UnsupportedError, match=r"kv_b_proj, which has no slots for adapters; merge it"):
        packer("deepseek-v2-lite")(adapter({f"{layer}.self_attn.kv_b_proj": low_rank(32, 64)}))


def test_slots_have_the_next_larger_rank_of_the_ladder() -> None:
    assert [slot_rank(rank) for rank in (1, 8, 9, 16, 64, 300)] == [8, 8, 16, 16, 64, 320]
    with pytest.raises(ValueError, match="512 at most, got 513"):
        slot_rank(513)
