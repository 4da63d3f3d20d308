"""Engines that serve blocks and engines that fetch them, over the loopback: what comes over, and who gets nothing."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest

from jaxengine.device.tiers.block_store import Block
from jaxengine.device.tiers.peers import peer as peers
from jaxengine.device.tiers.peers import peer_store
from jaxengine.device.tiers.peers import server as servers
from jaxengine.device.tiers.peers.exports import Exports
from jaxengine.device.tiers.peers.messages import Ask, Question
from jaxengine.device.tiers.peers.peer import Link
from jaxengine.device.tiers.peers.peer_store import PeerStore
from jaxengine.device.tiers.peers.ring import HAS_SHARED_MEMORY
from jaxengine.device.tiers.peers.session import deadline, introduce
from jaxengine.errors import ConfigError
from jaxengine.options.transfer import Address, TransferOptions
from tests.device.tiers.blocks import block_of, equal, key_of
from tests.robustness.loopback import until

SECRET, NAMESPACE = b"a secret of the two of them", b"n" * 32
OPTIONS = TransferOptions(
    engine_id="test",
    serves=True,
    fetches=True,
    host="127.0.0.1",
    port=0,
    advertised="127.0.0.1",
    buffer_bytes=1 << 20,
    peers=(),
    shared_memory=False,
    secret_file=None,
    secret_env=None,
)
WAYS = [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_SHARED_MEMORY, reason="no memfd_create here"))]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives up because the machine has much else to do."""
    for name in ("CONNECT_S", "REPLY_S", "FETCH_S"):
        monkeypatch.setattr(peers, name, 30.0)
    monkeypatch.setattr(peer_store, "PATIENCE_S", 10.0)
    monkeypatch.setattr(peer_store, "LOOKUP_S", 30.0)
    monkeypatch.setattr(servers, "BEGINNING_S", 30.0)
    monkeypatch.setattr("jaxengine.device.tiers.peers.shelf.EXPECTED_S", 600.0)


@contextmanager
def _exports(*, shared_memory: bool = False, secret: bytes = SECRET, port: int = 0) -> Iterator[Exports]:
    listener = servers.listen("127.0.0.1", port)
    exports = Exports(replace(OPTIONS, shared_memory=shared_memory), listener, secret, NAMESPACE)
    try:
        yield exports
    finally:
        exports.close()


@contextmanager
def _peer_store(
    *of: Exports,
    shared_memory: bool = False,
    secret: bytes = SECRET,
    namespace: bytes = NAMESPACE,
    largest: int = 1 << 16,
) -> Iterator[PeerStore]:
    store = PeerStore(replace(OPTIONS, shared_memory=shared_memory), secret, namespace, largest=largest)
    for each in of:
        store.know(_address(each))
    try:
        yield store
    finally:
        store.close()


def _address(exports: Exports) -> Address:
    return Address("127.0.0.1", exports.server.port)


def _same(found: Block | None, number: int) -> bool:
    return found is not None and equal(found, block_of(number))


@pytest.mark.parametrize("shared_memory", WAYS)
def test_blocks_come_over_as_they_are(shared_memory: bool) -> None:
    with _exports(shared_memory=shared_memory) as exports, _peer_store(exports, shared_memory=shared_memory) as store:
        for number in range(20):
            assert exports.store(key_of(number), block_of(number))
        assert not exports.store(key_of(3), block_of(3)), "it is there already"
        assert store.has([key_of(number) for number in range(-2, 22)]) == [False] * 2 + [True] * 20 + [False] * 2
        assert all(_same(store.fetch(key_of(number)), number) for number in range(20))
        assert store.fetch(key_of(99)) is None
        assert _same(exports.fetch(key_of(7)), 7), "it finds its own too"
        until(lambda: exports.server.served.blocks == 20, "the server has counted them")
        link = Link(_address(exports), SECRET, NAMESPACE, shared_memory=shared_memory)
        assert link.is_local == shared_memory
        link.close()


def test_only_who_wants_shared_memory_gets_it() -> None:
    with _exports(shared_memory=True) as exports, _peer_store(exports) as store:
        exports.store(key_of(1), block_of(1))
        assert _same(store.fetch(key_of(1)), 1)
        with _connected(exports) as session:  # asked for over TCP, where no descriptor can go
            session.send(Question(Ask.MEMORY, 0, ()).pack(), until=deadline(20))
            assert not session.receive(most=0, until=deadline(20))


@pytest.mark.parametrize("shared_memory", WAYS)
def test_threads_fetch_beside_each_other_while_blocks_give_way(shared_memory: bool) -> None:
    with _exports(shared_memory=shared_memory) as exports, _peer_store(exports, shared_memory=shared_memory) as store:
        wrong, right = [], []

        def fetch(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for number in rng.integers(0, 3000, 150).tolist():
                found = store.fetch(key_of(number))
                if found is not None:
                    (right if equal(found, block_of(number)) else wrong).append(number)

        threads = [threading.Thread(target=fetch, args=(seed,)) for seed in range(4)]
        for number in range(500):
            exports.store(key_of(number), block_of(number))
        for thread in threads:
            thread.start()
        for number in range(500, 3000):
            exports.store(key_of(number), block_of(number))
        for thread in threads:
            thread.join(60)
        assert right
        assert not wrong


def test_a_block_on_its_way_is_waited_for() -> None:
    with _exports() as exports, _peer_store(exports) as store:
        exports.expect([key_of(1), key_of(2)])
        threading.Timer(0.05, lambda: [exports.store(key_of(number), block_of(number)) for number in (1, 2)]).start()
        assert store.has([key_of(1), key_of(2), key_of(3)]) == [True, True, False]


def test_several_engines_are_asked_and_each_has_what_it_has() -> None:
    with _exports() as one, _exports() as other, _peer_store(one, other) as store:
        one.store(key_of(1), block_of(1))
        other.store(key_of(2), block_of(2))
        assert store.has([key_of(1), key_of(2), key_of(3)]) == [True, True, False]
        assert _same(store.fetch(key_of(1)), 1)
        assert _same(store.fetch(key_of(2)), 2)
        assert _same(store.fetch(key_of(1)), 1), "nobody remembers whose it was"


def test_an_engine_that_is_gone_costs_hits_and_one_that_returns_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jaxengine.device.tiers.rest.FIRST_REST_S", 3600.0)
    monkeypatch.setattr("jaxengine.device.tiers.rest.LONGEST_REST_S", 3600.0)
    with _peer_store() as store:
        with _exports() as exports:
            exports.store(key_of(1), block_of(1))
            store.know(_address(exports))
            assert store.has([key_of(1)]) == [True]
            port = exports.server.port
        assert store.fetch(key_of(1)) is None
        assert store.has([key_of(1)]) == [False]
        with _exports(port=port) as exports:
            exports.store(key_of(1), block_of(1))
            assert store.has([key_of(1)]) == [False], "it is left alone for a while"
            store.know(_address(exports))
            assert store.has([key_of(1)]) == [True]
        with _exports(port=port) as exports:  # connections that were kept are of no use, and new ones are made
            exports.store(key_of(2), block_of(2))
            assert _same(store.fetch(key_of(2)), 2)


def test_who_has_another_secret_or_namespace_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("jaxengine").addHandler(caplog.handler)
    try:
        with _exports() as exports:
            exports.store(key_of(1), block_of(1))
            for changes, reason in (
                ({"secret": b"no secret of theirs"}, "different secrets"),
                ({"namespace": b"m" * 32}, "do not compute the same pages"),
            ):
                caplog.clear()
                with _peer_store(exports, **changes) as store:  # type: ignore[arg-type]
                    assert store.has([key_of(1)]) == [False]
                    assert store.fetch(key_of(1)) is None
                assert reason in caplog.text
            until(lambda: exports.server.served.refused == 2, "the server knows of both")
            assert exports.server.served.blocks == 0
    finally:
        logging.getLogger("jaxengine").removeHandler(caplog.handler)
    assert not any(secret in caplog.text for secret in (SECRET.decode(), "no secret of theirs"))


def test_other_weights_are_another_namespace_on_both_sides() -> None:
    with _exports() as exports, _peer_store(exports) as store:
        exports.store(key_of(1), block_of(1))
        assert store.has([key_of(1)]) == [True]
        exports.renew(b"m" * 32)
        assert store.has([key_of(1)]) == [False], "the old pages are not to be had any more"
        store.renew(b"m" * 32)
        assert store.has([key_of(1)]) == [True], "keys tell namespaces apart, not the server"


def test_requests_name_only_engines_that_may_be_asked() -> None:
    with _peer_store() as store:
        for host in ("10.1.2.3", "169.254.169.254", "example.org", "0.0.0.0"):
            store.know(Address(host, 80))
        assert not store._known()
        for port in range(1, 200):
            store.know(Address("127.0.0.1", port))
        assert len(store._known()) == 64


def test_what_a_request_names_and_is_no_engine_costs_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    with _exports() as exports, ExitStack() as silent:
        listeners = [silent.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200)) for _ in range(3)]
        names = [Address("127.0.0.1", listener.getsockname()[1]) for listener in listeners]
        options = replace(OPTIONS, peers=(Address("127.0.0.1", None), _address(exports)))
        store = PeerStore(options, SECRET, NAMESPACE, largest=1 << 16)
        exports.store(key_of(1), block_of(1))
        assert store.has([key_of(1)]) == [True]
        monkeypatch.setattr(peers, "CONNECT_S", 0.05)
        for name in names:
            store.know(name)
        assert store.has([key_of(1), key_of(2)]) == [True, False]
        asked: list[Address] = []
        monkeypatch.setattr(Link, "__init__", lambda self, address, *rest, **more: asked.append(address))
        for name in names * 30:
            store.know(name)
            store.has([key_of(2)])
        assert not asked, "only the engine is asked, over the connection that there is"
        for port in range(1, 200):
            store.know(Address("127.0.0.1", port))
        assert len(store._known()) == 65
        assert any(peer.address == _address(exports) for peer in store._known())
        store.close()


def test_a_block_that_is_larger_than_any_of_ours_is_not_read() -> None:
    with _exports() as exports, _peer_store(exports, largest=100) as store:
        exports.store(key_of(1), block_of(1))
        assert store.has([key_of(1)]) == [True]
        assert store.fetch(key_of(1)) is None


@pytest.mark.skipif(not HAS_SHARED_MEMORY, reason="no memfd_create here")
def test_a_block_whose_bytes_have_changed_is_not_taken() -> None:
    with _exports(shared_memory=True) as exports, _peer_store(exports, shared_memory=True) as store:
        exports.store(key_of(1), block_of(1))
        place = exports.shelf.place(key_of(1))
        assert place is not None
        exports.shelf.ring._bytes[place.position + place.length - 1] ^= 1
        assert store.fetch(key_of(1)) is None
        assert exports.fetch(key_of(1)) is None


@contextmanager
def _connected(exports: Exports) -> Iterator[peers.Session]:
    with socket.create_connection(("127.0.0.1", exports.server.port), 20) as connection:
        yield introduce(connection, SECRET, NAMESPACE, until=deadline(20))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        b"\x00" * 5,
        b"\x09" + bytes(4),
        Question(Ask.HAS, 0, ()).pack(),
        Question(Ask.HAS, 60_000, (key_of(1),)).pack(),
        Question(Ask.FETCH, 0, (key_of(1), key_of(2))).pack(),
        Question(Ask.FETCH, 0, (key_of(1),)).pack() + b"x",
        Question(Ask.LOCAL, 0, (key_of(1),)).pack(),
    ],
)
def test_a_question_that_does_not_exist_ends_the_connection(content: bytes) -> None:
    with _exports() as exports, _peer_store(exports) as store:
        exports.store(key_of(1), block_of(1))
        with _connected(exports) as session:
            session.send(content, until=deadline(20))
            with pytest.raises(OSError):
                session.receive(most=100, until=deadline(20))
        assert _same(store.fetch(key_of(1)), 1), "others are served"


def test_strangers_that_say_nothing_or_garbage_keep_nobody_from_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "BEGINNING_S", 0.2)
    with _exports() as exports, _peer_store(exports) as store, ExitStack() as strangers:
        exports.store(key_of(1), block_of(1))
        for number in range(servers.MOST_CONNECTIONS + 20):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", exports.server.port), 20))
            with suppress(OSError):
                stranger.sendall(b"\xff" * (0, 10, 5000)[number % 3])
        found = None
        for _ in range(1000):  # until they have been sent away
            store.know(_address(exports))
            found = store.fetch(key_of(1))
            if found is not None:
                break
        assert _same(found, 1)


def test_a_server_that_speaks_garbage_or_nothing_costs_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "CONNECT_S", 0.2)
    for said in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10, bytes(5000)):
        with socket.create_server(("127.0.0.1", 0)) as listener, _peer_store() as store:

            def speak(listener: socket.socket = listener, said: bytes = said) -> None:
                with suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(said)
                        while connection.recv(4096):
                            pass

            thread = threading.Thread(target=speak)
            thread.start()
            store.know(Address("127.0.0.1", listener.getsockname()[1]))
            assert store.has([key_of(1)]) == [False]
            thread.join(30)


def test_an_address_that_is_taken_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "BIND_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot be served at 127.0.0.1:{port}: Address already in use"):
            servers.listen("127.0.0.1", port)
