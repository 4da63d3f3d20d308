"""What importing costs and what is public: the host half never loads JAX, and the exported names are few."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jaxengine

ROOT = Path(__file__).resolve().parents[1]
REPORT = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def loaded_by(statements: str) -> set[str]:
    """The top-level packages in `sys.modules` of a fresh interpreter after `statements`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statements}\n{REPORT}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def host_modules() -> list[str]:
    """Every module of the host half, from the import contract that names it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    sources = next(entry["source_modules"] for entry in contracts if entry["name"] == "The host half never loads JAX")
    found = list(sources)
    for name in sources:
        folder = ROOT.joinpath(*name.split("."))
        if folder.is_dir():
            found += [module.name for module in pkgutil.walk_packages([str(folder)], prefix=f"{name}.")]
    return found


def test_no_module_of_the_host_half_loads_jax() -> None:
    modules = host_modules()
    assert {"jaxengine.scheduler.scheduler", "jaxengine.kvcache.ledger", "buckets.grid"} <= set(modules)
    loaded = loaded_by("\n".join(f"import {module}" for module in ["jaxengine", "jaxengine.cli", *modules]))
    assert loaded.isdisjoint({"jax", "jaxlib", "flax", "torch"})


@pytest.mark.parametrize("name", ["SamplingParams", "RequestOutput", "JaxEngineError"])
def test_public_values_do_not_load_jax(name: str) -> None:
    assert "jax" not in loaded_by(f"from jaxengine import {name}")


def test_the_check_itself_sees_jax() -> None:
    assert "jax" in loaded_by("import jaxengine.sampling")


def test_the_public_surface() -> None:
    assert sorted(jaxengine.__all__) == [
        "BeamSearchParams",
        "CompletionOutput",
        "EmbeddingOutput",
        "EmbeddingRequestOutput",
        "JaxEngineError",
        "LLM",
        "Logprob",
        "PoolingOutput",
        "PoolingParams",
        "PoolingRequestOutput",
        "RequestOutput",
        "SamplingParams",
        "StructuredOutputsParams",
    ]
    for name in jaxengine.__all__:
        assert getattr(jaxengine, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'SamplingParam'"):
        _ = jaxengine.SamplingParam
