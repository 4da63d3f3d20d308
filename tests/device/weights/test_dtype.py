"""The dtype option."""

from __future__ import annotations

import logging

import ml_dtypes
import numpy as np
import pytest

from jaxengine.device.weights.dtype import resolve_dtype
from jaxengine.errors import ConfigError
from jaxengine.options.config import DTYPES

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("float32", np.float32),
        ("float", np.float32),
        ("bfloat16", BFLOAT16),
        ("half", np.float16),
        ("float16", np.float16),
    ],
)
def test_a_named_dtype_is_taken(option: str, expected: type, platform: str) -> None:
    assert resolve_dtype(option, checkpoint="bfloat16", platform=platform) == expected


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [("bfloat16", BFLOAT16), ("torch.bfloat16", BFLOAT16), ("float32", np.float32), (None, np.float32)],
)
def test_auto_is_the_checkpoints(checkpoint: str | None, expected: type, platform: str) -> None:
    assert resolve_dtype("auto", checkpoint=checkpoint, platform=platform) == expected


@pytest.mark.parametrize(("platform", "expected"), [("tpu", BFLOAT16), ("cpu", np.float32)])
def test_float16_checkpoints_become_what_the_platform_can_multiply_and_say_so(
    platform: str, expected: type, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="jaxengine"):
        assert resolve_dtype("auto", checkpoint="float16", platform="gpu") == np.float16
        assert caplog.messages == []
        assert resolve_dtype("auto", checkpoint="float16", platform=platform) == expected
    assert len(caplog.messages) == 1


def test_every_choice_of_the_option_is_known() -> None:
    assert all(resolve_dtype(name, checkpoint=None, platform="cpu") for name in DTYPES)


def test_unknown_dtypes() -> None:
    with pytest.raises(ConfigError, match=r"got 'bf16'"):
        resolve_dtype("bf16", checkpoint=None, platform="cpu")
    with pytest.raises(ConfigError, match="'float8_e4m3fn', which the engine cannot compute with"):
        resolve_dtype("auto", checkpoint="float8_e4m3fn", platform="cpu")
