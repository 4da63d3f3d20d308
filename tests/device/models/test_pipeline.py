"""Each parameter lies where it is used: layers with their stage, embeddings with the first, the head with the last."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxengine.device.layers.sharding import Layout, one_device
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.pipeline import Pipeline, pipeline_of
from jaxengine.device.models.registry import read_config, resolve
from tests.device.models.cases import Fixture
from tests.integration.engines import LLAMA


def pipeline(config: dict[str, Any], *ends: int) -> Pipeline:
    model_class = resolve(config)
    make = partial(abstract_model, model_class, read_config(model_class, config), dtype=jnp.float32, platform="cpu")
    begins = (0, *ends[:-1])
    layers = [range(begin, end) for begin, end in zip(begins, ends, strict=True)]
    layouts: list[Layout] = [one_device(device) for device in jax.devices()[: len(ends)]]
    return pipeline_of(list(zip(layers, layouts, strict=True)), lambda layout: make(layout=layout))


def plain(*, tied: bool) -> dict[str, Any]:
    return {**LLAMA, "num_hidden_layers": 4, "tie_word_embeddings": tied}


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_matrix_lies_on_the_first_and_the_last(tied: bool) -> None:
    found = pipeline(plain(tied=tied), 2, 3, 4)
    first, middle, last = (set(part.own) for part in found.parts)
    assert {path for path in first if not path.startswith("layers.")} == {"embed.table"}
    assert {path.split(".")[1] for path in middle} == {"2"}
    assert ("embed.table" in last) == tied
    assert list(found.copies) == (["first.embed.table"] if tied else [])
    assert first | middle | last == set(found.parameters)


def test_each_lies_on_the_device_of_its_stage() -> None:
    found = pipeline(plain(tied=False), 2, 4)
    devices = jax.devices()
    for path, struct in found.parameters.items():
        late = path.startswith(("layers.2", "layers.3", "norm", "head", "lm_head")) or (
            "embed" not in path and "layers" not in path
        )
        assert struct.sharding is not None
        assert struct.sharding.device_set == {devices[late]}, path


@pytest.mark.parametrize("case", ["gpt2", "gemma3", "lfm2"])
def test_what_embedding_needs_is_found_out_of_the_model(case: str) -> None:
    config = Fixture.load(case).config
    layers = len(
        abstract_model(
            resolve(config), read_config(resolve(config), config), dtype=jnp.float32, layout=Layout(), platform="cpu"
        )[0].cache
    )
    found = pipeline(config, 1, layers)
    first = {path for path in found.parts[0].own if not path.startswith("layers.")}
    assert first, "something embeds tokens"
    assert all(path in found.parts[-1].own for path in (copy.removeprefix("first.") for copy in found.copies))
    assert set(found.parts[0].own) | set(found.parts[-1].own) == set(found.parameters)
