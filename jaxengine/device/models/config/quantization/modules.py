"""Which modules of a checkpoint are stored how."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jaxengine.device.weights.formats import Format


@dataclass(frozen=True)
class Modules:
    """Modules of a checkpoint: those whose name has one of `parts` (whole parts between dots) or fits one of `patterns`."""

    parts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def __contains__(self, module: object) -> bool:
        dotted = f".{module}."
        return any(f".{part}." in dotted for part in self.parts) or any(
            re.match(pattern, str(module)) for pattern in self.patterns
        )


EVERY = Modules(patterns=("",))


@dataclass(frozen=True)
class Quantization:
    """`layers.schemes.stored.StoredFormats`. A module of `plain` is as it is; else the first of `rows` that has it says how.

    `head`: whether that holds of the head. Where it need not, its tensors say themselves whether they are quantised.
    """

    method: str
    rows: tuple[tuple[Modules, Format | None], ...]
    plain: Modules = Modules()
    head: bool = False

    def of(self, *modules: str) -> Format | None:
        """How the matrix of a module is stored, of which one of the names is right; None: as it is."""
        if any(module in self.plain for module in modules):
            return None
        return next((found for row, found in self.rows if any(module in row for module in modules)), None)
