"""Engines whose matrices of bfloat16 are kept in 12 bits a number: all that they say is what plain ones say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine import LLM
from jaxengine.startup.build import Engine
from jaxengine.startup.native_libraries import CODED_NEEDS
from jaxengine.tools.convert import convert
from tests.integration import engines
from tests.integration.engines import greedy, run, write_checkpoint
from xla_cache.library import find_compiler

pytestmark = [
    pytest.mark.usefixtures("native", "any_size", "quick_engines"),
    pytest.mark.skipif(not find_compiler().macros >= CODED_NEEDS, reason="no AVX-512 here"),
]

PROMPTS = [[5, 6, 7], list(range(3, 40)), [9] * 17, [11]]
SIZES = {"hidden_size": 128, "intermediate_size": 384, "head_dim": 32, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), num_key_value_heads=2, **SIZES)


def start(model: Path, store: Path, **options: Any) -> Engine:
    """By itself it codes: few sequences run at once."""
    return engines.start(model, dtype="bfloat16", load_format="auto", xla_cache_path=str(store), **options)


def answers(engine: Engine) -> list[tuple[tuple[int, ...], list[float]]]:
    """Tokens and log probabilities of all prompts together and of one alone."""
    asked = replace(greedy(8), logprobs=0)
    found = []
    for output in (*run(engine, PROMPTS, asked), *run(engine, PROMPTS[1:2], asked)):
        [sequence] = output.outputs
        assert sequence.logprobs is not None
        found.append((sequence.token_ids, [next(iter(each.values())).logprob for each in sequence.logprobs]))
    return found


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What an engine of plain matrices says."""
    engine = start(model, tmp_path_factory.mktemp("store"), code_weights="never")
    assert {array.dtype for array in engine.space.parameters.values()} == {jnp.dtype(jnp.bfloat16)}
    found = answers(engine)
    engine.close()
    return found


def test_they_say_the_same_and_so_does_the_next_start(model: Path, plain: list[Any], tmp_path: Path) -> None:
    """Every matrix is coded, the table among them that looks up and scores."""
    for origin in ("compiler", "store"):
        engine = start(model, tmp_path)
        assert {record.origin for record in engine.programs} == {origin}
        matrices = [array for array in engine.space.parameters.values() if len(array.shape) == 2]
        assert len(matrices) == 15
        assert {array.dtype for array in matrices} == {jnp.dtype(jnp.uint16)}
        assert answers(engine) == plain
        engine.close()


@pytest.mark.slow
def test_they_are_made_of_what_orbax_wrote(model: Path, plain: list[Any], tmp_path: Path) -> None:
    convert(str(model), tmp_path / "converted", dtype="bfloat16")
    engine = start(tmp_path / "converted", tmp_path / "store")
    assert engine.space.parameters["embed.table"].dtype == jnp.uint16
    assert answers(engine) == plain
    engine.close()


@pytest.mark.slow
def test_weights_are_given_and_taken_plain(model: Path, plain: list[Any], tmp_path: Path) -> None:
    """Asleep and awake again, changed by a checkpoint, and back by arrays of the model's own names."""
    engine = start(model, tmp_path / "store")
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "config.json").write_text((model / "config.json").read_text())
    tensors = load_file(model / "model.safetensors")
    save_file(
        {name: np.ascontiguousarray(array[::-1]) for name, array in tensors.items()}, changed / "model.safetensors"
    )
    with LLM.from_engine(engine) as llm:
        assert answers(engine) == plain
        compiled = engine.compile_counter.count
        own = {path: np.array(array) for path, array in llm.get_weights().items()}
        table = tensors["model.embed_tokens.weight"].astype(jnp.bfloat16)
        assert own["embed.table"].tobytes() == table.tobytes()
        llm.sleep()
        llm.wake_up()
        assert answers(engine) == plain
        llm.update_weights(changed)
        assert answers(engine) != plain
        llm.update_weights(own)
        assert answers(engine) == plain
        assert engine.compile_counter.count == compiled


@pytest.mark.slow
def test_matrices_beside_adapters_stay_plain(model: Path, tmp_path: Path) -> None:
    engine = start(model, tmp_path, enable_lora=True, max_lora_rank=8)
    assert jnp.dtype(jnp.uint16) not in {array.dtype for array in engine.space.parameters.values()}
    engine.close()
