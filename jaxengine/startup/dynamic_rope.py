"""Dynamic NTK scaling of rotary positions, for a context that is known before the first token.

transformers stretches wavelengths as far as the sequence at hand is long, which turns the keys that are cached already. A served
context is fixed, so they are stretched once, as far as it is long: not at all within the length that a model was trained on, and
beyond it as transformers does for a sequence of the whole context. vLLM does the same where it knows the trained length.

LongRoPE (Phi-3) has two lists of factors, for sequences within the trained length and for longer ones: here for served contexts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxengine.startup.limits import served_context

LONG = {"longrope", "su"}
SECTIONS = ("rope_parameters", "rope_scaling")


def settle_dynamic_rope(values: Mapping[str, Any], asked: Any) -> Mapping[str, Any]:
    """config.json with the context that `asked` (`max_model_len`) stands for written beside a factor that depends on it.

    Such a model's longest context is `factor` times what it was trained on. Other configurations come back as they are.

    Raises:
        ConfigError: the context is more than that.
    """
    for name in SECTIONS:
        section, positions = values.get(name), values.get("max_position_embeddings")
        if not isinstance(section, Mapping):
            continue
        kinds = {kind for kind in (section.get("rope_type"), section.get("type")) if isinstance(kind, str)}
        if kinds & LONG and isinstance(positions, int):
            return {**values, name: {**section, "served_positions": served_context(asked, positions)}}
        if "dynamic" not in kinds:
            continue
        trained, factor = section.get("original_max_position_embeddings") or positions, section.get("factor")
        if not isinstance(positions, int) or not isinstance(trained, int) or not isinstance(factor, (int, float)):
            continue  # what is wrong is said where the section is read
        longest = max(positions, int(trained * factor))
        stretched = {
            **section,
            "original_max_position_embeddings": trained,
            "served_positions": served_context(asked, longest),
        }
        return {**values, "max_position_embeddings": longest, name: stretched}
    return values
