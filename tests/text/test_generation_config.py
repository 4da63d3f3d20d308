"""generation_config.json: honoured, overridden, or reported as ignored."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.text.generation_config import GenerationDefaults


def write(directory: Path, name: str = "generation_config.json", **values: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(values))
    return directory


def test_the_models_file_is_honoured(tmp_path: Path) -> None:
    write(
        tmp_path,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        do_sample=True,
        eos_token_id=[7, 5, 7],
        max_new_tokens=9,
        min_p=None,
    )
    assert GenerationDefaults.load(tmp_path, {}) == GenerationDefaults(
        sampling={"temperature": 0.6, "top_k": 20, "top_p": 0.95}, eos_token_ids=(7, 5), max_new_tokens=9
    )


def test_without_a_file_config_json_names_the_end(tmp_path: Path) -> None:
    assert GenerationDefaults.load(tmp_path, {}) == GenerationDefaults()
    assert GenerationDefaults.load(tmp_path, {"eos_token_id": 5}) == GenerationDefaults(eos_token_ids=(5,))
    write(tmp_path, eos_token_id=7)
    assert GenerationDefaults.load(tmp_path, {"eos_token_id": 5}).eos_token_ids == (7,)


@pytest.mark.parametrize("own", [{}, {"eos_token_id": [7, 8]}])
def test_an_end_in_hf_overrides_counts_beside_the_models_own(tmp_path: Path, own: dict[str, Any]) -> None:
    write(tmp_path, **own)
    changed = {"eos_token_id": 5}
    assert GenerationDefaults.load(tmp_path, changed, hf_overrides=changed).eos_token_ids == (
        5,
        *own.get("eos_token_id", ()),
    )


def test_source_and_overrides(tmp_path: Path) -> None:
    write(tmp_path, temperature=0.6, eos_token_id=5)
    other = write(tmp_path / "other", top_p=0.5)
    assert GenerationDefaults.load(tmp_path, {}, source="vllm") == GenerationDefaults(eos_token_ids=(5,))
    assert GenerationDefaults.load(tmp_path, {}, source=str(other)).sampling == {"top_p": 0.5}
    override = {"temperature": 0.1, "presence_penalty": 1.0}
    assert GenerationDefaults.load(tmp_path, {}, override=override).sampling == override
    with pytest.raises(ConfigError, match=r"Give auto, vllm, or a directory"):
        GenerationDefaults.load(tmp_path, {}, source=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"'temprature' is not honoured\. Did you mean 'temperature'"):
        GenerationDefaults.load(tmp_path, {}, override={"temprature": 1})


def test_what_is_ignored_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, num_beams=4, typical_p=0.9, transformers_version="5", suppress_tokens=None)
    with caplog.at_level(logging.INFO, logger="jaxengine"):
        GenerationDefaults.load(tmp_path, {})
    assert "num_beams, typical_p ignored" in caplog.text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"eos_token_id": ["a"]}, "id or a list of ids"),
        ({"eos_token_id": True}, "id or a list of ids"),
        ({"max_new_tokens": 0}, "at least 1"),
    ],
)
def test_values_of_the_wrong_kind(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    write(tmp_path, **values)
    with pytest.raises(ConfigError, match=message):
        GenerationDefaults.load(tmp_path, {})


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        GenerationDefaults.load(tmp_path, {})
