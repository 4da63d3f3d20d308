"""A checkpoint in the engine's own layout and dtype, which loads without matching, transposing or casting."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax

from jaxengine.device.weights.checkpoint import (
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    ORBAX_DIRECTORY,
    OrbaxCheckpoint,
    TensorCheckpoint,
    open_checkpoint,
)
from jaxengine.device.weights.loader import load
from jaxengine.device.weights.report import Progress
from jaxengine.device.weights.rules import Ignore, KvHeads, Rule
from jaxengine.device.weights.source import TEXT_FILES
from jaxengine.errors import CheckpointError


def write_converted(
    source: Path,
    output: Path,
    *,
    rules: Sequence[Rule | Ignore],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: KvHeads,
    dtype: str,
    read: Callable[[TensorCheckpoint | OrbaxCheckpoint], TensorCheckpoint | OrbaxCheckpoint] = lambda stored: stored,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Load the checkpoint in `source` and write it to the directory `output`, complete or not at all.

    `read` presents the checkpoint as `rules` have it. The parameters' shapes and dtypes are what is stored; `config.json` names
    `dtype` afterwards, the model's own, and the tokenizer's and generation files are copied as they are.

    Raises:
        CheckpointError: `output` exists and `force` is false, `output` is `source`, or the source cannot be loaded.
    """
    output = output.absolute()
    if output.resolve() == source.resolve():
        raise CheckpointError(f"the output {output} is the source itself; name another directory")
    if output.exists() and not force:
        raise CheckpointError(f"the output {output} exists; name another directory, or pass --force to replace it")
    checkpoint = read(open_checkpoint(source))
    arrays = load(checkpoint, rules, parameters, config, progress=progress)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as directory:
        aside = Path(directory) / "new"
        aside.mkdir()
        _copy_texts(source, aside, dtype=dtype)
        _save(aside, arrays)
        if output.exists():
            output.rename(Path(directory) / "old")
        aside.rename(output)


def _save(directory: Path, arrays: Mapping[str, jax.Array]) -> None:
    from jaxengine.device.weights import orbax_format  # importing Orbax takes about a second

    orbax_format.save(directory / ORBAX_DIRECTORY, arrays)
    manifest = {
        "format": MANIFEST_FORMAT,
        "parameters": {path: {"shape": array.shape, "dtype": str(array.dtype)} for path, array in arrays.items()},
    }
    with (directory / MANIFEST_FILE).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _copy_texts(source: Path, directory: Path, *, dtype: str) -> None:
    """Copy what a model directory holds besides weights, with the new dtype in config.json."""
    for pattern in TEXT_FILES:
        for file in sorted(source.glob(pattern)):
            copy = directory / file.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)
    path = directory / "config.json"
    if path.is_file():
        config = json.loads(path.read_text(encoding="utf-8"))
        config.pop("torch_dtype", None)
        path.write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n", encoding="utf-8")
