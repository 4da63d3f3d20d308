"""Runs a set of requests to the end: all of them or none, interruptible between steps, with a progress bar."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tqdm import tqdm

from jaxengine.contract.outputs import Output, RequestOutput
from jaxengine.contract.request import Request
from jaxengine.errors import EngineDeadError, RequestError
from jaxengine.front.inline_client import InlineClient


def run_to_end(client: InlineClient, requests: Sequence[Request], *, show_progress: bool) -> list[Any]:
    """Run requests in an engine that tells only final outputs; these in the order of the requests.

    Whatever goes wrong (or Ctrl-C), the requests are aborted and the engine is left ready for the next call.

    Raises:
        RequestError: one request can never fit; none has run.
        EngineDeadError: a step failed.
        KeyboardInterrupt: Ctrl-C, after the step in progress.
    """
    waiting = {request.request_id for request in requests}
    outputs: dict[str, Output] = {}
    try:
        with _interruptible() as interrupt, _Bar(requests, show=show_progress) as bar:
            _enqueue(client, requests)
            while waiting:
                if not client.has_unfinished:
                    raise EngineDeadError(f"the engine lost {len(waiting)} requests; this is a bug in jaxengine")
                for output in client.step():
                    outputs[output.request_id] = output
                    waiting.discard(output.request_id)
                    bar.add(output)
                interrupt.check()
    except BaseException:
        client.abort(tuple(waiting))
        raise
    return [outputs[request.request_id] for request in requests]


def _enqueue(client: InlineClient, requests: Sequence[Request]) -> None:
    for index, request in enumerate(requests):
        try:
            client.submit([request])
        except RequestError as error:
            if len(requests) == 1:
                raise
            raise type(error)(f"prompt {index}: {error}", param=error.param) from error


class _Interrupt:
    """Remembers a Ctrl-C until the step in progress is over; a second one is raised at once."""

    def __init__(self) -> None:
        self._seen = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._seen:
            signal.default_int_handler(number, frame)
        self._seen = True

    def check(self) -> None:
        if self._seen:
            raise KeyboardInterrupt


@contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    """A step that is torn apart leaves device buffers that were given away; so Ctrl-C waits for its end.

    A program with a handler of its own, or another thread than the main one, is left alone.
    """
    interrupt = _Interrupt()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt.on_signal)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Bar:
    """Finished requests, and tokens per second in and out since the start."""

    def __init__(self, requests: Sequence[Request], *, show: bool) -> None:
        self._bar = tqdm(total=len(requests), desc="Processed prompts", disable=not show, dynamic_ncols=True)
        self._started = time.perf_counter()
        self._tokens_in = self._tokens_out = 0

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def add(self, output: Output) -> None:
        self._tokens_in += len(output.prompt_token_ids)
        if isinstance(output, RequestOutput):
            self._tokens_out += sum(len(completion.token_ids) for completion in output.outputs)
        seconds = max(time.perf_counter() - self._started, 1e-9)
        speed = f"in: {self._tokens_in / seconds:.1f} tok/s, out: {self._tokens_out / seconds:.1f} tok/s"
        self._bar.set_postfix_str(speed, refresh=False)
        self._bar.update(1)
