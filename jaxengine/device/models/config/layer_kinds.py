"""What each layer of a hybrid model is, as config.json lists it."""

from __future__ import annotations

from collections.abc import Mapping

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.errors import ConfigError


def read_layer_kinds(
    reader: ConfigReader, num_layers: int, kinds: Mapping[str, str], *, default: tuple[str, ...], key: str | None = None
) -> tuple[str, ...]:
    """Of each layer one of the values of `kinds`, whose keys are names that `layer_types` may have. `key` is its older name.

    `default` is what layers are where the file does not say.

    Raises:
        ConfigError: both keys, another number of names, or unknown ones.
    """
    new, old = reader.raw("layer_types"), None if key is None else reader.raw(key)
    if new is not None and old is not None and new != old:
        raise ConfigError(f"config.json: layer_types and {key} are the same setting; give one")
    names = old if new is None else new
    if names is None:
        return default
    if not isinstance(names, list) or len(names) != num_layers or any(name not in kinds for name in names):
        raise ConfigError(
            f"config.json: layer_types must name one of {', '.join(kinds)} for each of {num_layers} layers, got {names!r}"
        )
    return tuple(kinds[name] for name in names)
