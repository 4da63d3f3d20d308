"""The caches of several meshes as one, and each of them again."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.device.layers.cache import Cache
from jaxengine.device.runtime.mesh_caches import joined, part_of_mesh, with_mesh


def caches(count: int) -> list[Any]:
    """Each of two pools and a state; the arrays are names, as nothing is computed."""
    return [Cache((f"a{mesh}", f"b{mesh}"), {"scan": f"s{mesh}"}) for mesh in range(count)]  # type: ignore[arg-type,dict-item]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_mesh_has_its_own(count: int) -> None:
    each = caches(count)
    whole = joined(each)
    assert [part_of_mesh(whole, mesh, count) for mesh in range(count)] == each


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_part_changes_what_it_has(count: int) -> None:
    each = caches(count)
    changed: Any = Cache((None, "new"), {})  # type: ignore[arg-type]
    whole = with_mesh(joined(each), changed, count - 1, count)
    each[-1] = Cache((each[-1].pages[0], "new"), each[-1].states)
    assert [part_of_mesh(whole, mesh, count) for mesh in range(count)] == each
