"""Any changed byte of a sealed file is found before it is parsed."""

from __future__ import annotations

import json

import pytest

from xla_cache.errors import CorruptError
from xla_cache.sealed import seal, unseal

BODY = {"name": "forward", "numbers": [1, 2.5, None], "nested": {"é": "ü"}}


def test_what_was_sealed_is_read_back_and_is_json():
    assert unseal(seal(BODY), name="x") == BODY
    assert json.loads(seal(BODY))["body"] == BODY


def test_every_bit_flip_is_found():
    data = seal(BODY)
    for i in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[i] ^= 1 << bit
            with pytest.raises(CorruptError, match="x "):
                unseal(bytes(changed), name="x")


def test_every_truncation_and_extension_is_found():
    data = seal(BODY)
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            unseal(data[:length], name="x")
    with pytest.raises(CorruptError):
        unseal(data + b"\n", name="x")


def test_a_body_that_is_no_object_is_refused():
    with pytest.raises(CorruptError, match="object"):
        unseal(seal([1]), name="x")  # type: ignore[arg-type]
