"""Kept responses: found again, independent of the caller's copy, and bounded."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from jaxengine.server.endpoints.responses.store import ResponseNotFoundError, ResponseStore


def response(response_id: str, **more: Any) -> Any:
    return {"id": response_id, "object": "response", **more}


def turn(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_found_again_as_it_was() -> None:
    store = ResponseStore(10_000)
    messages = turn("Hi")
    store.put(response("resp_1", model="m"), messages, [{"id": "msg_1"}])
    messages.clear()
    assert store.response("resp_1") == response("resp_1", model="m")
    assert store.messages("resp_1") == turn("Hi")
    assert store.input_items("resp_1") == [{"id": "msg_1"}]
    store.messages("resp_1").append({"role": "user", "content": "more"})
    assert store.messages("resp_1") == turn("Hi")


def test_the_longest_unused_goes_first() -> None:
    store = ResponseStore(1000)
    for name in ("a", "b"):
        store.put(response(name), turn("x" * 350), [])
    store.response("a")
    store.put(response("c"), turn("x" * 350), [])
    store.response("a")
    store.response("c")
    with pytest.raises(ResponseNotFoundError):
        store.response("b")


def test_its_size_is_bounded_and_counted() -> None:
    store = ResponseStore(5000)
    for number in range(200):
        store.put(response(f"r{number}"), turn("x" * (number * 7 % 600)), [])
        assert store.num_bytes <= 5000
    assert len(store) > 3
    for number in range(200):
        if f"r{number}" in store._kept:
            store.delete(f"r{number}")
    assert (store.num_bytes, len(store)) == (0, 0)


def test_it_takes_the_memory_that_is_counted() -> None:
    """But for a few hundred bytes of each entry's own."""
    store, number = ResponseStore(1_000_000), 200
    tracemalloc.start()
    try:
        for each in range(number):
            store.put(response(f"r{each}", text="y" * 1000), turn("x" * 300), [])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store) == number
    assert taken < store.num_bytes + 600 * number


def test_what_is_larger_than_the_store_is_not_kept() -> None:
    store = ResponseStore(100)
    store.put(response("a"), turn("x" * 500), [])
    assert (store.num_bytes, len(store)) == (0, 0)


def test_unknown_ids() -> None:
    store = ResponseStore(100)
    for act in (store.response, store.messages, store.delete):
        with pytest.raises(ResponseNotFoundError, match="not found") as caught:
            act("resp_nobody")
        assert caught.value.http_status == 404
