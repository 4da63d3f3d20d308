"""Both sides of an engine around a runner: it is put together, answers and closes in a process that never loads JAX."""

from __future__ import annotations

from tests.test_imports import loaded_by

SCRIPT = """
from jaxengine.api.llm import LLM
from jaxengine.contract.sampling_params import SamplingParams
from tests.fronts import make_engine, runner_of

engine = make_engine()
with LLM.from_engine(engine) as llm:
    [output] = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    [answer] = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=3), use_tqdm=False)
assert output.finished and answer.finished and runner_of(engine).closed
"""


def test_an_engine_around_another_runner_needs_no_jax() -> None:
    loaded = loaded_by(SCRIPT)
    assert {"jaxengine", "buckets"} <= loaded
    assert loaded.isdisjoint({"jax", "jaxlib", "flax", "xla_cache", "pallas_kernels"})
