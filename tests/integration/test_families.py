"""An engine starts with every family, from a checkpoint's files to tokens, and keeps its programs."""

from __future__ import annotations

import json

import pytest
from safetensors.numpy import save_file

from tests.device.models.cases import ARCHITECTURES, NUM_GREEDY, PROMPTS, QUICK, Fixture
from tests.integration.engines import greedy, run, start, token_ids
from tests.quick import slow_but

pytestmark = pytest.mark.usefixtures("quick_engines")


@pytest.mark.parametrize("case", slow_but(ARCHITECTURES.values(), (), often=QUICK))
def test_its_greedy_tokens_are_those_of_transformers(case, tmp_path):
    fixture = Fixture.load(case)
    (tmp_path / "config.json").write_text(json.dumps(fixture.config))
    save_file(fixture.tensors, tmp_path / "model.safetensors")
    engine = start(tmp_path, load_format="auto", dtype="float32", xla_cache_path=str(tmp_path / "programs"))
    try:
        found = token_ids(run(engine, PROMPTS, greedy(NUM_GREEDY)))
        assert engine.compile_counter.count == 0
        engine.ledger.check()
    finally:
        engine.close()
    assert [list(tokens) for tokens in found] == fixture.greedy
