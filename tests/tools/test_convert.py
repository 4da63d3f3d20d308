"""`jaxengine convert` on real models: the parameters that the engine would have loaded, stored as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxengine import cli
from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models import registry
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, open_checkpoint
from jaxengine.device.weights.loader import load
from jaxengine.device.weights.source import resolve
from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.tools.convert import convert


def loaded(directory: Path, *, dtype: Any) -> dict[str, jax.Array]:
    values = json.loads((directory / "config.json").read_text())
    model_class = registry.resolve(values)
    config = registry.read_config(model_class, values)
    _, parameters = abstract_model(model_class, config, dtype=dtype, layout=ONE_DEVICE, platform="cpu")
    return load(open_checkpoint(directory), model_class.WEIGHTS, parameters, config)


def assert_equal(converted: dict[str, jax.Array], original: dict[str, jax.Array]) -> None:
    assert list(converted) == list(original)
    for path, array in original.items():
        assert converted[path].dtype == array.dtype
        np.testing.assert_array_equal(np.asarray(converted[path]), np.asarray(array), err_msg=path)


def test_the_embedded_model(tmp_path: Path) -> None:
    convert(None, tmp_path / "out")
    source = resolve(None).path
    dtype = json.loads((tmp_path / "out/config.json").read_text())["dtype"]
    assert isinstance(open_checkpoint(tmp_path / "out"), OrbaxCheckpoint)
    assert_equal(loaded(tmp_path / "out", dtype=dtype), loaded(source, dtype=dtype))
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_another_dtype_from_the_command_line(shared: Path, tmp_path: Path) -> None:
    source = shared / "models" / "stories260K-hf"
    arguments = ["convert", str(source), str(tmp_path / "out"), "--dtype", "bfloat16"]
    assert cli.main(arguments) == 0
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    assert_equal(loaded(tmp_path / "out", dtype="bfloat16"), loaded(source, dtype="bfloat16"))


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (None, CheckpointError, r"has no config\.json"),
        ("{", CheckpointError, r"config\.json is not valid JSON"),
        ('{"architectures": ["NoSuchModel"]}', ConfigError, "NoSuchModel"),
    ],
)
def test_directories_that_are_no_model(
    config: str | None, error: type[Exception], message: str, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(error, match=message):
        convert(str(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
