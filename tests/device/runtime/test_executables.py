"""The serving loop's table: what was not compiled is an error, or compiled with a warning when that was chosen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.runtime.executables import Executables
from jaxengine.errors import UnplannedShapeError
from xla_cache import Program

DOUBLE = Program("double", lambda x: x * 2, (jax.ShapeDtypeStruct((3,), jnp.float32),))


def test_compiled_ahead():
    executables, records = Executables.compile([DOUBLE], threads=1)
    assert executables["double"](np.ones(3, np.float32)).tolist() == [2.0] * 3
    assert [record.name for record in records] == ["double"]
    assert "double" in executables
    assert len(executables) == 1


def test_unplanned_names_what_was_planned():
    executables, _ = Executables.compile([DOUBLE], threads=1)
    with pytest.raises(UnplannedShapeError, match=r"'triple'.*double"):
        executables["triple"]


def test_lazy_compiles_once_and_warns(caplog):
    executables = Executables.lazy([DOUBLE])
    assert "double" in executables
    assert len(executables) == 0
    with caplog.at_level("WARNING"):
        assert executables["double"](np.ones(3, np.float32)).tolist() == [2.0] * 3
        executables["double"](np.ones(3, np.float32))
    assert len([record for record in caplog.records if "on first use" in record.message]) == 1
