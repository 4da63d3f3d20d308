"""Load on a server that is made up, whose every byte and delay is known."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from jaxengine.bench.serving import Load, report, run, send_times
from jaxengine.bench.stream import Endpoint, Timing, events, timed
from jaxengine.bench.workload import BenchRequest, random_requests
from jaxengine.errors import ConfigError

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def said(**message: Any) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


def text(content: str = "a") -> bytes:
    return said(choices=[{"text": content}])


USAGE = said(choices=[], usage={"completion_tokens": 5})
WHOLE = [HEAD, chunk(text()), chunk(text()), chunk(text("")), chunk(USAGE), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"]


def serving(pieces: Sequence[bytes], use: Callable[[Endpoint], Awaitable[Any]], *, pause_s: float = 0.01) -> Any:
    """What `use` gives with a server that answers each request with these pieces; the bodies it was sent."""
    bodies: list[dict[str, Any]] = []

    handlers = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(next(line for line in head.split("\r\n") if line.startswith("content-length:")).split(":")[1])
        bodies.append(json.loads(await reader.readexactly(length)))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        writer.close()
        await writer.wait_closed()

    async def main() -> Any:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            found = await use(Endpoint.of(f"http://127.0.0.1:{port}/", "/v1/completions", {"X-Name": "b"}))
            await asyncio.gather(*handlers)
            return found

    return asyncio.run(main()), bodies


def test_a_stream_is_timed_and_its_tokens_are_those_that_the_server_counted():
    timing, [body] = serving(WHOLE, lambda endpoint: timed(endpoint, {"prompt": "x"}, 7))
    assert body == {"prompt": "x"}
    assert (timing.error, timing.prompt_len, timing.output_len, len(timing.gaps_s)) == ("", 7, 5, 2)
    assert timing.first_s >= 0.01
    assert timing.total_s == pytest.approx(timing.first_s + sum(timing.gaps_s))
    assert timing.per_token_s == pytest.approx(sum(timing.gaps_s) / 4)


@pytest.mark.parametrize("size", [1, 3, 17])
def test_events_do_not_depend_on_how_bytes_are_cut(size):
    whole = b"".join(WHOLE)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]

    async def read(endpoint: Endpoint) -> list[bytes]:
        return [data async for data in events(endpoint, b"{}")]

    found, _ = serving(pieces, read, pause_s=0)
    assert [json.loads(data) for data in found[:-1]] == [json.loads(m[6:]) for m in (text(), text(), text(""), USAGE)]
    assert found[-1] == b"[DONE]"


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([b'HTTP/1.1 400 Bad\r\nContent-Length: 9\r\n\r\n{"no": 1}'], r'AnswerError: 400: \{"no": 1\}'),
        ([HEAD, chunk(text())], "RemoteProtocolError|EOFError"),
        ([], "EOFError|RemoteProtocolError"),
        ([HEAD, chunk(said(error={"message": "full"}))], "AnswerError: .*full"),
        ([HEAD, chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"], "the answer has no text"),
        ([HEAD, chunk(b"data: {\n\n")], "JSONDecodeError"),
    ],
    ids=["refused", "cut", "nothing", "error", "empty", "no JSON"],
)
def test_what_goes_wrong_is_told(pieces, error):
    timing, _ = serving(pieces, lambda endpoint: timed(endpoint, {}, 1))
    assert re.search(error, timing.error), timing.error


def test_a_server_that_is_not_there_is_told():
    timing = asyncio.run(timed(Endpoint("127.0.0.1", 1, "/"), {}, 1))
    assert timing.error.startswith("ConnectionRefusedError")


def test_a_run_asks_for_what_was_planned_and_no_more_at_once_than_allowed():
    requests = random_requests(6, 3, 5)
    load = Load(rate=float("inf"), max_concurrency=2, body={"top_p": 0.5})
    (timings, seconds), bodies = serving(WHOLE, lambda e: run(e, "m", requests, load, progress=False), pause_s=0.02)
    assert sorted(tuple(body["prompt"]) for body in bodies) == sorted(request.prompt for request in requests)
    assert all((b["max_tokens"], b["model"], b["stream"], b["top_p"]) == (5, "m", True, 0.5) for b in bodies)
    assert seconds >= 3 * 6 * 0.02  # three after another, of six pauses each
    found = report(timings, seconds, load)
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (6, 0, 30)
    assert found["output_throughput"] == pytest.approx(30 / seconds, abs=0.01)


def test_token_ids_are_no_chat():
    endpoint = Endpoint.of("http://127.0.0.1:1", "/v1/chat/completions", {})
    with pytest.raises(ConfigError, match="chats are texts"):
        asyncio.run(run(endpoint, "m", random_requests(1, 3, 5), Load(rate=float("inf")), progress=False))


def test_requests_are_sent_at_the_rate():
    requests = random_requests(2000, 1, 1)
    assert set(send_times(requests, Load(rate=float("inf")))) == {0.0}
    gaps = {}
    for burstiness in (0.5, 1.0, 4.0):
        times = list(send_times(requests, Load(rate=10.0, burstiness=burstiness)))
        gaps[burstiness] = [after - before for before, after in itertools.pairwise(times)]
        assert statistics.fmean(gaps[burstiness]) == pytest.approx(0.1, rel=0.1)
        # the variance of a gamma distribution, over its squared mean, is one over the shape
        assert statistics.pvariance(gaps[burstiness]) / 0.01 == pytest.approx(1 / burstiness, rel=0.25)
    recorded = [BenchRequest((1,), 1, 1, time_s) for time_s in (0.0, 2.5)]
    assert list(send_times(recorded, Load(rate="trace"))) == [0.0, 2.5]
    with pytest.raises(ConfigError, match="needs --dataset-name trace"):
        list(send_times(requests, Load(rate="trace")))


@pytest.mark.parametrize(
    "wrong", [{"rate": 0.0}, {"rate": 1.0, "burstiness": 0.0}, {"rate": 1.0, "goodput": {"speed": 1}}]
)
def test_loads_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError):
        Load(**wrong)


def test_requests_are_good_that_keep_every_limit():
    timings = [
        Timing(4, first_s=0.1, total_s=0.5, gaps_s=[0.1] * 4, output_len=5),
        Timing(4, first_s=0.3, total_s=0.4, gaps_s=[0.1], output_len=2),
        Timing(4, first_s=0.1, total_s=0.1, output_len=1),
        Timing(4, error="no"),
    ]
    found = report(timings, 2.0, Load(rate=1.0, goodput={"ttft": 200, "tpot": 100.001}), percentiles=[50])
    assert (found["request_goodput"], found["completed"], found["failed"]) == (1.0, 3, 1)
    assert found["median_tpot_ms"] == pytest.approx(100)
    assert found["mean_e2el_ms"] == pytest.approx(1000 / 3, abs=0.001)
    assert found["errors"] == ["no"]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://"])
def test_urls_that_name_no_server_are_refused(url):
    with pytest.raises(ConfigError, match="base_url must be like"):
        Endpoint.of(url, "/", {})
