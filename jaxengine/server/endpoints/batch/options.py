"""Options of `/v1/files` and `/v1/batches`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.options.option import MIB, at_least, option


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """What is kept for `/v1/files` and `/v1/batches`."""

    batch_dir: str | None = option(
        None, "directory of files and batches, which go on after a restart (default: one that is deleted at the end)"
    )
    max_batch_bytes: int = option(256 * MIB, "most bytes of uploaded files; 0 is no limit", check=at_least(0))
