"""`kv_transfer_params` over HTTP: what the engine that hands over answers, and where they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jaxengine.contract.transfer import TransferFacts
from jaxengine.options.transfer import Address
from tests.fronts import make_engine
from tests.server.rig import Live, live

FACTS = TransferFacts(engine_id="one", serves=True, fetches=False, address=Address("127.0.0.1", 9000))
HAND_OVER = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_port": None}
TAKE_OVER = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "one",
    "remote_block_ids": [],
    "remote_host": "127.0.0.1",
    "remote_port": 9000,
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Tom said", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tom said"}], "max_tokens": 1},
}


@pytest.fixture(scope="module")
def producer() -> Iterator[Live]:
    """A server whose engine lets others have its pages."""
    with live(make_engine(transfer=FACTS)) as running:
        yield running


@pytest.mark.parametrize("path", BODIES)
def test_an_answer_that_another_engine_goes_on_with_says_where_the_pages_are(path: str, producer: Live) -> None:
    answer = producer.post(path, **BODIES[path], kv_transfer_params=HAND_OVER)
    assert answer.status_code == 200
    assert answer.json()["kv_transfer_params"] == TAKE_OVER
    assert producer.post(path, **BODIES[path]).json()["kv_transfer_params"] is None


@pytest.mark.parametrize("path", BODIES)
def test_what_the_engine_does_not_do_is_refused(path: str, producer: Live, server: Live) -> None:
    for there, params, role in (
        (producer, TAKE_OVER, "kv_consumer"),
        (server, TAKE_OVER, "kv_consumer"),
        (server, HAND_OVER, "kv_producer"),
    ):
        answer = there.post(path, **BODIES[path], kv_transfer_params=params)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "kv_transfer_params"
        assert f"--kv-transfer-config and a kv_role of {role}" in answer.json()["error"]["message"]
    answer = producer.post(path, **BODIES[path], kv_transfer_params={"do_remote_decode": True, "tp_sizes": 10**9})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "kv_transfer_params")
    assert server.post(path, **BODIES[path], kv_transfer_params={"do_remote_decode": False}).status_code == 200
