import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.contract.page_name import PageName
from jaxengine.device.tiers.block_store import Block
from jaxengine.device.tiers.disk.block_file import DamagedError, decode, encode, read_whole, write_pieces
from tests.device.tiers.blocks import block_of, equal, key_of

KEY = key_of(0)
DTYPES = [np.float32, np.int8, np.uint16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
PART = st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.sampled_from(DTYPES), st.integers(0, 9))


def encoded(block, key=KEY):
    return np.frombuffer(b"".join(encode(key, block)), np.uint8).copy()


@settings(max_examples=60, deadline=None)
@given(st.lists(PART, max_size=3), st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 1000))
def test_what_is_written_is_read(parts, digest, tokens, group):
    arrays = {
        ((number, number + 1),): np.random.default_rng(seed).integers(0, 99, shape).astype(dtype)
        for number, (shape, dtype, seed) in enumerate(parts)
    }
    block = Block(PageName(group, digest, b"parent", tokens), arrays)
    assert equal(decode(encoded(block), KEY), block)


def test_parts_that_are_no_contiguous_arrays_are_written_as_they_read():
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    block = Block(PageName(0, b"d", b"p", b"t"), {((0, 4), (0, 3)): whole.T})
    assert equal(decode(encoded(block), KEY), block)


def test_every_flipped_bit_is_found():
    data = encoded(block_of(1))
    for place in range(len(data)):
        data[place] ^= 1 << place % 8
        with pytest.raises(DamagedError):
            decode(data, KEY)
        data[place] ^= 1 << place % 8
    assert equal(decode(data, KEY), block_of(1))


def test_every_truncation_is_found():
    data = encoded(block_of(1))
    for length in range(len(data)):
        with pytest.raises(DamagedError):
            decode(data[:length], KEY)
    with pytest.raises(DamagedError):
        decode(np.append(data, np.uint8(0)), KEY)


def test_a_block_under_another_key_is_not_taken():
    with pytest.raises(DamagedError, match="another block"):
        decode(encoded(block_of(1)), key_of(1))


def test_pieces_are_written_whole_where_a_write_takes_a_part(tmp_path, monkeypatch):
    pieces, writev = encode(KEY, block_of(1, shape=(50, 7, 3))), os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, views: writev(descriptor, [views[0][:13]]))
    path = tmp_path / "block"
    with path.open("wb") as file:
        size = write_pieces(file.fileno(), pieces)
    assert path.read_bytes() == b"".join(pieces)
    assert size == path.stat().st_size


def test_only_plain_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "target").write_bytes(b"1234")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("fifo", "folder"):
        with pytest.raises((DamagedError, OSError)):
            read_whole(str(tmp_path / name))
    with pytest.raises(OSError, match="symbolic link"):
        read_whole(str(tmp_path / "link"))
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DamagedError, match="size"):
        read_whole(str(tmp_path / "huge"))
    assert read_whole(str(tmp_path / "target")).tobytes() == b"1234"
