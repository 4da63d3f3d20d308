"""Local directories and hub ids, against a stand-in of the hub on the loopback interface."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from jaxengine.device.weights.source import TEXT_FILES, ResolvedModel, resolve
from jaxengine.errors import CheckpointError, ConfigError

from . import hub as stand_in

OLD, NEW = "1" * 40, "2" * 40
INDEX = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})
SHARDS = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}


def files(tag: str) -> dict[str, bytes]:
    """A sharded model with everything that must not be fetched beside it."""
    wanted = {
        "config.json": f'{{"tag": "{tag}"}}'.encode(),
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": INDEX.encode(),
        **{shard: f"{tag} {shard}".encode() for shard in SHARDS},
    }
    unwanted = {
        "README.md": b"text",
        "modeling_evil.py": b"open('canary', 'w')",
        "consolidated.safetensors": b"the same weights again",
        "pytorch_model.bin": b"pickle",
        "original/config.json": b"{}",
        "onnx/model.safetensors": b"another format",
    }
    return wanted | unwanted


WANTED = {"config.json", "tokenizer.json", "model.safetensors.index.json"} | SHARDS


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub(online: None) -> Iterator[stand_in.Hub]:
    repositories = {
        "acme/tiny": stand_in.Repository({OLD: files("old"), NEW: files("new")}, {"main": NEW, "v1": OLD}),
        "acme/gated": stand_in.Repository({NEW: files("gated")}, {"main": NEW}, gated=True, token="hf_secret"),
        "acme/pickled": stand_in.Repository(
            {NEW: {"config.json": b"{}", "pytorch_model.bin": b"pickle"}}, {"main": NEW}
        ),
        "acme/older": stand_in.Repository({NEW: {"config.json": b"{}", "old.pt": b"pickle"}}, {"main": NEW}),
        "acme/whole": stand_in.Repository(
            {NEW: {"config.json": b"{}", "model.safetensors": b"weights"}}, {"main": NEW}
        ),
        "acme/tiny-GGUF": stand_in.Repository(
            {NEW: {"README.md": b"", "tiny-Q8_0.gguf": b"GGUF", "tiny-IQ8_0.gguf": b"", "tiny-Q4_K_M.gguf": b"GGUF"}},
            {"main": NEW},
        ),
        "acme/holes": stand_in.Repository(
            {NEW: {key: value for key, value in files("x").items() if key != "model-00002-of-00002.safetensors"}},
            {"main": NEW},
        ),
    }
    with stand_in.serve(repositories) as served:
        yield served


def fetch(hub: stand_in.Hub, cache: Path, model: str = "acme/tiny", **options: object) -> ResolvedModel:
    return resolve(model, endpoint=hub.endpoint, cache_dir=cache, show_progress=False, **options)  # type: ignore[arg-type]


def test_only_the_allowed_files_of_one_commit_are_fetched(hub: stand_in.Hub, tmp_path: Path) -> None:
    resolved = fetch(hub, tmp_path)

    assert resolved == ResolvedModel(resolved.path, "acme/tiny", "hub", NEW)
    assert {name for _, name in hub.downloads} == WANTED
    assert {commit for commit, _ in hub.downloads} == {NEW}
    assert {entry.name for entry in resolved.path.iterdir()} == WANTED
    assert json.loads((resolved.path / "config.json").read_text()) == {"tag": "new"}


def test_a_branch_that_moves_while_fetching_does_not_mix_commits(hub: stand_in.Hub, tmp_path: Path) -> None:
    hub.move_main_to = OLD
    resolved = fetch(hub, tmp_path)

    assert hub.repositories["acme/tiny"].refs["main"] == OLD
    assert {commit for commit, _ in hub.downloads} == {NEW}
    assert {name for _, name in hub.downloads} == WANTED
    assert (resolved.path / "model-00001-of-00002.safetensors").read_text().startswith("new")


@pytest.mark.parametrize("revision", ["v1", OLD])
def test_a_tag_or_commit_is_honoured_for_every_file(hub: stand_in.Hub, tmp_path: Path, revision: str) -> None:
    resolved = fetch(hub, tmp_path, revision=revision)
    assert resolved.commit == OLD
    assert {commit for commit, _ in hub.downloads} == {OLD}
    assert {name for _, name in hub.downloads} == WANTED


def test_a_second_start_downloads_nothing(hub: stand_in.Hub, tmp_path: Path) -> None:
    first = fetch(hub, tmp_path)
    hub.downloads.clear()
    assert fetch(hub, tmp_path) == first
    assert hub.downloads == []


def test_offline_uses_the_cache_by_branch_name(
    hub: stand_in.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch(hub, tmp_path)
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(hub, tmp_path) == first
    assert hub.requests == []


def test_offline_without_the_files_names_the_variable(
    hub: stand_in.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE is set"):
        fetch(hub, tmp_path)


def test_offline_with_only_the_texts_cached_is_an_error(
    hub: stand_in.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(hub, tmp_path, weights=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="acme/tiny"):
        fetch(hub, tmp_path)


def test_without_weights_only_texts_are_fetched(hub: stand_in.Hub, tmp_path: Path) -> None:
    fetch(hub, tmp_path, weights=False)
    assert {name for _, name in hub.downloads} == {"config.json", "tokenizer.json"}


def test_an_unsharded_model_is_fetched(hub: stand_in.Hub, tmp_path: Path) -> None:
    assert (fetch(hub, tmp_path, "acme/whole").path / "model.safetensors").read_bytes() == b"weights"


def test_an_unreachable_hub_names_what_to_check(online: None, tmp_path: Path) -> None:
    with stand_in.serve({}) as closed:
        pass
    with pytest.raises(CheckpointError, match="HF_ENDPOINT"):
        fetch(closed, tmp_path)


def test_an_unknown_model(hub: stand_in.Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no directory acme/none, and the hub .* HF_TOKEN"):
        fetch(hub, tmp_path, "acme/none")


def test_an_unknown_revision(hub: stand_in.Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no revision 'v9'"):
        fetch(hub, tmp_path, revision="v9")


def test_a_gated_model_needs_its_token(hub: stand_in.Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gated.*HF_TOKEN"):
        fetch(hub, tmp_path, "acme/gated")
    with pytest.raises(CheckpointError, match="gated"):
        fetch(hub, tmp_path, "acme/gated", token="hf_wrong")
    assert fetch(hub, tmp_path, "acme/gated", token="hf_secret").commit == NEW


def test_torchs_files_are_fetched_where_there_are_no_safetensors(hub: stand_in.Hub, tmp_path: Path) -> None:
    assert (fetch(hub, tmp_path, "acme/pickled").path / "pytorch_model.bin").read_bytes() == b"pickle"
    with pytest.raises(CheckpointError, match=r"lacks model\.safetensors; .*pytorch_model\.bin"):
        fetch(hub, tmp_path / "other", "acme/pickled", load_format="safetensors")
    with pytest.raises(CheckpointError, match=r"(?s)pickled weights only.*\(old\.pt\).*save_pretrained"):
        fetch(hub, tmp_path, "acme/older")


def test_a_shard_that_the_hub_lacks_is_named(hub: stand_in.Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00002\.safetensors"):
        fetch(hub, tmp_path, "acme/holes")


def test_a_file_in_gguf_is_named_by_its_type(
    hub: stand_in.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    monkeypatch.setattr("jaxengine.device.weights.source.directory_of", lambda path: made / path.name)
    resolved = fetch(hub, tmp_path, "acme/tiny-GGUF:Q8_0")
    assert resolved == ResolvedModel(made / "tiny-Q8_0.gguf", "acme/tiny-GGUF:Q8_0", "hub", NEW)
    assert "tiny-Q4_K_M.gguf" not in {name for _, name in hub.downloads}
    with pytest.raises(CheckpointError, match=r"lacks \*-Q2_K\.gguf|is in GGUF"):
        fetch(hub, tmp_path, "acme/tiny-GGUF:Q2_K")
    with pytest.raises(CheckpointError, match=r"is in GGUF \(.*tiny-Q4_K_M\.gguf.*acme/tiny-GGUF:Q4_K_M"):
        fetch(hub, tmp_path, "acme/tiny-GGUF")


def test_nothing_that_is_fetched_can_run() -> None:
    assert not [name for name in TEXT_FILES if name.endswith((".py", ".so", ".bin", ".pt"))]
    assert not [name for name in TEXT_FILES if set(name) & set("*?[")]


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == ResolvedModel(tmp_path, str(tmp_path), "directory")


def test_a_directory_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no revisions"):
        resolve(str(tmp_path), revision="main")


def test_no_model_is_the_embedded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jaxengine

    embedded = types.ModuleType("jaxengine.embedded")
    embedded.checkpoint_path = lambda: tmp_path  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jaxengine.embedded", embedded)
    monkeypatch.setattr(jaxengine, "embedded", embedded, raising=False)
    assert resolve(None) == ResolvedModel(tmp_path, "embedded", "embedded")
    with pytest.raises(ConfigError, match="the embedded model, which has no revisions"):
        resolve(None, revision="main")


@pytest.mark.parametrize("model", ["./missing", "/no/such/dir", "a/b/c", "~/nowhere", "with space", ""])
def test_neither_a_directory_nor_a_hub_id(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^the model .* is neither an existing directory nor a hub id"):
        resolve(model)
    with pytest.raises(ConfigError, match=r"^the tokenizer .* is neither an existing directory nor a hub id"):
        resolve(model, option="tokenizer")


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.touch()
    with pytest.raises(ConfigError, match=r"is a file; name a \.gguf file"):
        resolve(str(file))


def test_addresses_are_not_fetched() -> None:
    with pytest.raises(ConfigError, match="is an address"):
        resolve("gs://bucket/model")
