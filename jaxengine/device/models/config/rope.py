"""RoPE settings of config.json, in the spelling of transformers 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jaxengine.device.layers.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongScaling, Rope, YarnScaling
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.errors import ConfigError, nearest

DEFAULT_THETA = 10_000.0

REFUSED = {
    "axial": "positions in several dimensions are not built",
}
YARN_KEYS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
"""Hunyuan's configurations have them beside a kind that makes no use of them."""
BUILT = ("default", "linear", "dynamic", "llama3", "longrope", "proportional", "yarn")
OLDER = {"su": "longrope", "mrope": "default"}
"""Other names. Of `mrope` the sections are read by families that have them (`read_axes`); left unread they are refused."""
AXES = 3
"""Of positions of pictures: frame, row and column."""


def read_rope(
    reader: ConfigReader,
    *,
    head_dim: int,
    max_positions: int,
    default: float = DEFAULT_THETA,
    partial_rotary: float | None = None,
    interleaved: bool = False,
    part: str | None = None,
) -> Rope:
    """The rotary embedding that the configuration asks for; `default` is the base where it names none.

    `partial_rotary` is the share of a head that turns where it names none; None is of families that turn whole heads. With
    `interleaved` channels turn with the ones beside them. `part` names the section within rope_parameters that is meant, where it
    has several.

    Raises:
        ConfigError: a type that is unknown or not built (saying which are), or settings that contradict each other.
    """
    new, old = reader.section("rope_parameters"), reader.section("rope_scaling")
    if new is not None and old is not None:
        raise ConfigError("config.json: rope_parameters and rope_scaling are the same setting; give one")
    section = old if new is None else new if part is None else new.section(part)
    outer = reader.nullable("rope_theta", None, float)
    if partial_rotary is not None:
        partial_rotary = reader.optional("partial_rotary_factor", partial_rotary, float)
    return read_rope_section(
        reader,
        section,
        outer=outer,
        default=default,
        head_dim=head_dim,
        max_positions=max_positions,
        partial_rotary=partial_rotary,
        interleaved=interleaved,
    )


def read_rope_section(
    reader: ConfigReader,
    section: ConfigReader | None,
    *,
    outer: float | None,
    default: float,
    head_dim: int,
    max_positions: int,
    partial_rotary: float | None = None,
    interleaved: bool = False,
) -> Rope:
    """The rotary embedding that a section asks for.

    Args:
        reader: the configuration that the section belongs to.
        section: None where the configuration has none.
        outer: the base that is given outside the section.
        default: the base where none is given.
        head_dim: channels of a head.
        max_positions: the longest context.
        partial_rotary: the share of a head that turns where the section names none; None is of families that turn whole heads.
        interleaved: whether channels turn with the ones beside them.

    Raises:
        ConfigError: as `read_rope`.
    """
    given = None if section is None else section.nullable("partial_rotary_factor", None, float)
    if section is not None and _kind(section) == "proportional":
        theta = _theta(section.nullable("rope_theta", None, float), outer, default)
        return replace(_proportional(section, given, theta=theta, head_dim=head_dim), interleaved=interleaved)
    whole = Rope(theta=default if outer is None else outer, head_dim=head_dim, interleaved=interleaved)
    plain = replace(whole, rotary_dim=_rotary_dim(given, partial_rotary, head_dim))
    if section is None:
        return plain
    theta = _theta(section.nullable("rope_theta", None, float), outer, default)
    plain = replace(plain, theta=theta)
    kind = _kind(section)
    if kind == "default":
        return plain
    if kind == "linear":
        return replace(plain, scaling=LinearScaling(factor=section.required("factor", float)))
    original = reader.nullable_size("original_max_position_embeddings", None)
    if original is None:
        original = section.nullable_size("original_max_position_embeddings", max_positions) or max_positions
    else:
        section.raw("original_max_position_embeddings")
    if kind == "dynamic" and (alpha := section.nullable("alpha", None, float)):
        for key in ("factor", "served_positions", *YARN_KEYS):
            section.raw(key)
        return replace(plain, theta=theta * alpha ** (head_dim / (head_dim - 2)))  # Hunyuan's: the same at any length
    if kind == "dynamic":
        dynamic = DynamicScaling(
            factor=section.required("factor", float),
            original_max_positions=original,
            served_positions=section.nullable_size("served_positions", max_positions) or max_positions,
        )
        return replace(plain, scaling=dynamic)
    if kind == "longrope":
        return _long(section, plain, original=original, max_positions=max_positions)
    if kind == "llama3":
        scaling = Llama3Scaling(
            factor=section.required("factor", float),
            low_freq_factor=section.required("low_freq_factor", float),
            high_freq_factor=section.required("high_freq_factor", float),
            original_max_positions=original,
        )
        return replace(plain, scaling=scaling)
    factor = section.optional("factor", max_positions / original, float)
    yarn = YarnScaling(
        factor=factor,
        beta_fast=section.optional("beta_fast", 32.0, float),
        beta_slow=section.optional("beta_slow", 1.0, float),
        original_max_positions=original,
        theta=theta,
        truncate=section.optional("truncate", True, bool),
    )
    return replace(plain, scaling=yarn, magnitude=_yarn_magnitude(section, factor))


def read_axes(reader: ConfigReader, default: Sequence[int], *, interleaved: bool) -> tuple[int, ...]:
    """By which axis of positions each pair of channels turns (`Rope.axes`): `mrope_section` says how many turn by each.

    They lie one behind the other, or where they are `interleaved` in turn, as far as there are some of rows and columns.

    Raises:
        ConfigError: not a list of three numbers, or another order than the family's.
    """
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    counts = list(default) if section is None else section.raw("mrope_section", list(default))
    if section is not None and section.optional("mrope_interleaved", interleaved, bool) != interleaved:
        raise ConfigError(f"config.json: mrope_interleaved={not interleaved} is not built for this family")
    if not isinstance(counts, list) or len(counts) != AXES or not all(isinstance(count, int) for count in counts):
        raise ConfigError(f"config.json: mrope_section must be a list of {AXES} numbers, got {counts!r}")
    pairs = range(sum(counts))
    if interleaved:
        return tuple(pair % AXES if pair < AXES * counts[pair % AXES] else 0 for pair in pairs)
    return tuple(axis for axis, count in enumerate(counts) for _ in range(count))


def _proportional(section: ConfigReader, share: float | None, *, theta: float, head_dim: int) -> Rope:
    """Of each half of a head the first `share` of the channels turn, as they do where all turn."""
    pairs = int((1.0 if share is None else share) * head_dim // 2)
    if not 0 < pairs <= head_dim // 2:
        raise ConfigError(
            f"config.json: partial_rotary_factor={share} of head_dim={head_dim} is {pairs} pairs of channels"
        )
    factor = section.nullable("factor", None, float)
    scaling = None if factor is None else LinearScaling(factor=factor)
    return Rope(theta=theta, head_dim=head_dim, scaling=scaling, rotary_dim=2 * pairs, proportional=True)


def _rotary_dim(given: float | None, default: float | None, head_dim: int) -> int | None:
    """Channels of a head that turn, None being all."""
    if default is None:
        if given not in (None, 1.0):
            raise ConfigError(f"config.json: partial_rotary_factor={given}: heads of this family turn as a whole")
        return None
    share = default if given is None else given
    rotary_dim = int(head_dim * share)
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise ConfigError(
            f"config.json: partial_rotary_factor={share} of head_dim={head_dim} is {rotary_dim} channels; "
            "an even number of them must turn, at least 2"
        )
    return None if rotary_dim == head_dim else rotary_dim


def _theta(inner: float | None, outer: float | None, default: float) -> float:
    if inner is not None and outer is not None and inner != outer:
        raise ConfigError(
            f"config.json: rope_theta is given twice, {outer} at the top and {inner} with the RoPE settings; give one "
            "(hf_overrides={'rope_parameters': {'rope_theta': ...}} reaches the inner one)"
        )
    given = inner if inner is not None else outer
    return default if given is None else given


def _kind(section: ConfigReader) -> str:
    named = (section.nullable("rope_type", None, str), section.nullable("type", None, str))
    new, old = (None if name is None else OLDER.get(name, name) for name in named)
    if new is not None and old is not None and new != old:
        raise ConfigError(f"config.json: rope_type={new!r} and type={old!r} are the same setting; give one")
    kind = new or old or "default"
    if kind in BUILT:
        return kind
    known = f"Built are {', '.join(BUILT)}."
    if kind in REFUSED:
        raise ConfigError(f"config.json: RoPE of type {kind!r} is not built: {REFUSED[kind]}. {known}")
    raise ConfigError(f"config.json: unknown RoPE type {kind!r}. {known}{nearest(kind, BUILT)}")


def _long(section: ConfigReader, plain: Rope, *, original: int, max_positions: int) -> Rope:
    """LongRoPE has two lists of factors; which one holds is a matter of the served context (`startup/dynamic_rope.py`)."""
    served = section.nullable_size("served_positions", max_positions) or max_positions
    lists = {name: section.raw(name) for name in ("short_factor", "long_factor")}
    size = (plain.rotary_dim or plain.head_dim) // 2
    for name, factors in lists.items():
        if (
            not isinstance(factors, list)
            or len(factors) != size
            or not all(isinstance(factor, int | float) and factor > 0 for factor in factors)
        ):
            raise ConfigError(
                f"config.json: {name} of RoPE of type 'longrope' must be a list of {size} numbers above 0"
            )
    factor = section.nullable("factor", None, float) or max_positions / original
    length = "long" if served > original else "short"
    magnitudes = {name: section.nullable(f"{name}_mscale", None, float) for name in ("short", "long")}  # Phi-MoE's
    magnitude = section.nullable("attention_factor", None, float)
    if magnitudes[length] is not None:
        magnitude = magnitudes[length]
    if magnitude is None:
        magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    factors = lists[f"{length}_factor"]
    return replace(plain, scaling=LongScaling(factors=tuple(map(float, factors))), magnitude=magnitude)


def _yarn_magnitude(section: ConfigReader, factor: float) -> float:
    """What sines and cosines are multiplied by; the settings are read in any case, as they may stand side by side."""
    given = section.nullable("attention_factor", None, float)
    mscale, mscale_all = section.nullable("mscale", None, float), section.nullable("mscale_all_dim", None, float)

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if given is not None:
        return given
    return magnitude(mscale) / magnitude(mscale_all) if mscale and mscale_all else magnitude(1.0)
