"""Another scheduler under the clock, a small one that computes prompts before all else."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from benchmarks.replaying.rules import powers, up
from buckets import Limits
from jaxengine.bench.clock import Launch, Step
from jaxengine.bench.traffic import Arrival
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.prefix import Chain


class PromptsFirst:
    """sglang-jax: a step is prompts, or else one token of every sequence; both are padded up to powers of two.

    The real page accounts; first come, first served; a prompt is admitted with all its pages, the latest gives way.
    """

    name = "sglang-jax"
    in_flight = 2

    def __init__(self, limits: Limits, ledger: Ledger) -> None:
        budget = limits.max_num_batched_tokens
        self._extends = powers(min(budget, max(64, limits.max_rows)), budget)
        self._decodes = powers(1, limits.max_rows)
        self.programs = len(self._extends) + len(self._decodes)
        self._limits = limits
        self._ledger = ledger
        self._waiting: deque[Job] = deque()
        self._prompts: list[Job] = []
        self._decoding: list[Job] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def resumes_at(self) -> float | None:
        return None

    def add(self, number: int, arrival: Arrival) -> None:
        self._waiting.append(Job(number, arrival, self._ledger.chain(None)))

    def schedule(self) -> Step | None:
        self._secure()
        self._admit()
        step = self._extend() if self._prompts else self._decode()
        for job, last in step.plan if step else ():
            if last:
                self._ledger.release(job.number)
        return step

    def commit(self, step: Step) -> Iterable[tuple[int, int, bool]]:
        return [(job.number, 1, last) for job, last in step.plan]

    def _admit(self) -> None:
        ledger, limits = self._ledger, self._limits
        backlog = sum(job.left for job in self._prompts)
        while self._waiting and backlog < limits.max_num_batched_tokens:
            running = len(self._prompts) + len(self._decoding)
            job = self._waiting[0]
            if running >= limits.max_rows:
                return
            job.computed = ledger.add(job.number, job.tokens, job.chain)
            length = len(job.tokens)
            spare = ledger.leaves(job.number, length, reserve=lambda pages, running=running: min(running, pages // 100))
            if not spare or not ledger.grow(job.number, length):
                ledger.release(job.number)
                return
            self._prompts.append(self._waiting.popleft())
            backlog += job.left

    def _secure(self) -> None:
        """Pages for the next token of all that decode."""
        position = 0
        while position < len(self._decoding):
            job = self._decoding[position]
            position += 1
            while not self._ledger.grow(job.number, len(job.tokens)):
                victim = (self._prompts or self._decoding).pop()
                self._ledger.release(victim.number)
                self._waiting.appendleft(victim)
                if victim is job:
                    break

    def _extend(self) -> Step:
        room, rows, sampled = self._limits.max_num_batched_tokens, [], []
        while self._prompts and room:
            job = self._prompts[0]
            take = min(room, job.left)
            room -= take
            rows.append((job.computed, take))
            job.computed += take
            self._ledger.commit(job.number, job.tokens, job.computed)
            if job.left:
                break
            sampled.append((job, job.sample()))
            self._prompts.pop(0)
        self._decoding += [job for job, last in sampled if not last]
        tokens = sum(take for _, take in rows)
        return Step((Launch(up(self._extends, tokens), 0, rows),), len(sampled), tokens, sampled)

    def _decode(self) -> Step | None:
        if not self._decoding:
            return None
        rows, context, sampled = len(self._decoding), 0, []
        for job in self._decoding:
            job.computed = len(job.tokens)
            context += job.computed
            sampled.append((job, job.sample()))
        self._decoding = [job for job, last in sampled if not last]
        return Step((Launch(up(self._decodes, rows), context, ()),), rows, rows, sampled)


class Job:
    """A request of `PromptsFirst`: `computed` positions of `tokens`, which grow as soon as a step that samples is planned."""

    __slots__ = ("chain", "computed", "end", "number", "tokens")

    def __init__(self, number: int, arrival: Arrival, chain: Chain) -> None:
        self.number = number
        self.tokens = list(arrival.token_ids())
        self.end = len(self.tokens) + arrival.output
        self.computed = 0
        self.chain = chain

    @property
    def left(self) -> int:
        """Tokens to compute."""
        return len(self.tokens) - self.computed

    def sample(self) -> bool:
        """Plan a token; whether it is the last."""
        self.tokens.append(0)
        return len(self.tokens) == self.end
