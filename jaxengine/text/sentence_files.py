"""What the files of sentence-transformers beside a model say about its embeddings or scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxengine.errors import CheckpointError
from jaxengine.text.settings import read_json_object

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
LENGTH_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
MODES = {"lasttoken": "LAST", "cls": "CLS", "cls_token": "CLS", "mean": "MEAN", "mean_tokens": "MEAN"}
"""The modes of their pooling that are built, by vLLM's names."""
ACTIVATIONS = {"Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
"""Classes of torch that may follow a projection."""


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A projection behind the model: its folder, its sizes, and what follows it."""

    folder: str
    inputs: int
    outputs: int
    bias: bool
    activation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFiles:
    """`described` says that the files are there: the model was made for embeddings.

    `pooling` is one of `MODES`' names, or None where each token keeps a vector of its own. `dense` projections follow, and with
    `normalize` embeddings are scaled to length one. `unsupported` is why they would come out wrong, None where they do not.
    `prompts` are put before texts, by what these are; `max_tokens` is how much of a text the model reads.
    """

    described: bool = False
    pooling: str | None = None
    dense: tuple[DenseModule, ...] = ()
    normalize: bool = True
    unsupported: str | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    max_tokens: int | None = None

    @classmethod
    def load(cls, directory: Path) -> SentenceFiles:
        """Read modules.json and the files it names, where they exist.

        Raises:
            CheckpointError: one of them is not JSON of the right form.
        """
        if not (directory / MODULES_FILE).is_file():
            return cls()
        modules = _modules(directory / MODULES_FILE)
        try:
            pooling, reason = None, None
            dense = []
            for kind, folder in modules:
                if kind == "Pooling":
                    pooling, reason = _pooling(read_json_object(directory / folder / "config.json"))
                elif kind == "Dense":
                    dense.append(_dense(folder, read_json_object(directory / folder / "config.json")))
                elif kind not in ("Transformer", "Normalize"):
                    reason = f"{MODULES_FILE} asks for {kind} after the model"
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the modules that {directory / MODULES_FILE} names cannot be read: {error!r}"
            ) from None
        return cls(
            described=True,
            pooling=pooling,
            dense=tuple(dense),
            normalize=any(kind == "Normalize" for kind, _ in modules),
            unsupported=reason,
            prompts=_prompts(read_json_object(directory / PROMPTS_FILE)),
            max_tokens=_length(directory),
        )


def _modules(path: Path) -> list[tuple[str, str]]:
    """The class names and folders of the modules, in order."""
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        return [
            (
                str(module["type"]).rpartition(".")[2],
                str(module.get("path") or f"{number}_{module['type'].split('.')[-1]}"),
            )
            for number, module in enumerate(modules)
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a list of modules: {error!r}") from None


def _pooling(values: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The mode that is switched on: `pooling_mode_lasttoken: true`, or `pooling_mode: lasttoken`; or why it is not built."""
    named = values.get("pooling_mode")
    newer = named if isinstance(named, list) else [named] if named else []
    prefix = "pooling_mode_"
    older = [key.removeprefix(prefix) for key, value in values.items() if key.startswith(prefix) and value is True]
    modes = [str(mode) for mode in newer] + older
    if len(modes) == 1 and modes[0] in MODES:
        return MODES[modes[0]], None
    built = ", ".join(dict.fromkeys(MODES.values()))
    return None, f"they are pooled by {' and '.join(modes) or 'no known mode'}, and built are {built}"


def _dense(folder: str, values: Mapping[str, Any]) -> DenseModule:
    named = (
        str(values.get("activation_function", "torch.nn.modules.linear.Identity")).rpartition(".")[2].removesuffix("()")
    )
    if named not in ACTIVATIONS:
        raise ValueError(f"activation_function {named!r} is not built")
    return DenseModule(
        folder,
        int(values["in_features"]),
        int(values["out_features"]),
        bool(values.get("bias", True)),
        ACTIVATIONS[named],
    )


def _prompts(values: Mapping[str, Any]) -> dict[str, str]:
    found = values.get("prompts")
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, Mapping) else {}


def _length(directory: Path) -> int | None:
    for name in LENGTH_FILES:
        length = read_json_object(directory / name).get("max_seq_length")
        if isinstance(length, int) and not isinstance(length, bool) and length > 0:
            return length
    return None
