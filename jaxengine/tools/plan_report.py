"""What `jaxengine plan` says, as values and as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxengine.tools import plan_hosts, plan_media, plan_pipeline, plan_splits
from jaxengine.tools.plan_hosts import HostsPlan
from jaxengine.tools.plan_media import MediaPlan
from jaxengine.tools.plan_pipeline import PipelinePlan

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """One program. Bytes are per device; None is unknown.

    `measured` programs were compiled; the others' bytes and seconds of compiling are those of the nearest measured one of their
    kind, by tokens. `cycles` are the compiler's (see `estimated_cycles`). `seconds` no step of this shape is faster than: the
    longest of reading the weights once (`limited_by` is `memory`), of the matrix products of all places (`compute`), and of the
    compiler's cycles (`estimate`). Of encoders `tokens` are patches.
    """

    name: str
    rows: int
    seq: int | None
    tokens: int
    measured: bool
    temp_bytes: int | None
    code_bytes: int | None
    packed_bytes: int | None
    compile_s: float | None
    cycles: int | None
    seconds: float | None
    limited_by: str | None


@dataclass(frozen=True)
class PoolPlan:
    """Pages of one shape: heads of keys and values, pages with the sink, bytes of a page, pages of the longest sequence."""

    num_kv_heads: int
    head_dim: int
    num_pages: int
    page_bytes: int
    sequence_pages: int
    sequence_pages_without_windows: int


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """The whole plan; `problem` says what to change where the model does not fit. Bytes are per device.

    `pipeline` says what several stages have, where there are such; other bytes are then of the device that has most.
    `hosts` says what several of them do, where the devices are of several. `adapter_bytes` are those of `adapter_slots` slots.
    `media` is of a model that sees or hears.

    With `num_replicas` above 1 all else is of one of them: its devices, or on a CPU its part of the machine's memory.

    Beside `slot_bytes` for sequences that run, `num_snapshots` copies of recurrent layers' states take `snapshot_bytes` each.
    Behind these `host_blocks` pages of all devices together and `host_snapshots` lie in `host_bytes` of the host's memory.

    `plain_kv_tokens` is what as many bytes of cache would hold in the model's dtype. Unless programs were compiled, the workspace
    is an estimate (not `workspace_measured`), and there are neither `compile_s` nor `bundle_bytes`.
    """

    model: str
    target: str
    device: str
    num_devices: int
    num_replicas: int
    hosts: HostsPlan | None
    dtype: str
    kv_dtype: str
    num_parameters: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    device_bytes: int
    limit_bytes: int
    weight_bytes: int
    fits: bool
    problem: str | None = None
    pipeline: PipelinePlan | None = None
    media: MediaPlan | None = None
    adapter_slots: int = 0
    adapter_rank: int = 0
    adapter_bytes: int = 0
    slot_bytes: int = 0
    host_blocks: int = 0
    host_snapshots: int = 0
    host_bytes: int = 0
    num_snapshots: int = 0
    snapshot_bytes: int = 0
    workspace_bytes: int = 0
    workspace_measured: bool = False
    pools: tuple[PoolPlan, ...] = ()
    kv_tokens: int = 0
    plain_kv_tokens: int = 0
    programs: tuple[ProgramPlan, ...] = ()
    compile_threads: int = 1
    compile_s: float = 0.0
    bundle_bytes: int = 0

    @property
    def num_pages(self) -> int:
        """Pages of all pools, the sinks included."""
        return sum(pool.num_pages for pool in self.pools)

    @property
    def all_snapshot_bytes(self) -> int:
        """Of all snapshots, the sink among them."""
        return (1 + self.num_snapshots) * self.snapshot_bytes if self.num_snapshots else 0

    @property
    def embedding_bytes(self) -> int:
        """Of the pool that encoders write to."""
        return 0 if self.media is None else self.media.pool_bytes

    @property
    def kv_bytes(self) -> int:
        return sum(pool.num_pages * pool.page_bytes for pool in self.pools)

    def to_json(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "num_pages": self.num_pages,
            "kv_bytes": self.kv_bytes,
            "full_length_sequences": round(self.kv_tokens / self.max_model_len, 2),
        }


def lines(plan: EnginePlan) -> Iterator[str]:
    """The plan as text, line by line."""
    devices = f"{plan.num_devices} x {plan.device}"
    yield f"{plan.model} ({plan.num_parameters / 1e9:.2f} B parameters, {plan.dtype}) on {plan.target}: {devices}"
    if plan.hosts is not None:
        yield from plan_hosts.lines(plan.hosts, plan.target)
    if plan.pipeline is not None:
        yield from plan_pipeline.lines(plan.pipeline)
    if plan.num_replicas > 1:
        yield f"{plan.num_replicas} replicas, each with as many; what follows is of one"
    if plan.programs:
        yield ""
        yield from _table(plan.programs)
    yield ""
    yield from _budget(plan)
    if plan.hosts is not None and plan.hosts.splits:
        yield ""
        yield from plan_splits.lines(plan.hosts.splits, max_num_seqs=plan.max_num_seqs)
    yield ""
    if not plan.fits:
        assert plan.problem is not None
        yield plan.problem
        return
    yield (
        f"fits: {plan.kv_tokens:,} tokens of KV cache in {plan.num_pages - len(plan.pools):,} pages of {plan.page_size}, "
        f"{plan.kv_tokens / plan.max_model_len:.1f} sequences of {plan.max_model_len:,} tokens "
        f"(at most {plan.max_num_seqs} run at once)"
    )
    if plan.plain_kv_tokens != plan.kv_tokens:
        yield f"KV cache in {plan.kv_dtype}: in the model's dtype as many bytes would hold {plan.plain_kv_tokens:,} tokens"
    if plan.host_blocks:
        copies = f" and {plan.host_snapshots:,} copies of states" if plan.host_snapshots else ""
        yield (
            f"on the host: {plan.host_blocks:,} pages more{copies} in {plan.host_bytes / GIB:.2f} GiB, "
            f"{plan.host_blocks / (plan.num_pages - len(plan.pools)):.1f} times what the device holds"
        )
    if plan.media is not None:
        yield from plan_media.lines(plan.media)
    if plan.num_snapshots:
        yield (
            f"prefixes of recurrent layers: {plan.num_snapshots:,} copies of states, {plan.snapshot_bytes / 2**20:,.1f} MiB each"
        )
    if len(plan.pools) > 1:
        for number, pool in enumerate(plan.pools):
            yield (
                f"pool {number}: {pool.num_pages - 1:,} pages of {pool.page_bytes:,} bytes for layers with "
                f"{pool.num_kv_heads} heads of {pool.head_dim}, of which such a sequence takes {pool.sequence_pages:,}"
            )
    held, whole = (
        sum(getattr(pool, name) for pool in plan.pools) for name in ("sequence_pages", "sequence_pages_without_windows")
    )
    if held < whole:
        usable = sum((pool.num_pages - 1) * pool.page_bytes for pool in plan.pools)
        fitting = usable / sum(pool.sequence_pages_without_windows * pool.page_bytes for pool in plan.pools)
        yield (
            f"windows: a sequence of {plan.max_model_len:,} tokens takes {held:,} pages, as layers give back what "
            f"lies before their window, and not {whole:,}, of which {fitting:.1f} would fit"
        )
    if plan.workspace_measured:
        yield (
            f"to compile: about {plan.compile_s:.0f} s on {plan.compile_threads} threads of this machine; "
            f"bundle: about {plan.bundle_bytes / 1e6:.1f} MB"
        )
    else:
        yield "nothing was compiled: --compile measures the workspace, and has the compiler estimate times"


def _table(programs: tuple[ProgramPlan, ...]) -> Iterator[str]:
    compiled = any(row.measured for row in programs)
    sizes = f"{'temp MB':>9} {'code MB':>8} " if compiled else ""
    yield f"{'program':<30} {'rows':>5} {'seq':>5} {'tokens':>7} {sizes} {'at least':>8}"
    for row in programs:
        sizes = "".join(_megabytes(row, count) for count in (row.temp_bytes, row.code_bytes)) if compiled else ""
        least = "" if row.seconds is None else f"{row.seconds * 1e3:>8.3f} ms ({row.limited_by})"
        yield f"{row.name:<30} {row.rows:>5} {row.seq or '':>5} {row.tokens:>7} {sizes} {least}".rstrip()
    if any(not row.measured and row.temp_bytes is not None for row in programs):
        yield "~ of the nearest program of its kind that was compiled; --compile-all compiles every one"
    if any(row.seconds is not None for row in programs):
        yield "at least: weights read once or multiplied with all places, by the chip's figures; keys and values come on top"
    if any(row.limited_by == "estimate" for row in programs):
        yield "estimate: the compiler's own cycles, where they are more; loops counted once and Pallas kernels not at all"


def _megabytes(row: ProgramPlan, count: int | None) -> str:
    about = " " if row.measured else "~"
    return f"{'':>9} " if count is None else f"{about}{count / 1e6:>8.1f} "


def _budget(plan: EnginePlan) -> Iterator[str]:
    """Memory of one device, as it is divided."""
    parts = {
        "device memory": plan.device_bytes,
        "to be used (memory_utilization)": plan.limit_bytes,
        "weights": plan.weight_bytes,
    }
    if plan.adapter_slots:
        parts[f"{plan.adapter_slots} slots of adapters, of ranks up to {plan.adapter_rank}"] = plan.adapter_bytes
    if plan.fits:
        known = "" if plan.workspace_measured else ", expected"
        parts |= {
            "state of sequences": plan.slot_bytes,
            **({"copies of states, for prefixes": plan.all_snapshot_bytes} if plan.num_snapshots else {}),
            **({"embeddings of pictures and sounds": plan.embedding_bytes} if plan.media is not None else {}),
            f"workspace of the largest program, all code{known}": plan.workspace_bytes,
            "KV pages": plan.kv_bytes,
        }
        parts["left"] = plan.limit_bytes - sum(list(parts.values())[2:])
    yield "memory of each device"
    for name, count in parts.items():
        yield f"  {name:<56} {count / GIB:>8.2f} GiB"
