"""The engine behind an event loop: outputs reach whoever waits, and what nobody waits for is given up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jaxengine.contract.batch import Batch
from jaxengine.contract.media import MediaFacts
from jaxengine.contract.metrics import FinishedRequest, FinishedSequence, StatsListener, StepStats
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import (
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    JaxEngineError,
    OverloadedError,
    RequestError,
    ShareFullError,
)
from jaxengine.front import async_client
from jaxengine.front.admission import Admission
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.postprocess import Postprocessor, Progress
from tests.fakes import FakePending, FakeRunner, GatedRunner, oracle
from tests.fronts import MAX_LEN, make_engine, runner_of
from tests.harness import VOCAB, make_request
from tests.media_items import make_facts, showing
from tests.text import tiny


class Rig:
    """An engine with four seats, a gated device, and its ledger."""

    def __init__(
        self,
        *,
        runner: Callable[..., FakeRunner] = GatedRunner,
        listeners: Sequence[StatsListener] = (),
        postprocessor: Postprocessor | None = None,
        media: MediaFacts | None = None,
        **admission: float,
    ) -> None:
        sizes = {"num_pages": 100, "max_num_seqs": 4, "max_num_batched_tokens": 32}
        engine = make_engine(runner=runner, tokenizer=None, vocab_size=VOCAB, media=media, **sizes)
        self.core, self.ledger, self.runner = engine.core, engine.ledger, runner_of(engine)
        self.channel = engine.front.channel
        self.engine = AsyncClient(
            self.channel,
            postprocessor or Postprocessor(None),
            admission=Admission(**admission),  # type: ignore[arg-type]
            listeners=lambda engine: listeners,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[AsyncClient]:
        """The engine, started; when it has ended no page is held."""
        self.engine.start()
        try:
            yield self.engine
        finally:
            if isinstance(self.runner, GatedRunner):
                self.runner.open()
            await self.engine.close()
            self.core.check_idle()

    @property
    def idle(self) -> bool:
        """Whether the engine says that nothing runs or waits, and no page is held."""
        stats = self.engine.statistics.scheduler
        return (
            self.engine.statistics.num_steps > 0
            and not (stats.num_running or stats.num_waiting)
            and self.ledger.pools.usage == 0
        )


def request(name: str, *, length: int = 5, max_tokens: int = 6, kind: str = "DELTA", **options: object) -> Request:
    start = 1 + sum(map(ord, name))
    prompt = [(start + index) % (VOCAB - 1) for index in range(length)]
    return make_request(name, prompt, max_tokens=max_tokens, output_kind=RequestOutputKind[kind], **options)  # type: ignore[arg-type]


async def tokens_of(engine: AsyncClient, wanted: Request) -> tuple[int, ...]:
    collected: list[int] = []
    with await engine.submit([wanted]) as stream:
        async for outputs in stream:
            for output in outputs:
                collected += output.outputs[0].token_ids
    return tuple(collected)


def expected(wanted: Request) -> tuple[int, ...]:
    return oracle(wanted, 0, vocab_size=VOCAB, max_len=MAX_LEN).tokens


async def settle(condition: Callable[[], bool]) -> None:
    """Wait for what the other thread is about to do."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def test_many_coroutines_get_their_own_outputs() -> None:
    async def scenario() -> None:
        rig = Rig(runner=FakeRunner)
        async with rig.running() as engine:
            wanted = [request(f"r{index}", length=3 + index, max_tokens=4 + index % 5) for index in range(20)]
            found = await asyncio.gather(*(tokens_of(engine, item) for item in wanted))
            assert list(found) == [expected(item) for item in wanted]
            assert engine.statistics.num_steps > 0
            assert engine.num_open == 0
            assert rig.idle

    asyncio.run(scenario())


def test_requests_of_one_submission_share_a_stream() -> None:
    async def scenario() -> None:
        rig = Rig(runner=FakeRunner)
        wanted = [request("a"), request("b", max_tokens=3), request("c", kind="FINAL_ONLY")]
        found: dict[str, list[int]] = {item.request_id: [] for item in wanted}
        async with rig.running() as engine:
            with await engine.submit(wanted) as stream:
                async for outputs in stream:
                    for output in outputs:
                        found[output.request_id] += output.outputs[0].token_ids
        assert {item.request_id: list(expected(item)) for item in wanted} == found

    asyncio.run(scenario())


def test_a_submission_is_all_or_none() -> None:
    async def scenario() -> None:
        rig = Rig(runner=FakeRunner)
        async with rig.running() as engine:
            with pytest.raises(ContextLengthError):
                await engine.submit([request("a"), request("b", length=400)])
            with pytest.raises(RequestError, match="in use"):
                await engine.submit([request("c"), request("c")])
            assert engine.num_open == 0
            assert await tokens_of(engine, request("a")) == expected(request("a"))

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_leaving_the_block_frees_the_pages_before_the_next_step(steps: int) -> None:
    async def scenario() -> None:
        rig = Rig()
        async with rig.running() as engine:
            stream = await engine.submit([request("a", max_tokens=50), request("b", max_tokens=50)])
            rig.runner.allow(steps)
            await settle(lambda: engine.statistics.num_steps == steps)
            with stream:
                pass
            rig.runner.allow(1)  # the step that was under way when the client left
            await settle(lambda: rig.idle)
            assert engine.statistics.num_steps <= steps + 1
            assert engine.num_open == 0

    asyncio.run(scenario())


def test_a_cancelled_coroutine_and_one_that_never_got_in() -> None:
    async def scenario() -> None:
        rig = Rig()
        async with rig.running() as engine:
            tasks = [asyncio.ensure_future(tokens_of(engine, request(f"r{index}"))) for index in range(6)]
            rig.runner.allow(2)
            await settle(lambda: engine.statistics.num_steps == 2)
            late = asyncio.ensure_future(tokens_of(engine, request("late")))
            await asyncio.sleep(0)
            for task in (*tasks[:5], late):
                task.cancel()
            rig.runner.open()
            assert await tasks[5] == expected(request("r5"))
            await asyncio.gather(*tasks, late, return_exceptions=True)
            await settle(lambda: rig.ledger.pools.usage == 0)

    asyncio.run(scenario())


def test_the_queue_is_bounded() -> None:
    async def scenario() -> None:
        rig = Rig(max_requests=3, max_tokens=40)
        async with rig.running() as engine:
            seated = [asyncio.ensure_future(tokens_of(engine, request(f"s{index}"))) for index in range(3)]
            rig.runner.allow(1)
            await settle(lambda: engine.statistics.num_steps == 1)
            rig.runner.allow(1)
            await settle(lambda: engine.statistics.scheduler.num_running == 3)
            big = asyncio.ensure_future(tokens_of(engine, request("big", length=30)))
            await asyncio.sleep(0)
            with pytest.raises(OverloadedError, match="30 prompt tokens are queued and at most 40") as refused:
                await engine.submit([request("more", length=30)])
            assert refused.value.retry_after >= 1
            others = [asyncio.ensure_future(tokens_of(engine, request(f"w{index}", length=2))) for index in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(OverloadedError, match="3 requests are queued and at most 3"):
                await engine.submit([request("more", length=2)])
            assert engine.gate.rejections == {"requests": 1, "tokens": 1, "media": 0, "share": 0, "draining": 0}
            rig.runner.open()
            await asyncio.gather(*seated, big, *others)
            assert await tokens_of(engine, request("after")) == expected(request("after"))

    asyncio.run(scenario())


def test_what_requests_in_progress_show_is_bounded() -> None:
    async def scenario() -> None:
        rig = Rig(media=make_facts(), max_media_bytes=40)
        async with rig.running() as engine:
            first, second = (showing(request(name), ("cat", 6), 1) for name in ("first", "second"))  # of 24 bytes
            seated = asyncio.ensure_future(tokens_of(engine, first))
            await asyncio.sleep(0)
            with pytest.raises(OverloadedError, match="at most 0 may be held \\(--max-media-gb\\)"):
                await engine.submit([second])
            assert engine.gate.rejections["media"] == 1
            text = asyncio.ensure_future(tokens_of(engine, request("text")))
            rig.runner.open()
            await asyncio.gather(seated, text)
            assert await tokens_of(engine, second) == seated.result()

    asyncio.run(scenario())


def test_many_updates_of_a_request_are_built_in_parts_between_which_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    process = Progress.process

    def counted(self: Progress, updates: Sequence[SequenceUpdate]) -> Any:
        sizes.append(len(updates))
        return process(self, updates)

    monkeypatch.setattr(Progress, "process", counted)
    monkeypatch.setattr(async_client, "SLICE_S", -1.0)

    async def scenario() -> None:
        rig = Rig()
        wanted = request("many", max_tokens=60, n=4, ignore_eos=True, kind="FINAL_ONLY")
        async with rig.running() as engine:
            with await engine.submit([wanted]) as stream:
                deadline = time.monotonic() + 20
                # The event loop stands still from before the first step to after the last one.
                for runs in (True, False):
                    while rig.core.has_unfinished != runs:
                        assert time.monotonic() < deadline
                        time.sleep(0.001)
                    rig.runner.open()
                turns = 0
                while engine.num_open:
                    turns += 1
                    await asyncio.sleep(0)
                [[output]] = [outputs async for outputs in stream]
        assert max(sizes) <= async_client.UPDATES_AT_ONCE
        assert turns >= len(sizes) > 4
        for index, completion in enumerate(output.outputs):
            assert completion.token_ids == oracle(wanted, index, vocab_size=VOCAB, max_len=MAX_LEN).tokens

    asyncio.run(scenario())


def test_no_share_fills_more_than_half_of_a_fair_queue() -> None:
    async def scenario() -> None:
        rig = Rig(max_requests=6, fair=True)
        async with rig.running() as engine:

            def ask(name: str, share: str) -> asyncio.Future[tuple[int, ...]]:
                return asyncio.ensure_future(tokens_of(engine, request(name, share=share, max_tokens=20)))

            asked = [ask(f"r{number}", "heavy") for number in range(4)]
            rig.runner.allow(1)
            await settle(lambda: engine.statistics.num_steps == 1)
            rig.runner.allow(3)
            await settle(lambda: sum(each.begun for each in engine._open.values()) == 4)
            asked += [ask(f"h{number}", "heavy") for number in range(3)]
            rig.runner.allow(1)
            await settle(lambda: engine.statistics.scheduler.num_waiting == 3)
            with pytest.raises(ShareFullError, match="3 requests of this key or user are queued and at most 3"):
                await engine.submit([request("h3", share="heavy"), request("h4", share="heavy")])
            with pytest.raises(ShareFullError):
                await engine.submit([request("l9", share="light"), request("h3", share="heavy")])
            asked += [ask("l0", "light"), ask("l1", "light")]
            await asyncio.sleep(0.01)
            assert engine.gate.rejections["share"] == 2
            rig.runner.open()
            await asyncio.gather(*asked)
            assert await tokens_of(engine, request("h3", share="heavy")) == expected(request("h3"))

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_request_that_takes_too_long_is_given_up() -> None:
    async def scenario() -> None:
        rig = Rig(timeout_s=0.05)
        async with rig.running() as engine:
            rig.runner.allow(2)
            with pytest.raises(DeadlineError, match=r"within 0\.05 s"):
                await tokens_of(engine, request("slow", max_tokens=40))
            rig.runner.allow(1)
            await settle(lambda: rig.idle)

    asyncio.run(scenario())


@pytest.mark.parametrize("n", [1, 2])
def test_what_is_not_read_is_not_made_without_limit(n: int) -> None:
    async def scenario() -> None:
        rig = Rig(max_unread=8)
        wanted = request("unread", max_tokens=60, n=n, ignore_eos=True)
        async with rig.running() as engine:
            with await engine.submit([wanted]) as stream:
                await paused(rig, steps=14)
                neighbour = request("read", max_tokens=60, ignore_eos=True)
                assert await tokens_of(engine, neighbour) == expected(neighbour)
                await settle(lambda: rig.idle)  # neither runs nor waits, and holds no page
                steps = engine.statistics.num_steps
                assert await engine.reset_prefix_cache()
                found: dict[int, list[int]] = {index: [] for index in range(n)}
                assert engine.statistics.num_steps == steps, "an engine with nothing but paused requests rests"
                async for outputs in stream:
                    for output in outputs:
                        for completion in output.outputs:
                            found[completion.index] += completion.token_ids
                    await asyncio.sleep(0.005)  # behind again and again
        for index in range(n):
            answer = oracle(wanted, index, vocab_size=VOCAB, max_len=MAX_LEN).tokens
            assert tuple(found[index]) == answer

    asyncio.run(scenario())


async def paused(rig: Rig, *, steps: int) -> None:
    """After so many steps nobody has read what they brought, and the device may go on."""
    before = rig.engine.num_pauses
    rig.runner.shut()
    rig.runner.allow(steps)
    await settle(lambda: rig.engine.num_pauses > before)
    rig.runner.open()


def test_a_paused_stream_can_be_left() -> None:
    async def scenario() -> None:
        rig = Rig(max_unread=4, timeout_s=1.0)
        async with rig.running() as engine:
            with await engine.submit([request("left", max_tokens=60, ignore_eos=True)]):
                await paused(rig, steps=9)
                await settle(lambda: rig.idle)
            assert engine.num_open == 0
            rig.runner.shut()
            with await engine.submit([request("late", max_tokens=60, ignore_eos=True)]) as stream:
                await paused(rig, steps=9)
                await settle(lambda: rig.idle)
                await settle(lambda: engine.num_open == 0)
                assert await anext(stream)
                with pytest.raises(DeadlineError):
                    await anext(stream)
            await settle(lambda: not rig.core.has_unfinished)

    asyncio.run(scenario())


class Dies(FakeRunner):
    def launch(self, batch: Batch) -> FakePending:
        if self.steps == 2:
            raise MemoryError("out of device memory")
        return super().launch(batch)


def test_a_dead_engine_fails_everybody_and_says_so() -> None:
    async def scenario() -> None:
        rig = Rig(runner=Dies)
        async with rig.running() as engine:
            engine.check_health()
            results = await asyncio.gather(
                *(tokens_of(engine, request(f"r{index}")) for index in range(6)), return_exceptions=True
            )
            assert all(isinstance(result, EngineDeadError) for result in results), results
            assert "a step failed" in str(results[0]), "clients hear no more than that"
            with pytest.raises(EngineDeadError):
                engine.check_health()
            with pytest.raises(EngineDeadError):
                await engine.submit([request("x")])
            with pytest.raises(EngineDeadError):
                await engine.reset_prefix_cache()
            engine.abort(["r1"])

    asyncio.run(scenario())


def test_draining_finishes_what_runs_and_refuses_the_new() -> None:
    async def scenario() -> None:
        rig = Rig()
        async with rig.running() as engine:
            task = asyncio.ensure_future(tokens_of(engine, request("a")))
            await settle(lambda: engine.num_open == 1)
            engine.drain()
            with pytest.raises(OverloadedError, match="shutting down"):
                await engine.submit([request("b")])
            with pytest.raises(OverloadedError):
                engine.check_health()
            rig.runner.open()
            assert await task == expected(request("a"))

    asyncio.run(scenario())


def test_closing_fails_what_is_open_and_frees_the_device() -> None:
    async def scenario() -> None:
        rig = Rig()
        async with rig.running() as engine:
            task = asyncio.ensure_future(tokens_of(engine, request("a", max_tokens=40)))
            rig.runner.allow(2)
            await settle(lambda: engine.statistics.num_steps == 2)
            rig.runner.allow(1)
            await engine.close()
            with pytest.raises(EngineDeadError, match="closed"):
                await task
            assert rig.runner.closed
            await engine.close()

    asyncio.run(scenario())


def test_a_step_that_never_ends_does_not_keep_the_process() -> None:
    async def scenario() -> None:
        rig = Rig()
        async with rig.running() as engine:
            task = asyncio.ensure_future(tokens_of(engine, request("a")))
            await settle(lambda: engine.statistics.scheduler.num_waiting == 1)
            await engine.close(patience_s=0.05)
            with pytest.raises(EngineDeadError, match="closed"):
                await task
            assert rig.channel.is_alive
            assert rig.channel._thread.daemon

    asyncio.run(scenario())


def test_the_prefix_cache_is_forgotten_unless_somebody_uses_it() -> None:
    async def scenario() -> None:
        rig = Rig()
        async with rig.running() as engine:
            task = asyncio.ensure_future(tokens_of(engine, request("a", length=9)))
            await settle(lambda: engine.statistics.scheduler.num_waiting == 1)
            rig.runner.allow(1)
            assert not await engine.reset_prefix_cache()
            rig.runner.open()
            await task
            assert await engine.reset_prefix_cache()
            hits = engine.statistics.scheduler.prefix_cache_hits
            await tokens_of(engine, request("a", length=9))
            assert engine.statistics.scheduler.prefix_cache_hits == hits

    asyncio.run(scenario())


class Heard:
    """Counts what a listener is told, and by which thread."""

    def __init__(self) -> None:
        self.tokens = 0
        self.finished: list[tuple[str, int]] = []
        self.lost: list[tuple[str, int]] = []
        self.threads: set[int] = set()

    def on_step(self, stats: StepStats) -> None:
        self.tokens += stats.num_generated_tokens
        self.threads.add(threading.get_ident())

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        self.finished.append((sequence.finish_reason, sequence.num_generated_tokens))
        self.threads.add(threading.get_ident())

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        self.lost.append((finish_reason, num_sequences))
        self.threads.add(threading.get_ident())


def test_listeners_hear_of_every_token_and_loss_on_the_event_loop() -> None:
    async def scenario() -> None:
        heard = Heard()
        rig = Rig(listeners=[heard])
        async with rig.running() as engine:
            stream = await engine.submit([request("goes", max_tokens=50, n=2)])
            rig.runner.allow(2)
            await settle(lambda: engine.statistics.num_steps == 2)
            stream.close()
            rig.runner.open()
            await settle(lambda: bool(heard.lost))
            before = heard.tokens
            assert len(await tokens_of(engine, request("a"))) == heard.tokens - before
        assert heard.lost == [("abort", 2)]
        assert heard.finished == [("length", 6)]
        assert heard.threads == {threading.get_ident()}

    asyncio.run(scenario())


def block_until(condition: Callable[[], bool]) -> None:
    """Hold up the event loop until the engine's thread is so far."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_an_event_loop_that_fell_behind_takes_several_tokens_at_once() -> None:
    async def scenario() -> None:
        rig = Rig(runner=FakeRunner)
        wanted = request("a", max_tokens=30)
        async with rig.running() as engine:
            with await engine.submit([wanted]) as stream:
                block_until(lambda: not rig.core.has_unfinished)
                outputs = [output async for some in stream for output in some]
        assert len(outputs) <= 3
        assert tuple(token for output in outputs for token in output.outputs[0].token_ids) == expected(wanted)
        assert outputs[-1].outputs[0].finish_reason == "length"

    asyncio.run(scenario())


def test_outputs_are_built_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_client, "SLICE_S", -1.0)  # one output each

    async def scenario() -> None:
        rig = Rig()
        wanted = [request(f"r{index}", max_tokens=9) for index in range(4)]
        async with rig.running() as engine:
            with await engine.submit(wanted) as stream:
                rig.runner.open()
                block_until(lambda: not rig.core.has_unfinished)
                turns = 0
                while engine.num_open:
                    await asyncio.sleep(0)
                    turns += 1
                assert turns >= len(wanted), "others had their turn between any two of them"
                found: dict[
                    str, tuple[int, ...]
                ] = {}  # the last token may come after all others, which are told in one piece
                async for outputs in stream:
                    for output in outputs:
                        found[output.request_id] = found.get(output.request_id, ()) + output.outputs[0].token_ids
        for item in wanted:
            assert found[item.request_id] == expected(item)

    asyncio.run(scenario())


def test_what_comes_after_an_abort_is_dropped_even_for_a_request_of_the_same_id() -> None:
    async def scenario() -> None:
        rig = Rig(runner=FakeRunner)
        async with rig.running() as engine:
            stream = await engine.submit([request("a", max_tokens=30)])
            block_until(lambda: not rig.core.has_unfinished)
            stream.close()
            again = request("a", length=9, max_tokens=5)
            assert await tokens_of(engine, again) == expected(again)
            assert engine.num_open == 0

    asyncio.run(scenario())


def test_a_stop_string_ends_its_own_sequence_in_the_core() -> None:
    tokenizer = tiny.byte_level()

    async def texts(engine: AsyncClient, **options: object) -> list[tuple[str, str | None]]:
        wanted = request("a", max_tokens=60, kind="CUMULATIVE", n=2, **options)
        with await engine.submit([wanted]) as stream:
            last = [output async for outputs in stream for output in outputs][-1]
        return [(completion.text, completion.finish_reason) for completion in last.outputs]

    async def scenario() -> None:
        heard = Heard()
        rig = Rig(listeners=[heard], postprocessor=Postprocessor(tokenizer), runner=FakeRunner)
        async with rig.running() as engine:
            (first, _), (second, _) = await texts(engine)
            stop = next(char for char in first[5:] if char not in second)
            assert await texts(engine, stop=[stop]) == [(first[: first.index(stop)], "stop"), (second, "length")]
            await settle(lambda: rig.idle and len(heard.finished) == 4)
        assert not heard.lost
        # The core may have been done with the sequence before it was told.
        assert [reason for reason, _ in heard.finished].count("length") >= 3

    asyncio.run(scenario())


def test_a_sequence_that_the_core_still_runs_is_stopped_and_counts_as_that() -> None:
    tokenizer = tiny.byte_level()

    async def scenario() -> None:
        heard = Heard()
        rig = Rig(listeners=[heard], postprocessor=Postprocessor(tokenizer))
        wanted = request("a", max_tokens=80)
        tokens = expected(wanted)
        stop = next(text for token in tokens[2:] if (text := tokenizer.decode([token])).isascii() and text)
        stopping = request("a", max_tokens=80, stop=[stop])
        async with rig.running() as engine:
            stream = await engine.submit([stopping])
            for steps in range(1, 80):
                rig.runner.allow(1)
                await settle(lambda steps=steps: engine.statistics.num_steps >= steps)  # type: ignore[misc]
                if not engine.num_open:
                    break
            rig.runner.allow(2)
            outputs = [output async for some in stream for output in some]
            assert outputs[-1].outputs[0].stop_reason == stop
            await settle(lambda: rig.idle and bool(heard.finished))
        [(reason, generated)] = heard.finished
        assert reason == "stop"
        assert 0 <= generated - sum(len(output.outputs[0].token_ids) for output in outputs) <= 2
        assert not heard.lost

    asyncio.run(scenario())


class Broken(Postprocessor):
    """Has a bug that one request finds."""

    def begin(self, request: Request) -> Progress:
        if request.request_id == "bad":
            raise KeyError("a secret")
        return super().begin(request)


def test_what_goes_wrong_in_taking_a_request_in_is_its_own_matter() -> None:
    async def scenario() -> None:
        rig = Rig(runner=FakeRunner, postprocessor=Broken(None))
        async with rig.running() as engine:
            with pytest.raises(JaxEngineError, match="could not take in a request") as refused:
                await engine.submit([request("a"), request("bad")])
            assert "secret" not in str(refused.value)
            assert await tokens_of(engine, request("b")) == expected(request("b"))

    asyncio.run(scenario())
