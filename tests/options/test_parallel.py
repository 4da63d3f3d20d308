"""Replicas: which of them a server has, and what cannot be."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig


def test_replicas_behind_a_server_are_all_or_one() -> None:
    assert EngineConfig().parallel.ranks == (0,)
    assert EngineConfig.from_options(dp=3).parallel.ranks == (0, 1, 2)
    one = EngineConfig.from_options(
        dp=4, data_parallel_rank=3, data_parallel_size_local=2, data_parallel_external_lb=True
    )
    assert one.parallel.ranks == (3,)
    assert one.parallel.replicas_here == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_parallel_external_lb": True}, "data_parallel_external_lb needs data_parallel_rank"),
        ({"dp": 4, "dpl": 2}, "data_parallel_size_local=2 of data_parallel_size=4"),
        ({"dp": 4, "dpn": 4}, "data_parallel_rank=4 must be below data_parallel_size=4"),
        ({"dp": 4, "dpl": 3, "dpn": 1}, "data_parallel_size_local=3 must divide data_parallel_size=4"),
        ({"dp": 2, "data_parallel_backend": "ray"}, "data_parallel_backend='ray' is refused: Replicas are processes"),
        ({"dp": 0}, "dp must be an integer of at least 1, got 0"),
    ],
)
def test_replicas_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        EngineConfig.from_options(**options)


def test_one_process_is_one_replica() -> None:
    EngineConfig.from_options(dp=2, data_parallel_rank=1).parallel.check_alone()
    with pytest.raises(
        ConfigError, match=r"data_parallel_size=2 needs 2 processes.*jaxengine serve --data-parallel-size 2"
    ):
        EngineConfig.from_options(dp=2).parallel.check_alone()
