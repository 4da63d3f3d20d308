"""Pages of the KV cache on disk as they are asked for: the options of a directory, and the names that vLLM has for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.errors import ConfigError
from jaxengine.options.transfer import SHARED_STORAGE

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOptions:
    """Pages are kept in `directory`, at most `max_bytes` of all engines that share it (None: by the size of the disk).

    A consumer of pages writes none there, and a producer reads none.
    """

    directory: str
    max_bytes: int | None = None
    reads: bool = True
    writes: bool = True


def read_disk_options(
    directory: str | None, size_gib: float | None, transfer_config: Mapping[str, Any]
) -> DiskOptions | None:
    """What `kv_offloading_directory`, `kv_offloading_disk_size` and a connector of `kv_transfer_config` ask for, if anything.

    Raises:
        ConfigError: two directories, none where a size is given, or a path that is not one.
    """
    shared = transfer_config.get("kv_connector") == SHARED_STORAGE
    path = (transfer_config.get("kv_connector_extra_config") or {}).get("shared_storage_path") if shared else None
    if shared and directory is not None:
        raise ConfigError(
            f"kv_offloading_directory={directory!r} and the shared_storage_path of kv_transfer_config are the same thing: a "
            "directory for pages; give one"
        )
    if shared and (not isinstance(path, str) or not path):
        raise ConfigError(
            f"kv_transfer_config: {SHARED_STORAGE} needs the directory that engines share, "
            f'"kv_connector_extra_config": {{"shared_storage_path": "/a/directory"}}, got {path!r}'
        )
    directory = path if shared else directory
    if directory is None:
        if size_gib is not None:
            raise ConfigError(
                f"kv_offloading_disk_size={size_gib} needs kv_offloading_directory: where pages are kept on disk"
            )
        return None
    if not directory:
        raise ConfigError("kv_offloading_directory must be the path of a directory, got ''")
    role = transfer_config.get("kv_role") if shared else "kv_both"
    return DiskOptions(
        directory=directory,
        max_bytes=None if size_gib is None else int(size_gib * GIB),
        reads=role != "kv_producer",
        writes=role != "kv_consumer",
    )
