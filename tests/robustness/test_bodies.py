"""Attacks through the bytes of a body (group C8): only JSON of sane depth and size is read, and reading it costs little."""

from __future__ import annotations

import gzip
import itertools
import os
from pathlib import Path

import httpx
import pytest

from tests.quick import slow_but
from tests.robustness.answers import assert_refused
from tests.robustness.hostile import BASES, POSTS, dumps

STATM = Path("/proc/self/statm")
GOOD = b'{"prompt": "a", "max_tokens": 2}'

BODIES: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" " * 10_000,
    "no JSON": b"prompt=a",
    "a list": b"[1, 2]",
    "a text": b'"prompt"',
    "null": b"null",
    "half a body": GOOD[:-5],
    "two bodies": GOOD + GOOD,
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "bytes that are no UTF-8": b'{"prompt": "\xff\xfe", "max_tokens": 2}',
    "UTF-8 cut short": b'{"prompt": "\xe2\x82", "max_tokens": 2}',
    "an overlong encoding": b'{"prompt": "\xc0\xaf", "max_tokens": 2}',
    "a lone surrogate": b'{"prompt": "\\ud800", "max_tokens": 2}',
    "surrogates the wrong way round": b'{"prompt": "\\udc00\\ud800", "max_tokens": 2}',
    "a raw control character": b'{"prompt": "\x00", "max_tokens": 2}',
    "not a number": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": Infinity}',
    "a number beyond floats": b'{"prompt": "a", "temperature": 1e999}',
    "a number of a million digits": b'{"prompt": "a", "seed": ' + b"9" * 1_000_000 + b"}",
    "nesting of lists": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nesting of objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "nesting in an unknown field": b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nesting that never ends": b"[" * 1_000_000,
    "a comment": b'{"prompt": "a" /* b */}',
    "a trailing comma": b'{"prompt": "a",}',
    "a body above the cap": b'{"prompt": "' + b"a" * 5_000_000 + b'"}',
}


READ_ALIKE = [
    (path, attack)
    for path, attack in itertools.product(POSTS, BODIES)
    if path == POSTS[0] or attack in ("null", "half a body")
]
"""Every body once, and every path: one reader serves them all."""


@pytest.mark.parametrize("sent", slow_but(itertools.product(POSTS, BODIES), READ_ALIKE, often=()), ids=" ".join)
def test_bodies_that_are_not_for_reading(sent: tuple[str, str], client: httpx.Client) -> None:
    path, attack = sent
    response = client.post(path, content=BODIES[attack])
    assert_refused(response, 413 if "above the cap" in attack else 400)


def test_a_field_given_twice_is_the_last_one(client: httpx.Client) -> None:
    response = client.post("/v1/completions", content=b'{"prompt": "a", "max_tokens": 2, "max_tokens": 1}')
    assert response.json()["usage"]["completion_tokens"] == 1


def test_very_many_fields(client: httpx.Client) -> None:
    many = {f"field{number}": number for number in range(100_000)}
    response = client.post("/v1/completions", content=dumps(BASES["/v1/completions"] | many))
    assert response.status_code in (200, 400)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "x" * 5000]
)
def test_other_content_types(kind: str, client: httpx.Client) -> None:
    assert_refused(client.post("/v1/completions", content=GOOD, headers={"Content-Type": kind}))


def test_a_compressed_bomb_is_not_unpacked(client: httpx.Client) -> None:
    bomb = gzip.compress(b'{"prompt": "' + b"a" * 20_000_000 + b'"}', compresslevel=9)
    assert_refused(client.post("/v1/completions", content=bomb, headers={"Content-Encoding": "gzip"}))


def test_a_body_without_a_length_is_counted_while_it_comes(client: httpx.Client) -> None:
    sent = 0

    def endless() -> object:
        nonlocal sent
        yield b'{"prompt": "'
        while sent < 200 << 20:
            sent += 1 << 16
            yield b"a" * (1 << 16)

    try:
        response = client.post("/v1/completions", content=endless())  # type: ignore[arg-type]
    except httpx.WriteError:  # it hung up on us while we were still sending
        pass
    else:
        assert_refused(response, 413)
    assert sent < 100 << 20, "the server stopped reading"


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_large_bodies_leave_no_memory_behind(client: httpx.Client) -> None:
    large = b'{"prompt": "' + b"a" * 3_900_000 + b'", "temperature": -1}'
    for _ in range(5):
        client.post("/v1/completions", content=large)
    before = resident()
    for _ in range(40):
        assert_refused(client.post("/v1/completions", content=large))
    assert resident() - before < 80 << 20, "40 bodies of 4 MB"


def resident() -> int:
    """Bytes of memory that this process holds, the server's included."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
