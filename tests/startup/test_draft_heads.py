"""What drafts by a model's states is planned of its files, and read from the checkpoint that has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from jaxengine.startup.weights import load_draft, open_weights
from tests.device.models.cases import Fixture
from tests.device.models.drafts.cases import DRAFTS, DraftFixture


def test_layers_of_the_targets_checkpoint_are_read_for_drafts_alone(tmp_path):
    case, fixture = DRAFTS["glm4-moe"], DraftFixture.load("glm4-moe")
    drafts = {name: tensor for name, tensor in fixture.tensors(case).items() if name.startswith(case.prefix)}
    model = planned(checkpoint(tmp_path, fixture.config, {**Fixture.load("glm4-moe").tensors, **drafts}))
    assert model.draft is not None
    config = EngineConfig()
    open_weights(model, config)
    loaded = load_draft(model.draft, open_weights(model.draft.model, config), 0, Progress())
    assert loaded.keys() == {f"draft.{path}" for path in model.draft.space.own}
    assert model.draft.space.shared == {"embed.table": "embed.table", "head.table": "head.table"}
    np.testing.assert_array_equal(loaded["draft.join.weight"], drafts[f"{case.prefix}eh_proj.weight"])
    assert len(model.cache) == len(model.graph.cache) + 1


def test_a_checkpoint_without_them_is_refused(tmp_path):
    fixture = Fixture.load("glm4-moe")
    model = planned(checkpoint(tmp_path, fixture.config, fixture.tensors))
    assert model.draft is not None
    with pytest.raises(CheckpointError, match=r"expected model.layers.2.eh_proj.weight"):
        open_weights(model.draft.model, EngineConfig())


def test_devices_of_its_own_are_refused(tmp_path):
    directory = checkpoint(tmp_path, Fixture.load("glm4-moe").config, {})
    with pytest.raises(
        ConfigError, match="draft_tensor_parallel_size=2 is not built; a draft is spread over the devices"
    ):
        planned(directory, draft_tensor_parallel_size=2)


def planned(directory: Path, **asked: Any) -> ModelPlan:
    speculative = {"method": "mtp", "num_speculative_tokens": 2, **asked}
    config = EngineConfig.from_options(model=str(directory), skip_tokenizer_init=True, speculative_config=speculative)
    return prepare(config, Progress()).model


def checkpoint(directory: Path, config: Any, tensors: dict[str, np.ndarray]) -> Path:
    (directory / "config.json").write_text(json.dumps(dict(config)))
    save_file(tensors, directory / "model.safetensors")
    return directory
