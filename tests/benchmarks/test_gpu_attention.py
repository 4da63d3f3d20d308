"""The script that measures attention on a GPU, tried at a tiny size in interpret mode."""

from __future__ import annotations

import json

import jax.numpy as jnp
import pytest

from benchmarks import gpu_attention
from pallas_kernels import paged_attention


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_attention.main([])
    assert "this measures a GPU, and JAX found a cpu" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trial_run_reports_all_it_would_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_attention.main(["--interpret", "--repeat", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kind"].startswith("a trial")
    agreed = {case["case"]: case for case in report["agreement"]["cases"]}
    assert agreed.keys() == set(gpu_attention.TINY_CASES)
    assert agreed["all-options"]["agrees"]
    assert "only the CPU needs" in agreed["bfloat16-bfloat16-bits"]["refused"]
    shapes = [(shape["rows"], shape["context"], shape["layers"]) for shape in report["decode"]]
    assert shapes == [(1, 80, 2), (2, 80, 1)]  # as many layers as exceed the cache
    assert all(shape["backends"]["gpu"]["microseconds"] > 0 for shape in report["decode"])


def test_a_backend_that_is_wrong_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arrays, backend, **options):
        result = paged_attention(*arrays, backend="reference", **options)
        return result.at[0].set(jnp.nan) if backend == "gpu" else result

    monkeypatch.setattr(gpu_attention, "paged_attention", wrong)
    monkeypatch.setattr(gpu_attention, "TINY_CASES", ("padding-rows",))
    monkeypatch.setattr(gpu_attention, "decode", lambda *_: {})
    assert gpu_attention.main(["--interpret", "--repeat", "1"]) == 1
    assert json.loads(capsys.readouterr().out)["agreement"]["wrong"] == ["padding-rows"]
