"""A plan says what each stage has and what passes between them, in figures that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.stages import split_layers
from jaxengine.tools.plan import plan_engine
from jaxengine.tools.plan_report import lines
from tests.integration.engines import SMALL, write_config

OPTIONS = {name: value for name, value in SMALL.items() if name not in ("load_format", "skip_tokenizer_init")}


def plan(directory: Any, *, tied: bool = True, **options: Any) -> Any:
    model = write_config(directory, torch_dtype="bfloat16", num_hidden_layers=4, tie_word_embeddings=tied)
    config = EngineConfig.from_options(model=str(model / "config.json"), num_pages=20, **{**OPTIONS, **options})
    return plan_engine(config, "v6e-8")


@pytest.mark.parametrize("tied", [True, False])
def test_stages_of_a_slice(tied: bool, tmp_path: Any) -> None:
    found = plan(tmp_path, tied=tied, pipeline_parallel_size=2, tensor_parallel_size=1, pipeline_layer_partition="3,1")
    first, last = found.pipeline.stages
    # two norms; queries and outputs of 8 heads, keys and values of 4; gate, up and down
    layer = 2 * (2 * 32 + 32 * (2 * 64 + 2 * 32) + 3 * 32 * 64)
    table, norm = 2 * 256 * 32, 2 * 32
    assert first.weight_bytes == table + 3 * layer
    assert last.weight_bytes == layer + norm + table, "the head, tied or not"
    assert found.weight_bytes == first.weight_bytes
    assert (first.first, first.last, last.first, last.last) == (0, 2, 3, 3)
    assert first.kv_bytes == 3 * last.kv_bytes
    # bfloat16 of the stream, and cosines and sines in float32
    assert found.pipeline.place_bytes == 2 * 32 + 2 * 4 * 4
    assert found.pipeline.returned_bytes == 4 * 5
    text = "\n".join(lines(found))
    assert "stage 0: layers 0 to 2 on 1 device, weights" in text
    assert "to the next stage pass 0.1 kB for each place of a step" in text


def test_stages_of_several_hosts(tmp_path: Any) -> None:
    """The last is on the first of them. Every device sends what it has of the stream, which all have whole."""
    model = write_config(tmp_path, torch_dtype="bfloat16", num_hidden_layers=4, hidden_size=64)
    options = {**OPTIONS, "max_num_batched_tokens": 64, "pipeline_parallel_size": 4, "tensor_parallel_size": 4}
    config = EngineConfig.from_options(model=str(model / "config.json"), num_pages=20, **options)
    found = plan_engine(config, "v6e-16")
    assert found.pipeline is not None
    assert [stage.hosts for stage in found.pipeline.stages] == [(3,), (2,), (1,), (0,)]
    assert found.pipeline.crossings == ((3, 2), (2, 1), (1, 0))
    assert found.pipeline.sent_bytes == found.pipeline.step_bytes
    text = "\n".join(lines(found))
    assert "stage 0: layers 0 to 0 on 4 devices of host 3, weights" in text
    assert "from host 3 to 2, 2 to 1, 1 to 0 each of 4 devices sends its part: " in text


def test_one_stage_has_no_such_lines(tmp_path: Any) -> None:
    found = plan(tmp_path, tensor_parallel_size=1)
    assert found.pipeline is None
    assert "stage 0" not in "\n".join(lines(found))


def test_layers_are_split_as_vllm_does() -> None:
    assert [len(part) for part in split_layers(10, 4)] == [2, 3, 3, 2]
    assert [len(part) for part in split_layers(27, 2)] == [14, 13]
    assert split_layers(3, 2, (1, 2)) == (range(1), range(1, 3))
    with pytest.raises(ConfigError, match="more than the 3 layers"):
        split_layers(3, 4)
