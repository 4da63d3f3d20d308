"""What importing costs and what is public: the host half never loads JAX, and the exported names are few."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import buckets
import jaxengine
from tests.jax_users import loads_jax

ROOT = Path(__file__).resolve().parents[1]
REPORT = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def loaded_by(statements: str) -> set[str]:
    """The top-level packages in `sys.modules` of a fresh interpreter after `statements`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statements}\n{REPORT}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


HOST = {"contract", "front", "grammar", "host", "media", "options", "server", "text"}
DEVICE = {"device"}
BOTH = {"bench", "startup", "tools"}
DOORS = {"api", "cli"}
"""They lead to both halves, and load the device half when there is work for it."""
SINGLE = {"__main__", "collector", "embedded", "errors", "serve"}
"""Files with one idea each that belong to no room; `embedded` holds the model that is shipped."""


def test_folders_say_which_half_a_module_is_of() -> None:
    """The contract and mypy's list of strict modules name folders: here nothing is left out."""
    assert {module.name for module in pkgutil.iter_modules(jaxengine.__path__)} == HOST | DEVICE | BOTH | DOORS | SINGLE
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    contract = next(c for c in settings["importlinter"]["contracts"] if c["name"] == "The host half never loads JAX")
    assert set(contract["source_modules"]) == {"buckets", *(f"jaxengine.{room}" for room in HOST)}
    strict = next(table for table in settings["mypy"]["overrides"] if "disallow_untyped_defs" in table)["module"]
    without_jax = {"jaxengine.device.tiers.*"}  # a part of the device half that is plain Python too
    assert set(strict) == {"buckets.*", *(f"jaxengine.{room}.*" for room in HOST | DOORS), *without_jax}


def test_only_the_device_half_loads_jax() -> None:
    packages = [("jaxengine", jaxengine.__path__), ("buckets", buckets.__path__)]
    names = [module.name for name, path in packages for module in pkgutil.walk_packages(path, prefix=f"{name}.")]
    modules = [name for name in names if name.split(".")[1] not in DEVICE | BOTH | {"__main__"}]
    assert {"jaxengine.api.llm", "jaxengine.cli.serve", "jaxengine.host.scheduler.scheduler", "buckets.grid"} <= set(
        modules
    )
    loaded = loaded_by("\n".join(f"import {module}" for module in modules))
    assert loaded.isdisjoint({"jax", "jaxlib", "flax", "torch"})


@pytest.mark.slow
def test_tests_that_are_not_run_with_every_jax_do_not_load_it() -> None:
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    host = [path for path in tests if not loads_jax(path)]
    assert (
        {"test_scheduler.py", "test_async_client.py", "test_llm.py"}
        <= {path.name for path in host}
        < {p.name for p in tests}
    )
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in host]
    loaded = loaded_by("import tests.conftest\n" + "\n".join(f"import {module}" for module in modules))
    assert loaded.isdisjoint({"jax", "jaxlib", "flax"})


@pytest.mark.parametrize(
    "name",
    ["device/models/test_parity", "device/runtime/test_runner", "device/sampling/test_sampler", "tools/test_plan"],
)
def test_tests_of_the_device_half_are_run_with_every_jax(name: str) -> None:
    assert loads_jax(ROOT / "tests" / f"{name}.py")


@pytest.mark.parametrize("name", ["SamplingParams", "RequestOutput", "JaxEngineError"])
def test_public_values_do_not_load_jax(name: str) -> None:
    assert "jax" not in loaded_by(f"from jaxengine import {name}")


def test_the_check_itself_sees_jax() -> None:
    assert "jax" in loaded_by("import jaxengine.device.sampling")


def test_the_public_surface() -> None:
    assert sorted(jaxengine.__all__) == [
        "AsyncEngineArgs",
        "AsyncLLM",
        "AsyncLLMEngine",
        "BeamSearchParams",
        "CompletionOutput",
        "EmbeddingOutput",
        "EmbeddingRequestOutput",
        "EngineArgs",
        "JaxEngineError",
        "LLM",
        "LoRARequest",
        "Logprob",
        "PoolingOutput",
        "PoolingParams",
        "PoolingRequestOutput",
        "RequestOutput",
        "RequestOutputKind",
        "SamplingParams",
        "StructuredOutputsParams",
    ]
    for name in jaxengine.__all__:
        assert getattr(jaxengine, name).__name__ == {"AsyncLLMEngine": "AsyncLLM"}.get(name, name)
    with pytest.raises(AttributeError, match="has no attribute 'SamplingParam'"):
        _ = jaxengine.SamplingParam
