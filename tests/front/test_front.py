"""The host half alone: it is put together, answers and closes in a process that never loads JAX."""

from __future__ import annotations

from jaxengine.front.front import Front
from jaxengine.startup import build
from tests.test_imports import loaded_by

SCRIPT = """
from jaxengine.front.postprocess import Postprocessor
from jaxengine.front.sync_engine import SyncEngine
from jaxengine.api.llm import LLM
from jaxengine.contract.sampling_params import SamplingParams
from tests.fronts import make_front, runner_of

front = make_front()
with LLM.from_engine(front) as llm:
    [output] = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    [answer] = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=3), use_tqdm=False)
assert output.finished and answer.finished and runner_of(front).closed
"""


def test_a_front_needs_no_jax() -> None:
    loaded = loaded_by(SCRIPT)
    assert {"jaxengine", "buckets"} <= loaded
    assert loaded.isdisjoint({"jax", "jaxlib", "flax", "xla_cache", "pallas_kernels"})


def test_a_started_engine_is_a_front() -> None:
    assert issubclass(build.Engine, Front)
