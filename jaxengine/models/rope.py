"""RoPE settings of config.json, in the spelling of transformers 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`)."""

from __future__ import annotations

import math

from jaxengine.errors import ConfigError, nearest
from jaxengine.layers.rotary import LinearScaling, Llama3Scaling, Rope, YarnScaling
from jaxengine.models.hf import ConfigReader

DEFAULT_THETA = 10_000.0

REFUSED = {
    "dynamic": "its frequencies change with the length of the sequence, so cached keys would have to be turned again",
    "longrope": "its frequencies change with the length of the sequence, so cached keys would have to be turned again",
    "proportional": "partly rotated heads are not built",
    "axial": "positions in several dimensions are not built",
    "mrope": "positions in several dimensions are not built",
}
BUILT = ("default", "linear", "llama3", "yarn")


def read_rope(reader: ConfigReader, *, head_dim: int, max_positions: int, default: float = DEFAULT_THETA) -> Rope:
    """The rotary embedding that the configuration asks for; `default` is the base where it names none.

    Raises:
        ConfigError: a type that is unknown or not built (saying which are), or settings that contradict each other.
    """
    new, old = reader.section("rope_parameters"), reader.section("rope_scaling")
    if new is not None and old is not None:
        raise ConfigError("config.json: rope_parameters and rope_scaling are the same setting; give one")
    section = new if new is not None else old
    outer = reader.nullable("rope_theta", None, float)
    return read_rope_section(
        reader, section, outer=outer, default=default, head_dim=head_dim, max_positions=max_positions
    )


def read_rope_section(
    reader: ConfigReader,
    section: ConfigReader | None,
    *,
    outer: float | None,
    default: float,
    head_dim: int,
    max_positions: int,
) -> Rope:
    """The rotary embedding that a section asks for.

    Args:
        reader: the configuration that the section belongs to.
        section: None where the configuration has none.
        outer: the base that is given outside the section.
        default: the base where none is given.
        head_dim: channels of a head.
        max_positions: the longest context.

    Raises:
        ConfigError: as `read_rope`.
    """
    if section is None:
        return Rope(theta=default if outer is None else outer, head_dim=head_dim)
    theta = _theta(section.nullable("rope_theta", None, float), outer, default)
    kind = _kind(section)
    factor_of_head = section.optional("partial_rotary_factor", 1.0, float)
    if factor_of_head != 1.0:
        raise ConfigError(f"config.json: partial_rotary_factor={factor_of_head}: partly rotated heads are not built")
    if kind == "default":
        return Rope(theta=theta, head_dim=head_dim)
    if kind == "linear":
        return Rope(theta=theta, head_dim=head_dim, scaling=LinearScaling(factor=section.required("factor", float)))
    original = reader.nullable_size("original_max_position_embeddings", None)
    if original is None:
        original = section.nullable_size("original_max_position_embeddings", max_positions) or max_positions
    else:
        section.raw("original_max_position_embeddings")
    if kind == "llama3":
        scaling = Llama3Scaling(
            factor=section.required("factor", float),
            low_freq_factor=section.required("low_freq_factor", float),
            high_freq_factor=section.required("high_freq_factor", float),
            original_max_positions=original,
        )
        return Rope(theta=theta, head_dim=head_dim, scaling=scaling)
    factor = section.optional("factor", max_positions / original, float)
    yarn = YarnScaling(
        factor=factor,
        beta_fast=section.optional("beta_fast", 32.0, float),
        beta_slow=section.optional("beta_slow", 1.0, float),
        original_max_positions=original,
        theta=theta,
        truncate=section.optional("truncate", True, bool),
    )
    return Rope(theta=theta, head_dim=head_dim, scaling=yarn, magnitude=_yarn_magnitude(section, factor))


def _theta(inner: float | None, outer: float | None, default: float) -> float:
    if inner is not None and outer is not None and inner != outer:
        raise ConfigError(
            f"config.json: rope_theta is given twice, {outer} at the top and {inner} with the RoPE settings; give one "
            "(hf_overrides={'rope_parameters': {'rope_theta': ...}} reaches the inner one)"
        )
    given = inner if inner is not None else outer
    return default if given is None else given


def _kind(section: ConfigReader) -> str:
    new, old = section.nullable("rope_type", None, str), section.nullable("type", None, str)
    if new is not None and old is not None and new != old:
        raise ConfigError(f"config.json: rope_type={new!r} and type={old!r} are the same setting; give one")
    kind = new or old or "default"
    if kind in BUILT:
        return kind
    known = f"Built are {', '.join(BUILT)}."
    if kind in REFUSED:
        raise ConfigError(f"config.json: RoPE of type {kind!r} is not built: {REFUSED[kind]}. {known}")
    raise ConfigError(f"config.json: unknown RoPE type {kind!r}. {known}{nearest(kind, BUILT)}")


def _yarn_magnitude(section: ConfigReader, factor: float) -> float:
    """What sines and cosines are multiplied by; the settings are read in any case, as they may stand side by side."""
    given = section.nullable("attention_factor", None, float)
    mscale, mscale_all = section.nullable("mscale", None, float), section.nullable("mscale_all_dim", None, float)

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if given is not None:
        return given
    return magnitude(mscale) / magnitude(mscale_all) if mscale and mscale_all else magnitude(1.0)
