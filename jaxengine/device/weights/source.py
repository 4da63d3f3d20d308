"""Where a model's files come from: a local directory, the hub, or the package itself. Nothing that is fetched is ever run."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from jaxengine.device.weights.checkpoint import PICKLED, conversion_hint, layouts, shard_names
from jaxengine.device.weights.gguf.directory import BESIDE, directory_of, is_gguf, only_gguf
from jaxengine.errors import CheckpointError, ConfigError

TEXT_FILES = (
    "config.json",
    "hf_quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tekken.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "modules.json",
    "artifact.metadata",
    "1_Pooling/config.json",
    *(f"{number}_Dense/config.json" for number in (1, 2, 3)),
)
"""Everything but weights that is ever fetched or copied. No Python file is among them."""

PROJECTIONS = (
    *(f"{number}_Dense/{file}" for number in (1, 2, 3) for file in ("model.safetensors", "pytorch_model.bin")),
    *("colbert_linear.pt", "sparse_linear.pt"),
)
"""Weights beside those of the model itself, fetched with them: modules of sentence-transformers, and BGE-M3's two."""


HUB_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*(:[A-Za-z0-9_]+)?)?")
"""Behind a colon is which of a repository's GGUF files is meant, as in `Qwen/Qwen3-0.6B-GGUF:Q8_0`."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model's files on this machine.

    `name` is what the user called it, `commit` the hub commit that every file is from (None unless `origin` is hub).
    """

    path: Path
    name: str
    origin: Literal["directory", "hub", "embedded"]
    commit: str | None = None


def resolve(
    model: str | None,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    endpoint: str | None = None,
    weights: bool = True,
    load_format: str = "auto",
    show_progress: bool = True,
    option: str = "model",
) -> ResolvedModel:
    """Find a model's files, downloading what the cache lacks.

    Args:
        model: A directory, a GGUF file, a hub id such as `Qwen/Qwen3-0.6B`, or None for the embedded model.
        revision: Hub branch, tag or commit; main when left out.
        token: Hub access token; HF_TOKEN or the saved login when left out.
        cache_dir: Hub cache; HF_HOME when left out.
        endpoint: Hub address; HF_ENDPOINT when left out.
        weights: Whether the weights are needed too, or only config and tokenizer.
        load_format: Which weights: `safetensors`, `pt` (`pytorch_model.bin`), or `auto` for the first of these that is there.
        show_progress: Whether downloads draw progress bars.
        option: What named it, for errors.

    Raises:
        ConfigError: neither a directory nor a hub id, or a revision of something that has none.
        CheckpointError: the hub has no such model, revision or weights, asks for access, or cannot be reached while
            the cache lacks files.
    """
    if model is None:
        from jaxengine import embedded  # a package of data; only a start without a model needs it

        _refuse_revision(revision, "the embedded model")
        return ResolvedModel(embedded.checkpoint_path(), "embedded", "embedded")
    path = Path(model).expanduser()
    if model and path.is_dir():
        _refuse_revision(revision, f"the local directory {path}")
        file = only_gguf(path) if load_format in ("auto", "gguf") else None
        return ResolvedModel(path if file is None else directory_of(file), model, "directory")
    if is_gguf(path):
        _refuse_revision(revision, f"the file {path}")
        return ResolvedModel(directory_of(path), model, "directory")
    _require_hub_id(model, path, option)
    model, _, quantised = model.partition(":")
    hub = _Hub(model, token=token, cache_dir=cache_dir, endpoint=endpoint, show_progress=show_progress)
    if quantised:
        return _one_of_several(hub, model, quantised, revision)
    wanted = layouts(load_format) if weights else ()
    snapshot = hub.fetch(
        [*TEXT_FILES, *(PROJECTIONS if weights else ()), *(layout.index for layout in wanted)], revision=revision
    )
    if not (snapshot / "config.json").is_file():
        hub.explain_missing(["config.json"], commit=snapshot.name)
    for layout in wanted:
        # The snapshot's directory is named after its commit: whatever else is fetched is pinned to it.
        index = snapshot / layout.index
        several = index.is_file()
        files = sorted(set(shard_names(index, suffix=layout.suffix).values())) if several else [layout.single]
        hub.fetch([glob.escape(file) for file in files], revision=snapshot.name)
        missing = [file for file in files if not (snapshot / file).is_file()]
        if not missing:
            break
        if several or layout is wanted[-1]:
            hub.explain_missing(missing, commit=snapshot.name)
    return ResolvedModel(snapshot, model, "hub", snapshot.name)


def _one_of_several(hub: _Hub, model: str, quantised: str, revision: str | None) -> ResolvedModel:
    """The file in GGUF of a repository that has the model in several ways. It is its own configuration: all of it is fetched."""
    spelled = dict.fromkeys((quantised, quantised.lower(), quantised.upper()))
    snapshot = hub.fetch([f"*{name}*.gguf" for name in spelled], revision=revision)
    named = re.compile(rf"[.-]{re.escape(quantised)}(-00001-of-\d+)?\.gguf$", re.IGNORECASE)
    found = sorted(file for file in snapshot.rglob("*.gguf") if named.search(file.name) and not BESIDE.match(file.name))
    if len(found) != 1:
        hub.explain_missing([f"*-{quantised}.gguf"], commit=snapshot.name)
    return ResolvedModel(directory_of(found[0]), f"{model}:{quantised}", "hub", snapshot.name)


def check_name(model: str | None) -> None:
    """What can be said of a model's name without loading or fetching anything.

    Raises:
        ConfigError: it is neither a directory nor a hub id.
    """
    if model is None:
        return
    path = Path(model).expanduser()
    if not (model and path.is_dir()) and not is_gguf(path):
        _require_hub_id(model, path)


def _refuse_revision(revision: str | None, what: str) -> None:
    if revision is not None:
        raise ConfigError(f"revision {revision!r} was given for {what}, which has no revisions; leave it out")


def _require_hub_id(model: str, path: Path, option: str = "model") -> None:
    if path.is_file():
        raise ConfigError(
            f"the {option} {model!r} is a file; name a .gguf file, or the directory that holds config.json and the weights"
        )
    if "://" in model:
        raise ConfigError(
            f"the {option} {model!r} is an address; copy or mount it and name the directory, or give a hub id"
        )
    if HUB_ID.fullmatch(model) is None:
        raise ConfigError(
            f"the {option} {model!r} is neither an existing directory nor a hub id such as 'Qwen/Qwen3-0.6B'; check the path "
            f"(looked for {path.absolute()})"
        )


class _Hub:
    """One model on the hub, with the caller's access settings. The library is imported when a hub id is really used."""

    def __init__(
        self, model: str, *, token: str | None, cache_dir: str | Path | None, endpoint: str | None, show_progress: bool
    ) -> None:
        self._model = model
        self._token = token
        self._cache_dir = cache_dir
        self._endpoint = endpoint
        self._show_progress = show_progress

    def fetch(self, files: Sequence[str], *, revision: str | None) -> Path:
        """The snapshot directory of `revision`, with those of `files` that the repository has."""
        import huggingface_hub
        from huggingface_hub import errors

        try:
            return Path(
                huggingface_hub.snapshot_download(
                    self._model,
                    revision=revision,
                    allow_patterns=list(files),
                    token=self._token,
                    cache_dir=self._cache_dir,
                    endpoint=self._endpoint,
                    tqdm_class=None if self._show_progress else _silent_progress(),
                )
            )
        except errors.GatedRepoError:
            raise CheckpointError(
                f"the model {self._model} is gated: accept its terms on its hub page, then pass hf_token or set HF_TOKEN to a "
                "token of that account"
            ) from None
        except errors.RepositoryNotFoundError:
            raise CheckpointError(
                f"there is no directory {self._model}, and the hub ({self._address()}) has no such model or it is private: "
                "check the spelling; for a private one pass hf_token or set HF_TOKEN"
            ) from None
        except errors.RevisionNotFoundError:
            raise CheckpointError(
                f"the model {self._model} has no revision {revision!r}; give a branch, tag or commit of it"
            ) from None
        except Exception as error:  # the library lets its HTTP client's own errors through
            raise CheckpointError(self._unreachable(error)) from error

    def explain_missing(self, missing: Sequence[str], *, commit: str) -> NoReturn:
        """Raise the reason why files are not in the snapshot."""
        import huggingface_hub

        try:
            api = huggingface_hub.HfApi(endpoint=self._endpoint, token=self._token)
            files = api.list_repo_files(self._model, revision=commit)
        except Exception as error:  # as above
            raise CheckpointError(self._unreachable(error)) from error
        in_gguf = [file for file in files if file.endswith(".gguf")]
        if in_gguf:
            raise CheckpointError(
                f"the model {self._model} is in GGUF ({', '.join(in_gguf)}); name one of these files by its type, as in "
                f"{self._model}:Q4_K_M"
            )
        pickled = [file for file in files if file.endswith((".bin", ".pt", ".pth"))]
        if pickled and missing == [PICKLED.single]:
            raise CheckpointError(
                f"the model {self._model} has pickled weights only, and not under the names that are read ({', '.join(pickled)})."
                f"{conversion_hint(self._model)}"
            )
        raise CheckpointError(
            f"the model {self._model} (commit {commit}) lacks {', '.join(missing)}; it has {', '.join(files)}"
        )

    def _unreachable(self, error: Exception) -> str:
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            return (
                f"the files of {self._model} are not all in the local cache and HF_HUB_OFFLINE is set; unset it, or run once "
                f"online with the same download directory ({error})"
            )
        return (
            f"the files of {self._model} could not be fetched from {self._address()} and are not all in the local cache: "
            f"{error}. Check the network, HF_ENDPOINT (for a mirror) and HF_TOKEN (for access), or name a local directory"
        )

    def _address(self) -> str:
        from huggingface_hub import constants

        return self._endpoint or constants.ENDPOINT


def _silent_progress() -> Any:
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Silent(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **(options | {"disable": True}))  # type: ignore[no-untyped-call]

    return Silent
