"""GGUF: what `weights.gguf` writes to the config.json that it makes of such a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.quantization.method import Method
from jaxengine.device.models.config.quantization.values import WHERE
from jaxengine.device.weights.formats import Format
from jaxengine.device.weights.formats.gguf import BLOCK_TYPES, GgufBlocks
from jaxengine.errors import ConfigError


@dataclass(frozen=True)
class GgufTypes:
    """`layers.schemes.stored.StoredFormats`: the type of each module, `*` being the number of an expert."""

    types: tuple[tuple[str, str], ...]
    method = "gguf"

    @property
    def head(self) -> bool:
        """A head of its own has a type like any matrix."""
        return True

    def of(self, *modules: str) -> Format | None:
        """How the matrix of a module is stored, of which one of the names is right; None: as it is."""
        for module in modules:
            if found := self._by_module.get(re.sub(r"\bexperts\.\d+\.", "experts.*.", module)):
                return GgufBlocks(found)
        return None

    @cached_property
    def _by_module(self) -> dict[str, str]:
        return dict(self.types)


def _read(reader: ConfigReader) -> GgufTypes:
    types = reader.raw("types")
    if not isinstance(types, dict) or not set(types.values()) <= BLOCK_TYPES.keys():
        raise ConfigError(
            f"{WHERE} must have the types of modules, each of {', '.join(BLOCK_TYPES)}, got {types!r:.200}"
        )
    return GgufTypes(tuple(types.items()))


METHOD = Method(_read)
