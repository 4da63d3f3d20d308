"""The adapters that a server has beside its model, each under a name that requests give as their `model`."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from jaxengine.contract.adapters import Adapter
from jaxengine.contract.media import MediaItem
from jaxengine.errors import CheckpointError, ModelNotFoundError, RequestError
from jaxengine.server.adapters.options import AdaptersConfig

CONFIG_FILE = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class Served:
    """An adapter, the name of its base model where one was given, and since when it is served."""

    adapter: Adapter
    base: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))


class ServedAdapters:
    """Adapters by name: those of the start, those that were loaded since, and those found in a directory.

    Args:
        options: which there are.
        load: has the engine read the adapter in a directory, and returns the digest of its contents.
        reserved: names that are the model's.
    """

    def __init__(
        self, options: AdaptersConfig, load: Callable[[str], Awaitable[str]], *, reserved: Collection[str]
    ) -> None:
        self._options = options
        self._load = load
        self._reserved = reserved
        self._served: dict[str, Served] = {}
        self._finding: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def served(self) -> dict[str, Served]:
        """All of them by name, in the order in which they came."""
        return dict(self._served)

    async def start(self) -> None:
        """Load those of the start.

        Raises:
            CheckpointError, RequestError: one cannot be read, or is none for this engine.
        """
        for module in self._options.modules:
            await self.add(module.name, module.path, base=module.base)

    async def add(self, name: str, path: str, *, base: str | None = None, inplace: bool = False) -> None:
        """Serve an adapter. One of the same name is replaced with `inplace`; requests that run keep what they began with.

        Raises:
            RequestError: the name is taken, or the adapter is none for this engine.
            CheckpointError: it cannot be read.
        """
        if name in self._reserved:
            raise RequestError(f"{name!r} is a name of the model itself; choose another", param="lora_name")
        if name in self._served and not inplace:
            raise RequestError(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                param="lora_name",
            )
        directory = os.path.abspath(os.path.expanduser(path))
        self._served[name] = Served(Adapter(name, directory, await self._load(directory)), base)

    def remove(self, name: str) -> None:
        """Serve an adapter no more. Requests that have come go on with it.

        Raises:
            ModelNotFoundError: there is none of this name.
        """
        if self._served.pop(name, None) is None:
            raise ModelNotFoundError(f"The lora adapter '{name[:200]}' cannot be found.", param="lora_name")

    def has(self, name: str) -> bool:
        """Whether an adapter is served under this name, or may be found."""
        return name in self._served or self._directory(name) is not None

    async def find(self, name: str | None) -> Adapter | None:
        """The adapter of a request that names `name` as its model; None where that is the model itself.

        Raises:
            ModelNotFoundError: it is served no more.
            RequestError: it has to be read first, and cannot be.
        """
        if name is None or name in self._reserved:
            return None
        if name not in self._served and (directory := self._directory(name)) is not None:
            async with self._finding[name]:
                if name not in self._served:
                    try:
                        await self.add(name, directory)
                    except CheckpointError as error:
                        raise RequestError(str(error), param="model") from error
        if name not in self._served:
            raise ModelNotFoundError(f"The model `{name[:200]}` does not exist.")
        return self._served[name].adapter

    def of_shown(self, items: Sequence[MediaItem]) -> Adapter | None:
        """The adapter of a request that names none, by the modalities that its prompt shows.

        Raises:
            ModelNotFoundError: it is served no more.
            RequestError: they have different ones.
        """
        defaults = self._options.default_mm_loras
        names = sorted({item.modality.value for item in items} & defaults.keys())
        if gone := [name for name in names if name not in self._served]:
            raise ModelNotFoundError(f"The lora adapter '{gone[0]}' cannot be found.")
        found = {self._served[name].adapter.digest: self._served[name].adapter for name in names}
        if len(found) > 1:
            raise RequestError(
                f"the prompt shows {' and '.join(names)}, which have different adapters (--default-mm-loras), and a request runs "
                "with one: name it as the model",
                param="model",
            )
        return next(iter(found.values()), None)

    def _directory(self, name: str) -> str | None:
        """The adapter of this name in the directory where others are looked for. A name is no path."""
        root = self._options.lora_resolver_cache_dir
        if root is None or name.startswith(".") or name != os.path.basename(name) or "\x00" in name:
            return None
        directory = os.path.join(root, name)
        return directory if os.path.isfile(os.path.join(directory, CONFIG_FILE)) else None
