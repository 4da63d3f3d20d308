"""Engines whose matrix products are the CPU's own: kept, in bundles, and the same in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import Engine, build_engine
from jaxengine.startup.program_context import NATIVE
from jaxengine.tools.cache import import_bundle
from jaxengine.tools.compile_ahead import compile_ahead
from jaxengine.tools.convert import convert
from tests.integration import engines
from tests.integration.engines import greedy, run, token_ids, write_checkpoint, write_config
from xla_cache import Bundle

pytestmark = pytest.mark.usefixtures("native", "any_size", "quick_engines")

PROMPTS = [[5, 6, 7], list(range(3, 40)), [9] * 17, [11]]
BFLOAT16 = {"dtype": "bfloat16"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("model"), num_hidden_layers=1)


def origins(engine: Engine) -> set[str]:
    return {record.origin for record in engine.programs}


def answers(engine: Engine) -> list[tuple[int, ...]]:
    """Greedy tokens of all prompts together, which nothing was compiled for. The engine is closed."""
    tokens = token_ids(run(engine, PROMPTS, greedy(8)))
    assert engine.compile_counter.count == 0
    engine.close()
    return tokens


@pytest.mark.parametrize(
    "options",
    [BFLOAT16, pytest.param({"quantization": "int8", **BFLOAT16}, marks=pytest.mark.slow)],
    ids=["bfloat16", "int8"],
)
def test_what_is_generated_alone_is_generated_in_company_and_by_the_next_start(
    model: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    options = {"xla_cache_path": str(tmp_path), **options}
    engine = engines.start(model, **options)
    assert origins(engine) == {"compiler"}
    alone = [token_ids(run(engine, [prompt], greedy(8)))[0] for prompt in PROMPTS]
    assert answers(engine) == alone
    second = engines.start(model, **options)
    assert origins(second) == {"store"}
    assert answers(second) == alone


@pytest.mark.slow
def test_matrices_of_4_bits_are_packed_whatever_they_are_read_from(tmp_path: Path) -> None:
    """Layers' and the table that looks up and scores, of tensors and of Orbax."""
    source = write_checkpoint(tmp_path / "model", num_hidden_layers=1)
    options = {"quantization": "int4", "lm_head_dtype": "int4", **BFLOAT16}
    convert(str(source), tmp_path / "converted", **options)
    loaded = {"load_format": "auto", "xla_cache_path": str(tmp_path / "store"), **options}
    engine = engines.start(source, **loaded)
    kept = engine.space.parameters
    assert kept["embed.table"].shape[2:] == kept["layers.0.mlp.up.weight"].shape[2:] == (8, 4)
    alone = [token_ids(run(engine, [prompt], greedy(8)))[0] for prompt in PROMPTS]
    assert answers(engine) == alone
    assert answers(engines.start(tmp_path / "converted", **loaded)) == alone


@pytest.mark.slow
def test_a_bundle_of_them_starts_and_is_imported(model: Path, tmp_path: Path) -> None:
    options = {**engines.SMALL, **BFLOAT16}
    compile_ahead(EngineConfig.from_options(model=str(model), **options), "local", tmp_path / "bundle")
    assert NATIVE in Bundle.open(tmp_path / "bundle").manifest.context
    given = {"load_format": "dummy", "skip_tokenizer_init": True, "xla_cache_path": str(tmp_path / "other")}
    bundled = build_engine(EngineConfig.from_options(model=str(model), bundle=str(tmp_path / "bundle"), **given))
    assert origins(bundled) == {"bundle"}
    tokens = answers(bundled)
    import_bundle(tmp_path / "bundle", tmp_path / "store", None)
    imported = engines.start(model, xla_cache_path=str(tmp_path / "store"), **BFLOAT16)
    assert origins(imported) == {"store"}
    assert answers(imported) == tokens
