"""Every benchmark finds what it imports: none of them is run here, and a rename would pass them by."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

BESIDE_VLLM = {"benchmarks.vllm_templates"}
"""Run in vLLM's environment, not in this one."""


@pytest.mark.slow
def test_all_are_imported() -> None:
    names = {module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")}
    assert names > BESIDE_VLLM
    for name in sorted(names - BESIDE_VLLM):
        importlib.import_module(name)
