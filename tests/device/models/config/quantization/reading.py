"""A quantization_config, read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from jaxengine.device.models.config.quantization import read_quantization
from jaxengine.device.models.config.quantization.modules import Quantization
from jaxengine.errors import ConfigError

LAYER = "model.layers.3.mlp.down_proj"
UP = LAYER.replace("down", "up")


def read(config: Mapping[str, Any], **changes: Any) -> Quantization:
    """What it says, with some of its keys changed."""
    found = read_quantization({"quantization_config": {**copy.deepcopy(config), **changes}})
    assert found is not None
    return found


def check_plain(found: Quantization, plain: str, kept: str) -> None:
    """One module is as it is, the other quantised."""
    assert found.of(plain) is None
    assert found.of(kept) is not None
    assert found.of("elsewhere", plain) is None


def check_refused(config: Mapping[str, Any], changes: Mapping[str, Any], message: str) -> None:
    """What is not built is refused by name."""
    with pytest.raises(ConfigError, match=rf"(?s){message}"):
        read(config, **changes)
