"""What a bundle brings is taken over, and what it says of something else refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxengine.errors import BundleError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.bundle import adopt, open_bundle, rebuild_command, shaping
from xla_cache import Store, write_bundle


def config(**options: object) -> EngineConfig:
    return EngineConfig.from_options(**{"model": "m", **options})


def test_the_options_that_shape_programs_are_told_apart():
    chosen = config(
        max_num_seqs=4, buckets=("4x16",), bucket_planner="explicit", seed=3, warmup="none", compile_threads=1
    )
    assert shaping(chosen) == {"max_num_seqs": 4, "buckets": ("4x16",), "bucket_planner": "explicit"}


def test_the_command_that_rebuilds_can_be_typed():
    chosen = config(
        max_num_seqs=4, buckets=("4x16", "4x1"), bundle="b", hf_overrides={"rope_theta": 5.0}, deterministic=True
    )
    command = rebuild_command(chosen)
    assert command.startswith("jaxengine compile m --target local ")
    assert "--hf-overrides '{\"rope_theta\": 5.0}'" in command
    assert "--buckets 4x16,4x1" in command
    assert "--deterministic " in command
    assert command.endswith("-o b")


def bundle_with(tmp_path: Path, description: dict[str, object]) -> EngineConfig:
    write_bundle(tmp_path / "b", Store.open(tmp_path / "b"), [], context={}, description=description)
    return config(bundle=str(tmp_path / "b"))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({}, "does not say what options"),
        ({"options": {"warp": 9}, "pool": {}}, "warp: not an option of this version"),
        ({"options": {"page_size": 16}, "pool": []}, "does not say what options"),
    ],
)
def test_a_manifest_of_something_else_is_refused(tmp_path, description, message):
    chosen = bundle_with(tmp_path, description)
    with pytest.raises(BundleError, match=message):
        adopt(chosen, open_bundle(chosen))


def test_options_are_taken_over_where_none_was_given(tmp_path):
    chosen = bundle_with(
        tmp_path, {"options": {"page_size": 16, "buckets": ["4x16"]}, "pool": {"num_pages": 9, "max_model_len": 64}}
    )
    adopted, bundle = adopt(chosen, open_bundle(chosen))
    assert bundle is not None
    assert adopted.cache.page_size == 16
    assert adopted.cache.num_pages == 9
    assert adopted.model.max_model_len == 64
    assert adopted.compilation.buckets == ("4x16",)


def test_a_list_of_a_program_is_what_a_command_line_has(tmp_path):
    bundle_with(tmp_path, {"options": {"buckets": ["4x16"]}, "pool": {}})
    chosen = config(bundle=str(tmp_path / "b"), buckets=["4x16"])
    adopted, bundle = adopt(chosen, open_bundle(chosen))
    assert bundle is not None
    assert adopted.compilation.buckets == ("4x16",)
