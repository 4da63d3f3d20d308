"""A process with an engine around a fake runner, for tests of what is at the other end: `EngineProcess(begin, entry=ENTRY)`.

What it does is told by the name of its model: `tiny` is an engine whose steps take 5 ms, others are ways to fail.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxengine.contract.messages import Begin, Event, ModelFound, StartProgress
from jaxengine.contract.model_source import ModelSource
from jaxengine.embedded import checkpoint_path
from jaxengine.errors import ConfigError
from jaxengine.host.engine.host import EngineHost
from jaxengine.options.config import EngineConfig
from jaxengine.startup.engine_process import serve
from tests.fakes import FakeRunner
from tests.fronts import make_engine

ENTRY = "tests.far_engine"
STEP_S = 0.005


class Slow(FakeRunner):
    def launch(self, batch: Any) -> Any:
        time.sleep(STEP_S)
        if (batch.number, os.environ.get("TEST_STEP_FAILS")) == (5, "yes"):
            raise RuntimeError("a fault of the device")
        return super().launch(batch)


def begin(model: str = "tiny", **options: Any) -> Begin:
    """What such a process is told."""
    return Begin(config=EngineConfig.from_options(model=model, **options))


def build(begin: Begin, emit: Callable[[Event], None]) -> EngineHost:
    match begin.config.model.model:
        case "refused":
            raise ConfigError("no such model: refused")
        case "faulty":
            raise RuntimeError("a bug")
        case "killed":
            os.abort()
        case "gated":
            while not Path(os.environ["TEST_GATE"]).exists():
                emit(StartProgress(phase="compile", seconds=1.5, text="1/2 programs"))
                time.sleep(0.01)
        case "endless":
            emit(StartProgress(phase="compile", seconds=0.0, text="1/2 programs, ETA 3600 s"))
            time.sleep(3600)
    emit(StartProgress(phase="resolve", seconds=0.25, done=True, text="tiny"))
    plain = begin.config.model.model == "plain"
    config = EngineConfig.from_options(model="plain", chat_template="{{ messages }}") if plain else begin.config
    source = ModelSource(path=checkpoint_path(), config_json={}, vocab_size=2048, tokenizer_path=None, config=config)
    emit(ModelFound(source))
    if plain:
        time.sleep(3600)
    return make_engine(runner=Slow, tokenizer=None, vocab_size=2048).host


def main(descriptor: int) -> None:
    serve(descriptor, build)
