"""How an op finds its backend: written once, for every op."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

AUTO = "auto"
SCOPE = "op:"
"""An op's instructions are traced in the scope of this and its name, by which profilers and their readers know them."""


class KernelUnsupported(ValueError):  # noqa: N818 - a refusal with its reason, not a failure
    """A backend that was asked for by name cannot do this case; the message says why."""


@dataclass(frozen=True, slots=True)
class Op:
    """An operation and the table of its backends.

    `backends` maps a backend's name to its module, which is imported when it is first used and holds two functions: one
    named like the op, and `supports`, which takes the same arguments (arrays or `jax.ShapeDtypeStruct`s) and returns None or
    the reason why not. `preferred` lists, by platform, the backends that `auto` tries in order; a platform that it does not
    list, and an unknown one (None), take `portable`, which runs everywhere.
    """

    name: str
    backends: Mapping[str, str]
    preferred: Mapping[str, tuple[str, ...]]
    portable: str

    def run(self, backend: str, platform: str | None, /, *args: Any, **options: Any) -> Any:
        """Run the op on `backend`, or, for `auto`, on the first backend of `platform` that supports the case.

        Raises:
            ValueError: there is no backend of that name.
            KernelUnsupported: the named backend cannot do this case. Nothing else is tried.
        """
        name = self.choose(platform, *args, **options) if backend == AUTO else backend
        reason = self.supports(name, *args, **options)
        if reason is not None:
            raise KernelUnsupported(
                f"{self.name}: backend {name!r} cannot do this: {reason}; backend='auto' picks one that can"
            )
        with jax.named_scope(SCOPE + self.name):
            return getattr(self._module(name), self.name)(*args, **options)

    def choose(self, platform: str | None, /, *args: Any, **options: Any) -> str:
        """The backend that `auto` means on `platform` (of the compile target, not of this process)."""
        for name in self.preferred.get(platform or "", ()):
            if self.supports(name, *args, **options) is None:
                return name
        return self.portable

    def supports(self, backend: str, /, *args: Any, **options: Any) -> str | None:
        """None when `backend` can do this case, otherwise the reason why not."""
        reason: str | None = self._module(backend).supports(*args, **options)
        return reason

    def _module(self, backend: str) -> Any:
        if backend not in self.backends:
            raise ValueError(f"{self.name} has no backend {backend!r}; use one of {', '.join((AUTO, *self.backends))}")
        return importlib.import_module(self.backends[backend])
