"""Options of the paged KV cache, and of the tiers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.options.disk import DiskOptions, read_disk_options
from jaxengine.options.offloading_connector import read_offloading_connector
from jaxengine.options.option import at_least, fraction, option, positive
from jaxengine.options.transfer import read_transfer_config

KV_CACHE_DTYPES = ("auto", "bfloat16", "int8", "fp8", "fp8_e4m3", "fp8_e5m2")
MAMBA_CACHE_MODES = ("auto", "none", "align", "all")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    page_size: int | None = option(
        None,
        "tokens per page, a power of two (default by target)",
        aliases=("block_size",),
        check=at_least(1),
        shapes=True,
    )
    memory_utilization: float = option(
        0.9,
        "share of device memory for weights, workspace and KV pages",
        aliases=("gpu_memory_utilization", "device_memory_utilization"),
        check=fraction,
    )
    kv_cache_memory_bytes: int | None = option(None, "exact size of the KV pool per device", check=at_least(1))
    num_pages: int | None = option(
        None,
        "exact number of KV pages, of all pools together where layers' pages differ in shape",
        aliases=("num_gpu_blocks_override",),
        check=at_least(2),
        shapes=True,
    )
    kv_cache_dtype: str = option(
        "auto",
        "what keys and values are kept in: int8, fp8 (which is fp8_e4m3), fp8_e5m2, bfloat16, or auto, which is what the "
        "checkpoint says of its cache, or else the model's dtype; scales are the checkpoint's, else 1 for fp8 and measured "
        "at the start for int8",
        choices=KV_CACHE_DTYPES,
        shapes=True,
    )
    calculate_kv_scales: bool = option(
        False, "measure the scales of an fp8 cache at the start too, where the checkpoint has none"
    )
    enable_prefix_caching: bool = option(True, "reuse the pages of equal prompt prefixes")
    enable_sleep_mode: bool = option(
        False,
        "serve /sleep and /wake_up, which give the device's memory back for a while; LLM.sleep needs no preparation",
    )
    kv_offloading_size: float | None = option(
        None,
        "GiB of host memory, of each replica, for KV pages that the device has no room for: a prefix that is found there "
        "is copied back and not computed again (default: none; where pages are on disk or of other engines as much as the "
        "device has for them, at most a quarter of the host's memory)",
        check=positive,
        shapes=True,
    )
    kv_offloading_backend: str = option(
        "native", "who keeps those pages: native is this engine itself", choices=("native",)
    )
    mamba_cache_mode: str = option(
        "auto",
        "where states of recurrent layers (Mamba, delta rules, convolutions) are copied, for prefixes to go on from: align at "
        "the last whole block of a prompt and where prompts part, all after every block too, none nowhere (and no prefix is "
        "reused); auto is align",
        choices=MAMBA_CACHE_MODES,
        shapes=True,
    )
    mamba_block_size: int | None = option(
        None,
        "tokens of a block, at whose ends states of recurrent layers may be copied: whole pages (default: 128 or a page, if that "
        "is more)",
        check=at_least(1),
    )
    num_snapshots: int | None = option(
        None,
        "exact number of copies of recurrent layers' states that are kept for prefixes (default: what an eighth of the memory "
        "for pages holds, up to 16 for each sequence that may run)",
        check=at_least(0),
        shapes=True,
    )
    kv_offloading_directory: str | None = option(
        None,
        "directory for KV pages on disk behind the host's memory, which engines of one host share, or of several that mount it: "
        "a restart finds them",
    )
    kv_offloading_disk_size: float | None = option(
        None,
        "GiB of pages in that directory, of all engines that share it (default: half of the file system, at most 1 TiB)",
        check=positive,
    )
    kv_transfer_config: Mapping[str, Any] = option(
        {},
        'pages of other engines, as JSON: {"kv_connector": "TcpConnector", "kv_role": "kv_producer", '
        '"kv_connector_extra_config": {"secret_file": ...}} serves them (kv_consumer fetches them, kv_both does both); '
        '{"kv_connector": "SharedStorageConnector", "kv_role": "kv_both", '
        '"kv_connector_extra_config": {"shared_storage_path": ...}} is a '
        "directory as above",
    )

    def __post_init__(self) -> None:
        for name, value in read_offloading_connector(self.kv_transfer_config, vars(self)).items():
            object.__setattr__(self, name, value)
        read_transfer_config(self.kv_transfer_config)
        read_disk_options(self.kv_offloading_directory, self.kv_offloading_disk_size, self.kv_transfer_config)

    @property
    def disk(self) -> DiskOptions | None:
        """What is asked of a directory."""
        return read_disk_options(self.kv_offloading_directory, self.kv_offloading_disk_size, self.kv_transfer_config)

    @property
    def has_outer(self) -> bool:
        """Whether pages are to be kept outside the process, or come from there: all of them pass through the host's memory."""
        return self.disk is not None or bool(self.kv_transfer_config)
