from dataclasses import replace

import pytest

from jaxengine.device.tiers.keys import KEY_BYTES, Keys, Namespace

NAMESPACE = Namespace(
    computation={"model.class": "Llama"}, weights=b"weights", page_size=16, layout=("bfloat16[2,16]",)
)


def test_equal_engines_make_equal_keys():
    equal = Namespace(
        computation={"model.class": "Llama"}, weights=b"weights", page_size=16, layout=("bfloat16[2,16]",)
    )
    keys, others = Keys(NAMESPACE.digest, b"secret"), Keys(equal.digest, b"secret")
    assert keys.key(0, b"digest") == others.key(0, b"digest")
    assert len(keys.key(0, b"digest")) == KEY_BYTES


@pytest.mark.parametrize(
    "change",
    [
        {"computation": {"model.class": "Qwen3"}},
        {"computation": {"model.class": "Llama", "more": ""}},
        {"weights": b"others"},
        {"page_size": 32},
        {"layout": ("int8[2,16]",)},
        {"layout": ("bfloat16[2,16]", "bfloat16[2,16]")},
    ],
    ids=str,
)
def test_whatever_a_page_depends_on_changes_the_keys(change):
    assert replace(NAMESPACE, **change).digest != NAMESPACE.digest


def test_group_digest_secret_and_namespace_are_in_a_key():
    keys = Keys(NAMESPACE.digest, b"secret")
    all_keys = {
        keys.key(0, b"digest"),
        keys.key(1, b"digest"),
        keys.key(0, b"another"),
        Keys(NAMESPACE.digest, b"another").key(0, b"digest"),
        keys.of(b"another").key(0, b"digest"),
    }
    assert len(all_keys) == 5
