"""Engines that die, for tests of those who go on: on threads, of steps that fail when a test says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxengine.contract.batch import Batch
from jaxengine.contract.channel import Channel
from jaxengine.contract.rows import Row
from jaxengine.contract.runner import Weights
from tests.fakes import FakePending, FakeRunner
from tests.fronts import make_engine
from tests.harness import VOCAB

POISON = VOCAB - 2
"""A prompt with this as its second token kills the engine."""

STEP_S = 0.001
"""What a step takes: long enough for the front to keep up."""


@dataclass
class Fate:
    """What kills engines, and who they were.

    `kills` is asked before every step, with the number of steps that all engines together have begun; `strike` kills the engine
    that begins the next one. `poison_at` is how many
    tokens a request with `POISON` has when it kills; 0 is in its first step.
    """

    kills: Callable[[int], bool] = lambda step: False
    poison_at: int = 0
    steps: int = 0
    engines: list[Any] = field(default_factory=list)
    hangs: threading.Event | None = None
    struck: bool = False
    options: dict[str, Any] = field(default_factory=lambda: {"tokenizer": None, "vocab_size": VOCAB})

    def strike(self) -> None:
        """Kill the engine whose step comes next."""
        self.struck = True

    def launch(self, index: int) -> Channel:
        """Another engine."""
        fate = self

        class Mortal(FakeRunner):
            def launch(self, batch: Batch) -> FakePending:
                hangs = fate.hangs
                fate.steps += 1
                time.sleep(STEP_S)
                if hangs is not None:
                    hangs.wait(60)
                    raise RuntimeError("a step that hung")
                struck, fate.struck = fate.struck, False
                tables = {**self.tables, **dict(batch.tables)}
                if struck or fate.kills(fate.steps) or any(self._is_deadly(row, tables) for row in batch.rows):
                    raise RuntimeError("a fault of the device")
                return super().launch(batch)

            def _is_deadly(self, row: Row, tables: dict[int, Any]) -> bool:
                if row.start + row.num_tokens <= fate.poison_at:
                    return False
                if row.start == 0:
                    return row.tokens is not None and row.tokens[1:2] == (POISON,)
                return bool(self.tokens[0, int(tables[row.slot][0][0]), 1] == POISON)

        engine = make_engine(runner=Mortal, **{"max_num_seqs": 8, **self.options})
        engine.core.changes.read = lambda source: Weights({"source": source} if isinstance(source, str) else source)  # type: ignore[assignment]
        self.engines.append(engine)
        return engine.front.channel  # type: ignore[return-value]

    def check_idle(self) -> None:
        """No engine holds or has lost a page."""
        for engine in self.engines:
            engine.core.check_idle()
