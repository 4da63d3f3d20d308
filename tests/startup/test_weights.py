"""What cannot be read for the way a model is spread."""

from __future__ import annotations

import pytest

from jaxengine.errors import ConfigError
from jaxengine.startup.weights import refuse_hosts_of_stages


def test_orbax_is_refused_for_stages_of_several_hosts() -> None:
    refuse_hosts_of_stages({frozenset({0})}, "a")
    with pytest.raises(
        ConfigError, match="a was written by Orbax, which is not built for pipeline stages of several hosts"
    ):
        refuse_hosts_of_stages({frozenset({0}), frozenset({1})}, "a")
