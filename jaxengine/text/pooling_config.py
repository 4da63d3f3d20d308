"""What the files of sentence-transformers beside a model say about its embeddings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxengine.errors import CheckpointError
from jaxengine.text.settings import read_json_object

MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"
LAST_TOKEN = "lasttoken"
BUILT = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingDefaults:
    """`described` says that the files are there: the model was made for embeddings.

    `normalize` is what requests get that do not say. `unsupported` is why the model's embeddings would come out wrong, None where
    they do not: what is built is the last token's hidden state, scaled to length one or not.
    """

    described: bool = False
    normalize: bool = True
    unsupported: str | None = None

    @classmethod
    def load(cls, model_directory: Path) -> PoolingDefaults:
        """Read modules.json and 1_Pooling/config.json, where they exist.

        Raises:
            CheckpointError: one of them is not JSON of the right form.
        """
        if not (model_directory / MODULES_FILE).is_file():
            return cls()
        modules = _modules(model_directory / MODULES_FILE)
        modes = _modes(read_json_object(model_directory / POOLING_FILE)) if "Pooling" in modules else []
        unknown = [name for name in modules if name not in BUILT]
        reason = None
        if unknown:
            reason = f"{MODULES_FILE} asks for {', '.join(unknown)} after the model"
        elif modes != [LAST_TOKEN]:
            reason = f"they are pooled by {' and '.join(modes) or 'no known mode'}, and only {LAST_TOKEN} is built"
        return cls(described=True, normalize="Normalize" in modules, unsupported=reason)


def _modules(path: Path) -> list[str]:
    """The class names of the modules, in order."""
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        return [str(module["type"]).rpartition(".")[2] for module in modules]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a list of modules: {error!r}") from None


def _modes(values: dict[str, Any]) -> list[str]:
    """The pooling modes that are switched on: `pooling_mode_lasttoken: true`, or `pooling_mode: lasttoken` in newer files."""
    named = values.get("pooling_mode")
    newer = named if isinstance(named, list) else [named] if named else []
    prefix = "pooling_mode_"
    older = [key.removeprefix(prefix) for key, value in values.items() if key.startswith(prefix) and value is True]
    return [str(mode) for mode in newer] + older
