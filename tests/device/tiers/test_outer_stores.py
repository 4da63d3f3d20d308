import numpy as np
import pytest

from jaxengine.contract.page_name import PageName
from jaxengine.device.tiers.block_store import Block
from jaxengine.device.tiers.keys import Keys
from jaxengine.device.tiers.outer_stores import OuterStores
from tests.device.tiers.memory_store import MemoryStore

BOUNDS = ((0, 4), (0, 2))
LAYOUT = {BOUNDS: ((2, 4, 2), np.dtype(np.float32))}
KEYS = Keys(b"namespace", b"secret")


def page(number, group=0):
    name = PageName(group, b"digest %d" % number, b"parent", b"tokens %d" % number)
    return name, {BOUNDS: np.full((2, 4, 2), number, np.float32)}


def outer(*stores):
    return OuterStores(KEYS, {0: LAYOUT}, stores)


def test_a_page_is_found_in_the_first_store_that_has_it():
    near, far = MemoryStore(), MemoryStore()
    near.source, far.source = "near", "far"
    (first, its), (second, others), (third, _) = page(1), page(2), page(3)
    assert outer(near).store(first, its, KEYS)
    assert outer(far).store(second, others, KEYS)
    stores = outer(near, far)
    assert stores.has([first, third, second]) == [True, False, True]
    assert [stores.fetch(name).source for name in (first, second)] == ["near", "far"]
    np.testing.assert_array_equal(stores.fetch(second).parts[BOUNDS], others[BOUNDS])
    assert stores.fetch(third) is None


def test_a_page_is_offered_to_every_store():
    near, far = MemoryStore(), MemoryStore()
    name, parts = page(1)
    near.failing = True
    assert outer(near, far).store(name, parts, KEYS)
    assert not near.blocks
    assert far.blocks
    assert not outer(near, far).store(name, parts, KEYS), "one fails and the other has it"


@pytest.mark.parametrize("change", [{"tokens": b"others"}, {"parent": b"another"}, {"group": 1}], ids=str)
def test_equal_keys_with_another_name_are_not_taken(change):
    store = MemoryStore()
    name, parts = page(1)
    store.store(KEYS.key(0, name.digest), Block(name._replace(**change), parts))
    assert outer(store).fetch(name) is None
    assert not store.blocks, "it is dropped, so that the right one can be stored"


@pytest.mark.parametrize(
    "parts",
    [
        {BOUNDS: np.zeros((2, 4, 2), np.int32)},
        {BOUNDS: np.zeros((2, 2, 4), np.float32)},
        {((0, 4), (0, 1)): np.zeros((2, 4, 2), np.float32)},
        {},
    ],
    ids=["type", "shape", "bounds", "nothing"],
)
def test_another_layout_is_not_taken(parts):
    store = MemoryStore()
    name, _ = page(1)
    store.store(KEYS.key(0, name.digest), Block(name, parts))
    assert outer(store).fetch(name) is None


def test_pages_of_another_namespace_are_not_found():
    store = MemoryStore()
    name, parts = page(1)
    stores = outer(store)
    stores.store(name, parts, stores.keys)
    stores.expect([name])
    before = store.expected
    stores.renew(b"other weights")
    assert store.namespace == b"other weights"
    assert stores.has([name]) == [False]
    stores.expect([name])
    assert len(before) == len(store.expected) == 1
    assert before != store.expected
    stores.renew(b"namespace")
    assert stores.has([name]) == [True]
