"""Kernels that overlap or leave gaps are counted once, and by kind."""

from benchmarks.device_kernels import Kernel, summary


def test_a_device_is_busy_while_any_kernel_runs() -> None:
    found = summary(
        [
            Kernel("gemm_fusion_dot_12", 4e6, 6e6),
            Kernel("gemm_fusion_dot_7", 0.0, 2e6),
            Kernel("memset", 1e6, 1.5e6),  # within another
            Kernel("scatter", 1.5e6, 3e6),  # half within another
        ]
    )
    assert found["span_ms"] == 6.0
    assert found["busy_ms"] == 5.0
    assert found["kernels_ms"] == [["gemm_fusion_dot_#", 4.0, 2], ["scatter", 1.5, 1], ["memset", 0.5, 1]]
