"""What every command begins with: the model and its sizes, and nothing compiled or read of the weights."""

from __future__ import annotations

import logging

import pytest

from jaxengine.device.runtime.target import DEFAULTS, find_target
from jaxengine.errors import BundleError, ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup import prepare as prepare_module
from jaxengine.startup.bundle import adopt, open_bundle
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from tests.integration.engines import SMALL, write_config
from xla_cache import Store, write_bundle


def config(tmp_path, **options):
    return EngineConfig.from_options(**{"model": str(write_config(tmp_path / "model")), **SMALL, **options})


def test_a_model_and_its_sizes(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="jaxengine"):
        prepared = prepare(config(tmp_path, quantization="int8"), Progress(), weights=True)
    assert prepared.defaults is DEFAULTS["cpu"]
    assert (prepared.limits.max_model_len, prepared.limits.max_num_seqs) == (128, 4)
    assert prepared.with_context(16).limits.max_model_len == 16
    assert prepared.model.native is None, "a model as small as this one is XLA's"
    said, matrices = (record.message for record in caplog.records)
    assert "LlamaForCausalLM" in said
    assert "random weights in float32, matrices in int8" in said
    assert "int8" in matrices


def test_a_library_is_built_where_programs_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "obtain_native", lambda *arguments: "built")
    monkeypatch.setattr(prepare_module, "multiplies_coded", lambda native: False)
    assert prepare(config(tmp_path), Progress()).model.native == "built"
    described = find_target("h200", compiles=False)
    assert prepare(config(tmp_path), Progress(), target=described).model.native is None


def test_coded_weights_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"code_weights is always, and no matrix can be kept in 12 bits.* use auto or never"
    ):
        prepare(config(tmp_path, code_weights="always"), Progress())
    with pytest.raises(ConfigError, match="code_weights is always"):
        prepare(config(tmp_path, code_weights="always"), Progress(), target=find_target("h200", compiles=False))


def test_sizes_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(2\) must be at least max_num_seqs \(4\)"):
        prepare(config(tmp_path, max_num_batched_tokens=2), Progress())


def test_a_context_that_a_bundle_brings_must_be_the_models_too(tmp_path):
    pool = {"num_pages": 9, "max_model_len": 257}
    write_bundle(tmp_path / "b", Store.open(tmp_path / "b"), [], context={}, description={"options": {}, "pool": pool})
    given = EngineConfig.from_options(model=str(write_config(tmp_path / "model")), bundle=str(tmp_path / "b"))
    adopted, bundle = adopt(given, open_bundle(given))
    with pytest.raises(BundleError, match="serves 257 tokens of context, and this model has 256 positions"):
        prepare(adopted, Progress(), bundle=bundle)
