"""Every device program of an engine compiles for a GPU, with the Pallas kernel in it."""

from __future__ import annotations

import pytest

from tests.targets.test_tpu_compile import DEEPSEEK, QWEN, check, space
from tests.targets.tpu import available

pytestmark = [
    pytest.mark.gpu_compile,
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated"),
]


@pytest.mark.parametrize("target", ["a100", "h200"])
def test_qwen3_on_one_gpu(target):
    check(space(QWEN, available(target).devices()), kernel="__gpu$xla.gpu.triton")


@pytest.mark.parametrize(("target", "kv_dtype"), [("a100", "bfloat16"), ("h100", "float8_e4m3fn")])
def test_deepseek_on_one_gpu(target, kv_dtype):
    check(space(DEEPSEEK, available(target).devices(), kv_dtype=kv_dtype), kernel="__gpu$xla.gpu.triton")
