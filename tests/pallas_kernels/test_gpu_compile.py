"""XLA's GPU compiler takes the kernels for Ampere and Hopper, and leaves the pool where it is. Runs nothing.

Needs JAX's CUDA plugin, which belongs in an environment of its own (4 GB): there, `python -m pytest -m gpu_compile`.
"""

from __future__ import annotations

import pytest

from pallas_kernels import gpu_targets
from pallas_kernels.check import MODELS, Heads, checks, main
from xla_cache.chips import CHIPS, GpuChip

TRITON = "__gpu$xla.gpu.triton"


def test_both_packages_describe_the_same_devices() -> None:
    """Neither may import the other."""
    described = {name: chip.target_config for name, chip in CHIPS.items() if isinstance(chip, GpuChip)}
    assert {name: sorted(gpu.target_config.split()) for name, gpu in gpu_targets.GPUS.items()} == {
        name: sorted(text.split()) for name, text in described.items()
    }


@pytest.mark.skipif(gpu_targets.missing() is None, reason="this environment can compile for GPUs")
def test_the_command_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--target", "h200"])
    assert "this environment lacks JAX's CUDA plugin: pip install 'jax[cuda13]'" in capsys.readouterr().err


@pytest.mark.gpu_compile
@pytest.mark.skipif(gpu_targets.missing() is not None, reason=f"needs {gpu_targets.missing()}")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize(
    ("target", "heads"),
    [
        ("a100", MODELS["Llama-3.1-8B"]),
        ("h100", MODELS["Qwen3-0.6B"]),
        ("h200", MODELS["Llama-3.1-8B"]),
        ("a100", MODELS["Gemma-2-9B"]),
        ("h200", MODELS["Gemma-2-9B"]),
        ("h100", MODELS["Llama-3.1-8B int8"]),
        ("a100", MODELS["Qwen3-0.6B float8"]),
        ("h200", MODELS["Qwen3-0.6B float8"]),
        ("h200", Heads(32, 8, 128, kv_dtype="float8_e5m2")),
        ("h100", Heads(16, 16, 64, kv_dtype="float32")),
        ("a100", Heads(14, 2, 80)),
        ("h200", Heads(32, 32, 96)),
        ("h200", Heads(16, 1, 112)),
    ],
    ids=str,
)
def test_it_compiles_in_place(target: str, heads: Heads) -> None:
    for check in checks(target, 1, {"model": heads}):
        hlo = check.compile().as_text()
        assert (TRITON in hlo) == (not check.name.endswith("copy")), check.name
