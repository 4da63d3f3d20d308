"""Eight well-behaved clients, whose answers must not change whatever somebody else sends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

from tests.robustness.loopback import Loopback, until

COUNT = 8
ANIMALS = ("cat", "dog", "bird", "fish")


def body(number: int) -> dict[str, Any]:
    """The request of one neighbour: half of them greedy, half sampled, all with log probabilities."""
    return {
        "prompt": f"Once upon a time there was a {ANIMALS[number % len(ANIMALS)]} number {number}",
        "max_tokens": 24 + number,
        "ignore_eos": True,
        "temperature": 0.0 if number % 2 else 0.9,
        "seed": number,
        "logprobs": 2,
    }


class Neighbours:
    """Each asks the same again and again; it must get the same choices as in a quiet run, log probabilities bit for bit.

    They run until `close`. `check` says that all is well so far.
    """

    def __init__(self, server: Loopback) -> None:
        self._server = server
        self._client = server.client()
        self._threads = ThreadPoolExecutor(COUNT)
        self.quiet = list(self._threads.map(self._ask, range(COUNT)))
        self._enough = Event()
        self._answers = [0] * COUNT
        self._trouble: list[str] = []
        self._running = [self._threads.submit(self._go_on, number) for number in range(COUNT)]

    def check(self) -> None:
        """The engine goes on, its accounts balance, it says that it is well, and nobody got another answer."""
        server, steps = self._server, self._server.steps
        until(lambda: server.steps > steps, "the engine runs another step")
        server.between_steps(server.engine.ledger.check)
        assert self._client.get("/health").status_code == 200
        assert not self._trouble, self._trouble[0]

    def close(self) -> None:
        """Let everybody finish; then nothing may be left behind."""
        answers = list(self._answers)
        until(
            lambda: all(now > then for now, then in zip(self._answers, answers, strict=True)) or self._trouble,
            "answers",
        )
        self._enough.set()
        for neighbour in self._running:
            neighbour.result(60)
        self._threads.shutdown()
        self._client.close()
        assert not self._trouble, self._trouble[0]
        self._server.check_idle()

    def _go_on(self, number: int) -> None:
        while not self._enough.is_set():
            try:
                answer = self._ask(number)
            except Exception as error:
                self._trouble.append(f"neighbour {number} got {error!r}")
                return
            if answer != self.quiet[number]:
                self._trouble.append(f"neighbour {number} got {answer}, in a quiet run {self.quiet[number]}")
            self._answers[number] += 1

    def _ask(self, number: int) -> Any:
        response = self._client.post("/v1/completions", json=body(number))
        assert response.status_code == 200, response.text
        return response.json()["choices"]
