"""How two engines prove to each other who they are, and what becomes of those who cannot."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from jaxengine.device.tiers.peers import session as sessions
from jaxengine.device.tiers.peers.session import (
    ProtocolError,
    RefusedError,
    Session,
    deadline,
    introduce,
    receive_exactly,
    welcome,
)

SECRET, NAMESPACE = b"a secret of the two of them", b"n" * 32


@contextmanager
def _ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    with ends[0], ends[1]:
        yield ends


def _both(
    client: Callable[[socket.socket], object], server: Callable[[socket.socket], object]
) -> tuple[object, object]:
    """What comes of the two ends, results or errors."""
    found: dict[str, object] = {}

    def run(name: str, side: Callable[[socket.socket], object], end: socket.socket) -> None:
        try:
            found[name] = side(end)
        except OSError as error:
            found[name] = error
            end.close()

    with _ends() as (near, far):
        thread = threading.Thread(target=run, args=("server", server, far))
        thread.start()
        run("client", client, near)
        thread.join(30)
    return found["client"], found["server"]


def _introduce(secret: bytes = SECRET, namespace: bytes = NAMESPACE) -> Callable[[socket.socket], object]:
    return lambda end: introduce(end, secret, namespace, until=deadline(20))


def _welcome(secret: bytes = SECRET, namespace: bytes = NAMESPACE) -> Callable[[socket.socket], object]:
    return lambda end: welcome(end, secret, namespace, until=deadline(20))


def _sessions(near: socket.socket, far: socket.socket) -> tuple[Session, Session]:
    served: list[Session] = []
    thread = threading.Thread(target=lambda: served.append(welcome(far, SECRET, NAMESPACE, until=deadline(20))))
    thread.start()
    client = introduce(near, SECRET, NAMESPACE, until=deadline(20))
    thread.join(30)
    return client, served[0]


def test_frames_go_both_ways() -> None:
    with _ends() as (near, far):
        client, server = _sessions(near, far)
        for number in range(5):
            client.send(b"ask", bytes([number]), until=deadline(20))
            assert bytes(server.receive(most=10, until=deadline(20))) == b"ask" + bytes([number])
            server.send(b"", until=deadline(20))
            assert bytes(client.receive(most=0, until=deadline(20))) == b""


@pytest.mark.parametrize(
    ("client", "server", "reason"),
    [
        (_introduce(secret=b"another secret, quite long"), _welcome(), "different secrets"),
        (_introduce(namespace=b"m" * 32), _welcome(), "do not compute the same pages"),
        (_introduce(), _welcome(namespace=b"m" * 32), "do not compute the same pages"),
    ],
)
def test_those_who_do_not_belong_together_both_know_why(client: object, server: object, reason: str) -> None:
    for end in _both(client, server):  # type: ignore[arg-type]
        assert isinstance(end, RefusedError)
        assert reason in str(end)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(end: socket.socket) -> object:
        greeting = bytearray(receive_exactly(end, sessions._GREETING.size, deadline(20)))
        version = len(sessions.MAGIC) + 1
        greeting[version] += 1
        end.sendall(greeting + bytes(sessions._ANSWER.size - len(greeting)))
        return bytes(receive_exactly(end, sessions._VERDICT.size, deadline(20)))

    verdict, error = _both(old, _welcome())
    assert isinstance(error, RefusedError)
    assert isinstance(verdict, bytes)
    assert verdict[0] == sessions.Status.OTHER_VERSION
    assert not any(verdict[1:]), "nothing of the server is told to whom it does not know"


def test_a_server_without_the_secret_cannot_say_welcome() -> None:
    def impostor(end: socket.socket) -> object:
        end.sendall(sessions._GREETING.pack(sessions.MAGIC, sessions.VERSION, bytes(32)))
        answer = receive_exactly(end, sessions._ANSWER.size, deadline(20))
        # The client's own proof, sent back to it.
        end.sendall(sessions._VERDICT.pack(sessions.Status.WELCOME, NAMESPACE, bytes(answer[-32:])))
        return None

    error, _ = _both(_introduce(), impostor)
    assert isinstance(error, RefusedError)
    assert "does not know the secret" in str(error)


def test_a_beginning_that_was_recorded_opens_nothing() -> None:
    recorded = bytearray()

    def record(end: socket.socket) -> object:
        with _ends() as (near, far):
            thread = threading.Thread(target=_introduce(), args=(near,))
            thread.start()
            far.sendall(receive_exactly(end, sessions._GREETING.size, deadline(20)))
            recorded.extend(receive_exactly(far, sessions._ANSWER.size, deadline(20)))
            end.sendall(recorded)
            far.sendall(receive_exactly(end, sessions._VERDICT.size, deadline(20)))
            thread.join(30)
        return None

    def replay(end: socket.socket) -> object:
        receive_exactly(end, sessions._GREETING.size, deadline(20))
        end.sendall(recorded)
        return receive_exactly(end, sessions._VERDICT.size, deadline(20))[0]

    _, first = _both(record, _welcome())
    assert isinstance(first, Session)
    status, second = _both(replay, _welcome())
    assert status == sessions.Status.OTHER_SECRET
    assert isinstance(second, RefusedError)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 20, bytes(1000), b"\xff" * 1000, b""])
def test_garbage_ends_the_beginning_and_allocates_nothing(garbage: bytes) -> None:
    def speak(end: socket.socket) -> object:
        end.sendall(garbage)
        end.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while end.recv(4096):
                pass
        return None

    for side in (_welcome(), _introduce()):
        _, error = _both(speak, side)
        assert isinstance(error, ProtocolError)


def test_a_peer_that_says_nothing_is_not_waited_for_longer_than_allowed() -> None:
    with _ends() as (_, far), pytest.raises(TimeoutError):
        welcome(far, SECRET, NAMESPACE, until=deadline(0.05))


def test_one_byte_at_a_time_does_not_buy_time() -> None:
    with _ends() as (near, far):
        stop = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not stop.wait(0.01):
                    near.send(b"j")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(OSError):
            welcome(far, SECRET, NAMESPACE, until=deadline(0.2))
        stop.set()
        thread.join(30)


@pytest.mark.parametrize("change", ["byte", "length", "number", "direction"])
def test_a_frame_that_was_tampered_with_is_refused(change: str) -> None:
    with _ends() as (near, far), _ends() as (seen, sent):
        client, server = _sessions(near, far)
        client.socket = sent
        client.send(b"which blocks", until=deadline(20))
        frame = bytearray(receive_exactly(seen, 4 + 16 + 12, deadline(20)))
        receiver = server
        if change == "byte":
            frame[-1] ^= 1
        elif change == "length":
            frame[3] -= 1
        elif change == "number":
            near.sendall(frame)
            server.receive(most=100, until=deadline(20))
        else:
            receiver = client
            client.socket = far
        near.sendall(frame)
        with pytest.raises(ProtocolError, match="does not come from the other engine"):
            receiver.receive(most=100, until=deadline(20))


def test_a_frame_that_is_too_long_is_refused_before_it_is_read() -> None:
    with _ends() as (near, far):
        _, server = _sessions(near, far)
        near.sendall(b"\xff\xff\xff\xff" + bytes(16))
        with pytest.raises(ProtocolError, match="4294967295 bytes, where at most 100"):
            server.receive(most=100, until=deadline(20))
