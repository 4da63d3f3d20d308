"""What the reader says of an adapter, added to its base model's matrices, is the model that PEFT merges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jaxengine.device.weights.peft import PeftAdapter, read_adapter
from tests.device.adapters.cases import ADAPTERS, AdapterFixture
from tests.device.models.cases import PROMPTS, log_softmax
from tests.device.models.paged import PagedModel
from tests.quick import rare_but

MAX_ERROR = 1e-4
"""Of a log probability in float32, as a share of the logits' standard deviation."""


def merged(fixture: AdapterFixture, adapter: PeftAdapter) -> dict[str, np.ndarray]:
    """The base model's tensors with the adapter's products added to them."""
    tensors = {**fixture.base.tensors, **adapter.saved}
    for module, pair in adapter.modules.items():
        delta = np.float32(pair.scale) * (pair.b @ pair.a)
        turned = pair.embedding or fixture.config["fan_in_fan_out"]
        tensors[f"{module}.weight"] = tensors[f"{module}.weight"] + (delta.T if turned else delta)
    return tensors


@pytest.mark.slow
@pytest.mark.parametrize("name", rare_but(ADAPTERS, ["llama-patterns", "llama-vocabulary"]))
def test_a_merged_model_computes_what_pefts_does(name: str, tmp_path: Path) -> None:
    fixture = AdapterFixture.load(name)
    model = PagedModel(fixture.base.config, merged(fixture, read_adapter(fixture.write(tmp_path / "adapter"))))
    expected = [log_softmax(logits) for logits in fixture.logits]
    spread = np.concatenate(fixture.logits).std()
    for ours, theirs in zip(model.logprobs(PROMPTS, seq=5), expected, strict=True):
        assert np.abs(ours - theirs).max() / spread < MAX_ERROR
