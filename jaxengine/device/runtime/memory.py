"""How much KV cache fits: from the compiled programs' own memory analysis and the device's memory, not by trial."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

import jax
import numpy as np

from jaxengine.contract.windows import tokens_held
from jaxengine.device.runtime.cache_layout import CacheLayout
from jaxengine.errors import CapacityError
from xla_cache.record import Memory


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """Bytes per device: what there is, what weights, slots and the programs' workspace take, what one page of each pool costs.

    `limit_bytes` is what may be used in all (device memory times `memory_utilization`).
    """

    device_bytes: int
    limit_bytes: int
    weight_bytes: int
    slot_bytes: int
    workspace_bytes: int
    page_bytes: tuple[int, ...]
    page_size: int

    @property
    def available_bytes(self) -> int:
        """What is left for KV pages; negative when not even the rest fits."""
        return self.limit_bytes - self.weight_bytes - self.slot_bytes - self.workspace_bytes


def parameter_bytes(parameters: Mapping[str, jax.ShapeDtypeStruct]) -> int:
    """Bytes of the weights that one device holds in its own memory."""
    return sum(shard_bytes(struct) for struct in parameters.values() if not is_on_host(struct))


def is_on_host(struct: jax.ShapeDtypeStruct) -> bool:
    """Whether it lies in the memory of the host, and not of a device beside it."""
    return struct.sharding is not None and struct.sharding.memory_kind == "pinned_host"


def slot_bytes(slots: Any) -> int:
    """Bytes of what one device keeps of sequences beside their pages: `sampling.Slots`, and states."""
    return sum(map(shard_bytes, jax.tree.leaves(slots)))


def page_bytes(kv_pages: jax.ShapeDtypeStruct, num_pages: int) -> int:
    """Bytes of one page in all lanes on one device, of a pool of `num_pages` a lane."""
    return shard_bytes(kv_pages) // num_pages


def pool_bytes(num_pages: Iterable[int], page_bytes: Iterable[int]) -> int:
    """Bytes of so many pages of each pool on one device."""
    return sum(map(mul, num_pages, page_bytes))


def shard_shape(struct: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """The shape of the part of an array that one device holds."""
    shape: tuple[int, ...] = struct.shape if struct.sharding is None else struct.sharding.shard_shape(struct.shape)
    return shape


def shard_bytes(struct: jax.ShapeDtypeStruct) -> int:
    """Bytes of the part of an array that one device holds."""
    return math.prod(shard_shape(struct)) * np.dtype(struct.dtype).itemsize


def workspace_bytes(programs: Sequence[Memory], *, num_programs: int) -> int:
    """The most that any one program needs beside its arguments: temporaries and outputs that alias no argument; and code.

    The code of `num_programs` stays on the device, each as large as those that were measured.
    """
    most = max(memory.temp + max(0, memory.output - memory.alias) for memory in programs)
    return most + num_programs * sum(memory.code for memory in programs) // len(programs)


@dataclass(frozen=True, kw_only=True)
class SequencePages:
    """How many pages sequences take, and with that how pages are divided between pools.

    Pages are divided so that as many sequences of `max_model_len` as possible fit: each pool gets its sink, and of the rest the
    share that it has in the pages of one such sequence. Layers that see everything take more pages the longer a sequence gets,
    layers with a window a bounded number; where sequences are much shorter than they may be, the pool of the former has pages to
    spare and the pool of the latter runs out first. `ahead` are the most tokens of a step, on which windows' pages depend.
    """

    layout: CacheLayout
    page_size: int
    ahead: int
    max_model_len: int

    def of(self, num_tokens: int) -> tuple[int, ...]:
        """The most pages of each pool that a sequence of so many tokens holds."""
        return self.layout.pages_held(num_tokens, page_size=self.page_size, ahead=self.ahead)

    def without_windows(self, num_tokens: int) -> tuple[int, ...]:
        """The pages of each pool that it would hold if every layer kept everything."""
        return tuple(len(pool.windows) * -(-num_tokens // self.page_size) for pool in self.layout.pools)

    def for_sequences(self, count: int) -> int:
        """Pages of all pools that so many sequences of `max_model_len` take, the sinks included."""
        needs = self.of(self.max_model_len)
        return count * sum(needs) + len(needs)

    def divide(self, num_pages: int) -> tuple[int, ...]:
        """So many pages of all pools by pool, the sinks included. What does not divide goes to the first."""
        needs = self.of(self.max_model_len)
        spare = max(0, num_pages - len(needs))
        others = [spare * need // sum(needs) for need in needs[1:]]
        return 1 + spare - sum(others), *(1 + share for share in others)

    def most(self, amount: int, page_bytes: Sequence[int]) -> int:
        """The most pages of all pools that so many bytes hold, divided so."""
        needs = self.of(self.max_model_len)
        most = len(needs) + max(0, amount * sum(needs) // pool_bytes(needs, page_bytes))
        while most and pool_bytes(self.divide(most), page_bytes) > amount:
            most -= 1
        return most

    def longest(self, amount: int, costs: Sequence[int], *, most: int) -> int:
        """The tokens, up to `most`, of the longest sequence that `amount` holds where a page of each pool costs so much."""
        return bisect_right(
            range(1, most + 1),
            amount,
            key=lambda num_tokens: sum(
                cost * (1 + need) for cost, need in zip(costs, self.of(num_tokens), strict=True)
            ),
        )

    def tokens_held(self, num_pages: Sequence[int]) -> int:
        """Tokens of all the sequences of `max_model_len` that so many pages of each pool hold together."""
        return min(
            tokens_held(
                pool.windows, pages - 1, page_size=self.page_size, ahead=self.ahead, max_model_len=self.max_model_len
            )
            for pool, pages in zip(self.layout.pools, num_pages, strict=True)
        )


def plan_pages(
    budget: MemoryBudget,
    pages: SequencePages,
    *,
    max_num_seqs: int,
    requested: int | None,
    max_kv_bytes: int | None,
    fewer_bytes: Sequence[str] = (),
) -> int:
    """Choose the number of pages of all pools, the sinks included: what was asked for, else what fits and can ever be used.

    `fewer_bytes` are options under which the weights would take less, for the message.

    Raises:
        CapacityError: one sequence of `max_model_len` does not fit; the message gives the numbers and options that fit.
    """
    least = pages.for_sequences(1)
    fits = pages.most(budget.available_bytes, budget.page_bytes)
    if requested is not None:
        wanted = requested
    else:
        wanted = pages.for_sequences(max_num_seqs)
        if max_kv_bytes is not None:
            wanted = min(wanted, max(least, pages.most(max_kv_bytes, budget.page_bytes)))
        wanted = min(wanted, max(fits, least))
    if requested is not None and wanted < least <= fits:
        raise CapacityError(_explain_request(budget, pages, wanted=wanted))
    if wanted > fits or wanted < least:
        raise CapacityError(_explain(budget, pages, wanted=wanted, max_num_seqs=max_num_seqs, fewer_bytes=fewer_bytes))
    return wanted


def _explain(
    budget: MemoryBudget, pages: SequencePages, *, wanted: int, max_num_seqs: int, fewer_bytes: Sequence[str]
) -> str:
    fitting_len = pages.longest(budget.available_bytes, budget.page_bytes, most=pages.max_model_len)
    least, asked = (pool_bytes(pages.divide(count), budget.page_bytes) for count in (pages.for_sequences(1), wanted))
    need = budget.weight_bytes + budget.slot_bytes + budget.workspace_bytes + least
    lines = [
        f"the model does not fit: one sequence of {pages.max_model_len} tokens needs {_gib(need)} "
        f"(weights {_gib(budget.weight_bytes)}, state of sequences {_gib(budget.slot_bytes)}, "
        f"workspace {_gib(budget.workspace_bytes)}, "
        f"{wanted} KV pages {_gib(asked)}), "
        f"and there are {_gib(budget.limit_bytes)} of {_gib(budget.device_bytes)} to use.",
    ]
    more = f"--memory-utilization {min(1.0, need / budget.device_bytes + 0.01):.2f}"
    could = budget.limit_bytes < budget.device_bytes and need <= budget.device_bytes
    if fitting_len >= 1:
        lines.append(f"The smallest changes that fit: --max-model-len {fitting_len}")
        if could:
            lines.append(f"or {more}")
        return " ".join(lines)
    remedies = [*fewer_bytes, "more devices (--tensor-parallel-size)", "a smaller model"]
    if max_num_seqs > 1 and budget.weight_bytes < budget.limit_bytes:
        remedies.insert(0, f"fewer sequences at once (--max-num-seqs {_sequences_that_fit(budget, max_num_seqs)})")
    lines.append(f"Use {', or '.join(remedies)}.")
    if could:
        lines.append(f"With {more} or more it may fit.")
    return " ".join(lines)


def _sequences_that_fit(budget: MemoryBudget, max_num_seqs: int) -> int:
    """About so many sequences' states leave half of what the weights leave."""
    room = (budget.limit_bytes - budget.weight_bytes) // 2
    share = max(1, budget.slot_bytes // (max_num_seqs + 1))
    return max(1, min(max_num_seqs // 2, room // share))


def _explain_request(budget: MemoryBudget, pages: SequencePages, *, wanted: int) -> str:
    """Why pages that were asked for are too few, though the device has room for more."""
    least, pools = pages.for_sequences(1), len(budget.page_bytes)
    longest = pages.longest(wanted, (1,) * pools, most=pages.max_model_len)
    shorter = f", or --max-model-len {longest}" if longest >= 1 else ""
    return (
        f"the KV cache that was asked for has {max(0, wanted - pools)} pages of {budget.page_size} tokens "
        f"({' or '.join(map(str, budget.page_bytes))} bytes each), and one sequence of {pages.max_model_len} tokens needs "
        f"{least - pools}. Use --kv-cache-memory-bytes {pool_bytes(pages.divide(least), budget.page_bytes)} "
        f"(--num-pages {least}) or more{shorter}"
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
