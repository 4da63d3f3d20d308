"""Processes that are killed or stopped from outside: another takes their place, and streams go on."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from jaxengine.front.async_client import AsyncClient
from jaxengine.front.engine_process import EngineProcess
from jaxengine.front.postprocess import Postprocessor
from jaxengine.front.restarts import Supervision
from jaxengine.front.supervisor import Supervisor
from tests.fakes import oracle
from tests.far_engine import ENTRY, begin
from tests.fronts import MAX_LEN
from tests.harness import make_request
from tests.quick import slow_but

VOCAB_SIZE = 2048
"""That of `tests.far_engine`."""


@pytest.mark.parametrize(
    ("number", "cause"),
    slow_but([(signal.SIGKILL, "killed"), (signal.SIGSTOP, "silence")], {(signal.SIGKILL, "killed")}, several=True),
)
def test_what_happens_to_a_process_costs_time_only(number: signal.Signals, cause: str) -> None:
    async def scenario() -> None:
        made = [EngineProcess(begin(), entry=ENTRY)]

        def launch(index: int) -> EngineProcess:
            made.append(EngineProcess(begin(), entry=ENTRY))
            return made[-1]

        # The processes beat once a second.
        supervisor = Supervisor(made, launch, options=Supervision(silence_s=3.0))
        client = AsyncClient(supervisor, Postprocessor(None))
        client.start()
        request = make_request("a", range(1, 8), max_tokens=80, temperature=0.8, seed=3)
        tokens: list[int] = []
        async with asyncio.timeout(60):
            with await client.submit([request]) as stream:
                async for outputs in stream:
                    tokens = list(outputs[-1].outputs[0].token_ids)
                    if len(tokens) >= 10 and len(made) == 1 and client.num_open:
                        os.kill(made[0].pid, number)
        assert tuple(tokens) == oracle(request, 0, vocab_size=VOCAB_SIZE, max_len=MAX_LEN).tokens
        assert dict(supervisor.condition.engines[0].deaths) == {cause: 1}
        await client.close()
        supervisor.close()

    asyncio.run(scenario())
