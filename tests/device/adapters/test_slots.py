"""Adapters in slots: what the merged model computes, for each sequence as if it were alone, on one device and on several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxengine.device.layers.adapters import AdapterSpec
from jaxengine.device.weights.peft import LowRank, PeftAdapter
from tests.device.adapters.cases import ADAPTERS, AdapterFixture
from tests.device.adapters.test_merging import MAX_ERROR
from tests.device.models.cases import PROMPTS, Fixture, log_softmax
from tests.device.models.paged import PagedModel
from tests.quick import slow_but
from xla_cache import CompileCounter

SPEC = AdapterSpec(slots=3, rank=8)
EXPERTS = ("q_proj", "experts")
IN_SLOTS = [name for name in ADAPTERS if name not in ("llama-saved-head", "deepseek-v2-lite-latent")]
VOCABULARY = ("embed_tokens", "lm_head", "q_proj", "v_proj")
TARGETS = {"llama-vocabulary": VOCABULARY, "qwen3-tied": VOCABULARY}
MOVED = 1e-2
"""Of a log probability: by so much at least every adapter here moves some."""


def with_adapters(directory: Path, *names: str, **options: Any) -> tuple[PagedModel, Mapping[str, AdapterFixture]]:
    """A model, and adapters of it in its slots from 1 on."""
    fixtures = {name: AdapterFixture.load(name) for name in names}
    base = fixtures[names[0]].base
    model = PagedModel(base.config, base.tensors, adapters=options.pop("spec", SPEC), **options)
    for slot, (name, fixture) in enumerate(fixtures.items(), 1):
        digest = model.runner.load_adapter(str(fixture.write(directory / name)))
        model.runner.place_adapter(digest, slot)
    return model, fixtures


def error(found: list[np.ndarray], fixture: AdapterFixture) -> float:
    """Of log probabilities of all prompts, as a share of the logits' standard deviation."""
    expected = [log_softmax(logits) for logits in fixture.logits]
    worst = max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(found, expected, strict=True))
    return worst / float(np.concatenate(fixture.logits).std())


@pytest.mark.parametrize("name", slow_but(IN_SLOTS, ["llama-patterns"]))
def test_a_slot_is_the_merged_model(name: str, tmp_path: Path) -> None:
    model, fixtures = with_adapters(tmp_path, name, targets=TARGETS.get(name))
    assert error(model.logprobs(PROMPTS, seq=5, adapters=[1] * len(PROMPTS)), fixtures[name]) < MAX_ERROR


@pytest.mark.parametrize(
    "names",
    [
        ("llama", "llama-patterns", "llama-rslora-one-layer"),
        pytest.param(("llama-vocabulary",), marks=pytest.mark.rare),
    ],
    ids=lambda names: names[0],
)
def test_company_changes_no_bit(names: tuple[str, ...], tmp_path: Path) -> None:
    """Of prompts with one adapter, another or none: beside each other as each alone, with the others' slots empty or not."""
    model, _ = with_adapters(tmp_path, *names, targets=TARGETS.get(names[0]))
    through = [number % (1 + len(names)) for number in range(1, len(PROMPTS) + 1)]
    together = model.logprobs(PROMPTS, seq=5, adapters=through)
    alone = [model.logprobs([prompt], seq=5, adapters=[slot])[0] for prompt, slot in zip(PROMPTS, through, strict=True)]
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    base = model.logprobs(PROMPTS, seq=5)
    for ours, plain, slot in zip(together, base, through, strict=True):
        assert slot or np.array_equal(ours, plain)
        assert not slot or np.abs(ours - plain).max() > MOVED
    llama = AdapterFixture.load("llama").base
    without = PagedModel(llama.config, llama.tensors)
    for ours, theirs in zip(base, without.logprobs(PROMPTS, seq=5), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_adapters_come_and_go_without_compiling(tmp_path: Path) -> None:
    """Through one slot, which holds the last that was placed and nothing of those before."""
    names = "llama", "llama-patterns", "llama-rslora-one-layer"
    model, _ = with_adapters(tmp_path, *names)
    runner, prompts = model.runner, PROMPTS[1:2]
    digests = [runner.load_adapter(str(tmp_path / name)) for name in names]
    first = [model.logprobs(prompts, seq=5, adapters=[slot])[0] for slot in (1, 2, 3)]
    with CompileCounter() as compiled:
        for number in range(12):
            runner.place_adapter(digests[number % 3], 2)
            np.testing.assert_array_equal(model.logprobs(prompts, seq=5, adapters=[2])[0], first[number % 3])
    assert compiled.count == 0
    runner.drop_adapter(digests[0])
    with pytest.raises(KeyError):
        runner.place_adapter(digests[0], 1)
    with pytest.raises(ValueError, match="adapter slots are 1 to 3, got 4"):
        runner.place_adapter(digests[1], 4)


@pytest.mark.slow
def test_memory_that_was_given_back_has_empty_slots(tmp_path: Path) -> None:
    model, _ = with_adapters(tmp_path, "llama")
    through, base = model.logprobs(PROMPTS, seq=5, adapters=[1] * 3), model.logprobs(PROMPTS, seq=5)
    model.runner.release()
    model.runner.restore_weights()
    model.runner.restore_state()
    for ours, plain in zip(model.logprobs(PROMPTS, seq=5, adapters=[1] * 3), base, strict=True):
        np.testing.assert_array_equal(ours, plain)
    model.runner.place_adapter(str(tmp_path / "llama"), 1)
    for ours, before in zip(model.logprobs(PROMPTS, seq=5, adapters=[1] * 3), through, strict=True):
        np.testing.assert_array_equal(ours, before)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"devices": 2}, marks=pytest.mark.slow),
        pytest.param({"devices": 4}, marks=pytest.mark.rare),
        pytest.param({"name": "llama-vocabulary", "targets": VOCABULARY, "devices": 2}, marks=pytest.mark.rare),
        pytest.param({"spec": AdapterSpec(slots=40, rank=8)}, marks=pytest.mark.rare),
    ],
    ids=str,
)
def test_devices_share_adapters_as_they_share_matrices(options: dict[str, Any], tmp_path: Path) -> None:
    given = {"name": "llama", **options}
    name = given.pop("name")
    model, fixtures = with_adapters(tmp_path, name, **given)
    assert error(model.logprobs(PROMPTS, seq=5, adapters=[1] * 3), fixtures[name]) < MAX_ERROR


@pytest.mark.parametrize(
    "quantization", [pytest.param("int8", marks=pytest.mark.rare), pytest.param("int4", marks=pytest.mark.rare)]
)
def test_beside_quantised_matrices_adapters_move_logits_as_much(quantization: str, tmp_path: Path) -> None:
    """What an adapter adds is not rounded: it moves the quantised model about as it moves the plain one."""
    moved = []
    for name, options in (("plain", {}), ("quantised", {"quantization": quantization})):
        model, _ = with_adapters(tmp_path / name, "llama", **options)
        through, base = model.logprobs(PROMPTS, seq=5, adapters=[1] * 3), model.logprobs(PROMPTS, seq=5)
        moved.append(np.concatenate(through) - np.concatenate(base))
    plain, quantised = moved
    assert np.corrcoef(plain.ravel(), quantised.ravel())[0, 1] > 0.9


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.slow), pytest.param({"devices": 2}, marks=pytest.mark.rare)], ids=str
)
def test_each_expert_has_adapters_of_its_own(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three experts of the first layer and the attention of the second: as a model whose matrices have them added."""
    fixture, numbers = Fixture.load("qwen3-moe"), np.random.default_rng(3)
    modules = ["model.layers.1.self_attn.q_proj", "model.layers.0.mlp.experts.1.down_proj"]
    modules += [
        f"model.layers.0.mlp.experts.{expert}.{part}_proj" for expert in (0, 3) for part in ("gate", "up", "down")
    ]
    tensors, pairs = dict(fixture.tensors), {}
    for module in modules:
        outputs, inputs = tensors[f"{module}.weight"].shape
        a, b = (numbers.normal(scale=0.3, size=size).astype(np.float32) for size in ((4, inputs), (outputs, 4)))
        pairs[module] = LowRank(a, b, 0.5)
        tensors[f"{module}.weight"] = tensors[f"{module}.weight"] + 0.5 * (b @ a)
    adapter = PeftAdapter("experts", pairs, {})
    monkeypatch.setattr("tests.device.models.paged.read_adapter", lambda path: adapter)
    model = PagedModel(fixture.config, fixture.tensors, adapters=SPEC, targets=EXPERTS, **options)
    model.runner.place_adapter(model.runner.load_adapter("anywhere"), 2)
    merged = PagedModel(fixture.config, tensors).logprobs(PROMPTS, seq=5)
    base = PagedModel(fixture.config, fixture.tensors).logprobs(PROMPTS, seq=5)
    found = model.logprobs(PROMPTS, seq=5, adapters=[2, 0, 2])
    for ours, theirs in zip(found, (merged[0], base[1], merged[2]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=MAX_ERROR * float(np.std(theirs)) * 3)
    assert np.abs(merged[0] - base[0]).max() > MOVED
