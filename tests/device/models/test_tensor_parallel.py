"""One device equals two, four and eight, with the collectives that the layout calls for and no others."""

from __future__ import annotations

import functools
import itertools
import re

import jax
import numpy as np
import pytest

from jaxengine.device.layers import exchange, sharding
from jaxengine.device.layers.latent_attention import LatentAttention
from jaxengine.device.layers.sharding import Layout
from jaxengine.errors import ConfigError
from tests.device.models.cases import FAMILIES, PROMPTS, Fixture
from tests.device.models.paged import MIXED, PagedModel
from tests.quick import slow_but

CHUNK = 5
OFTEN = {("llama", 2), *((case, 8) for case in ("gemma3", "qwen3-moe"))}
"""Eight devices are more than heads, so KV heads are repeated there; of families like one another one is tried often."""


ELSEWHERE = {"qwen3-next": 5e-5}
"""Its norms scale by one more than their weights, which are random numbers about 1: rounding is felt twice as much."""


@functools.cache
def alone(case: str) -> list[np.ndarray]:
    fixture = Fixture.load(case)
    return PagedModel(fixture.config, fixture.tensors).logprobs(PROMPTS, seq=CHUNK)


@pytest.mark.parametrize(
    "place",
    slow_but([("llama", 4), ("llama", 2), *((case, 8) for case in FAMILIES)], (), often=OFTEN),
)
def test_log_probabilities_do_not_depend_on_the_devices(place):
    case, devices = place
    fixture = Fixture.load(case)
    found = PagedModel(fixture.config, fixture.tensors, devices=devices).logprobs(PROMPTS, seq=CHUNK)
    for here, there in zip(found, alone(case), strict=True):
        np.testing.assert_allclose(here, there, atol=ELSEWHERE.get(case, 2e-5) * fixture.spread, rtol=0)


@pytest.mark.slow
def test_devices_that_split_tokens_answer_as_one(monkeypatch):
    """As a TPU's do: sums go to each token's device and tokens to all, along the rows and columns of four devices."""
    asked = []

    def splits(layout: Layout, tokens: int, *, platform: str) -> bool:
        asked.append(layout.parallel and tokens % layout.shards("split_tokens") == 0)
        return asked[-1]

    monkeypatch.setattr(exchange, "ONE_STEP", 2)
    monkeypatch.setattr(Layout, "splits_stream", splits)
    fixture = Fixture.load("deepseek-v3")
    found = PagedModel(fixture.config, fixture.tensors, devices=4).logprobs(PROMPTS, seq=4)
    assert any(asked)
    for here, there in zip(found, alone("deepseek-v3"), strict=True):
        np.testing.assert_allclose(here, there, atol=2e-5 * fixture.spread, rtol=0)


@pytest.mark.parametrize("case", slow_but(["llama", "qwen3-moe-some-layers"], ()))
def test_devices_that_hide_what_they_send_answer_as_one(monkeypatch, case):
    """As four of a TPU's do with many tokens: products of each other's tokens while others are on their way."""

    def splits(layout: Layout, tokens: int, *, platform: str) -> bool:
        return layout.parallel and tokens % layout.shards("split_tokens") == 0

    monkeypatch.setattr(sharding, "MANY_ROWS", 2)
    monkeypatch.setattr(Layout, "splits_stream", splits)
    fixture = Fixture.load(case)
    model = PagedModel(fixture.config, fixture.tensors, devices=4, page_size=8)  # programs of no other test
    found = model.logprobs(PROMPTS, seq=CHUNK)
    texts = [program.as_text() for name, program in model.runner.executables.items() if name.startswith("forward")]
    assert any("collective-permute" in text for text in texts)
    for here, there in zip(found, alone(case), strict=True):
        np.testing.assert_allclose(here, there, atol=2e-5 * fixture.spread, rtol=0)


@pytest.mark.slow
def test_devices_that_exchange_heads_for_tokens_answer_as_one(monkeypatch):
    """As TPUs do with a few heads of latent attention each. Pages of their own size: these programs are no other test's."""

    def exchanges(attention: LatentAttention, queries: jax.Array, starts: jax.Array) -> bool:
        devices = attention.context.layout.shards("heads")
        return devices > 1 and len(queries) % devices == 0

    monkeypatch.setattr(LatentAttention, "_exchanges", exchanges)
    fixture = Fixture.load("deepseek-v3")
    model = PagedModel(fixture.config, fixture.tensors, devices=4, page_size=8)
    found = model.logprobs(PROMPTS, seq=4)
    texts = [program.as_text() for name, program in model.runner.executables.items() if name.startswith("forward")]
    assert any("all-to-all" in text for text in texts)
    for here, there in zip(found, alone("deepseek-v3"), strict=True):
        np.testing.assert_allclose(here, there, atol=2e-5 * fixture.spread, rtol=0)


@pytest.mark.parametrize(
    "way",
    slow_but(list(itertools.product([2, 4], [False, True], [None, "int8"])), (), often={(4, True, "int8")}),
)
def test_experts_are_shared_either_way(way):
    """Two or four devices have a part of every expert, or whole experts; the numbers and the tokens are those of one."""
    devices, expert_parallel, quantization = way
    fixture = Fixture.load("qwen3-moe-some-layers")
    alone = PagedModel(fixture.config, fixture.tensors, quantization=quantization)
    model = PagedModel(
        fixture.config, fixture.tensors, devices=devices, expert_parallel=expert_parallel, quantization=quantization
    )
    gate = model.space.parameters["layers.1.mlp.gate.weight"]
    count, width, inner = gate.shape
    cut = (count // devices, width, inner) if expert_parallel else (count, width, inner // devices)
    assert gate.sharding.shard_shape(gate.shape) == cut
    for found, expected in zip(model.logprobs(PROMPTS, seq=CHUNK), alone.logprobs(PROMPTS, seq=CHUNK), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-5 * fixture.spread, rtol=0)
    assert model.greedy(PROMPTS, 12, seq=CHUNK) == alone.greedy(PROMPTS, 12, seq=CHUNK)


BY_DATA = [("qwen3-moe-some-layers", *way) for way in ((4, 4, None), (4, 2, None), (8, 4, "int8"))]


@pytest.mark.parametrize("way", slow_but([*BY_DATA, ("glm-5-shared", 4, 4, None)], (), often={BY_DATA[0]}))
def test_attention_by_data_beside_experts_on_all_devices(way):
    """Groups of devices have attention whole and rows of their own, and each device its own experts."""
    case, devices, data, quantization = way
    fixture = Fixture.load(case)
    alone = PagedModel(fixture.config, fixture.tensors, quantization=quantization)
    model = PagedModel(fixture.config, fixture.tensors, devices=devices, data=data, quantization=quantization)
    routed = "mlp.gate" if case.startswith("qwen3") else "mlp.routed.gate"
    of_experts, of_attention = (model.space.parameters[f"layers.1.{name}.weight"] for name in (routed, "attention.q"))
    assert of_experts.sharding.shard_shape(of_experts.shape)[0] == of_experts.shape[0] // devices
    assert of_attention.sharding.shard_shape(of_attention.shape)[0] == of_attention.shape[0] * data // devices
    if quantization is None:  # a device multiplies its own tokens with attention's matrices
        outputs = of_attention.sharding.shard_shape(of_attention.shape)[0]
        text = model.runner.executables[f"forward {MIXED}"].as_text()
        assert re.search(rf"= f32\[{MIXED.tokens // data},{outputs}\]\S* dot\(", text)
        assert not re.search(rf"= f32\[{MIXED.tokens},{outputs}\]\S* dot\(", text)
    for found, expected in zip(model.logprobs(PROMPTS, seq=CHUNK), alone.logprobs(PROMPTS, seq=CHUNK), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-5 * fixture.spread, rtol=0)
    assert model.greedy(PROMPTS, 12, seq=CHUNK) == alone.greedy(PROMPTS, 12, seq=CHUNK)


@pytest.mark.parametrize(
    ("devices", "expert_parallel", "message"),
    [
        (8, False, "does not divide the 36 channels of an expert"),
        (8, True, "8 devices cannot have the same number of 6 exp"),
    ],
)
def test_experts_that_do_not_divide_are_refused(devices, expert_parallel, message):
    fixture = Fixture.load("qwen3-moe")
    config = {**fixture.config, "num_local_experts": 6, "moe_intermediate_size": 36}
    with pytest.raises(ConfigError, match=message):
        PagedModel(config, {}, devices=devices, expert_parallel=expert_parallel)


@pytest.mark.parametrize("case", slow_but(["llama", "opt-norm-after-projected"], (), often={"llama"}))
def test_eight_devices_decode_the_same_tokens(case):
    """Decoding reads back what was written by head: two KV heads, repeated for eight devices."""
    fixture = Fixture.load(case)
    found = PagedModel(fixture.config, fixture.tensors, devices=8).greedy(PROMPTS, 12, seq=CHUNK)
    assert found == [tokens[:12] for tokens in fixture.greedy]


@pytest.mark.slow
def test_a_vocabulary_that_does_not_divide_stays_whole():
    """97 tokens on 4 devices: no padding column exists that could win."""
    case = "llama-mha-head-dim-linear"
    fixture = Fixture.load(case)
    model = PagedModel(fixture.config, fixture.tensors, devices=4)
    assert model.space.parameters["embed.table"].sharding.is_fully_replicated
    found = model.logprobs(PROMPTS, seq=CHUNK)
    assert found[0].shape[1] == 97
    for here, there in zip(found, alone(case), strict=True):
        np.testing.assert_allclose(here, there, atol=2e-5 * fixture.spread, rtol=0)


@pytest.mark.slow
def test_collectives_and_memory_of_a_step():
    """Two sums per layer and one for the embedding; nothing is gathered; the pages stay where they are."""
    fixture = Fixture.load("llama")
    model = PagedModel(fixture.config, fixture.tensors, devices=8)
    forward = model.runner.executables[f"forward {MIXED}"]
    text = forward.as_text()
    found = re.findall(r"(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\(", text)
    assert found == ["all-reduce"] * (2 * model.config.num_layers + 1)
    assert forward.memory_analysis().alias_size_in_bytes >= model.runner.cache.pages[0].nbytes // 8


def test_devices_that_would_cut_a_head_are_refused():
    fixture = Fixture.load("llama")
    with pytest.raises(ConfigError, match=r"tensor_parallel_size=3.*Use one of 1, 2, 4, 8"):
        PagedModel(fixture.config, fixture.tensors, devices=3)
