"""How much KV cache fits: from the compiled programs' own memory analysis and the device's memory, not by trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxengine.errors import CapacityError
from jaxengine.kvcache.windows import tokens_held
from jaxengine.runtime.cache_layout import CacheLayout
from xla_cache.record import Memory


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """Bytes per device: what there is, what weights, slots and the programs' workspace take, what one page of KV costs.

    `limit_bytes` is what may be used in all (device memory times `memory_utilization`).
    """

    device_bytes: int
    limit_bytes: int
    weight_bytes: int
    slot_bytes: int
    workspace_bytes: int
    page_bytes: int
    page_size: int

    @property
    def available_bytes(self) -> int:
        """What is left for the KV pool; negative when not even the rest fits."""
        return self.limit_bytes - self.weight_bytes - self.slot_bytes - self.workspace_bytes

    @property
    def max_pages(self) -> int:
        """Pages that fit, the sink included."""
        return max(0, self.available_bytes // self.page_bytes)


def parameter_bytes(parameters: Mapping[str, jax.ShapeDtypeStruct]) -> int:
    """Bytes of the weights that one device holds."""
    return sum(shard_bytes(struct) for struct in parameters.values())


def slot_bytes(slots: Any) -> int:
    """Bytes of what one device keeps of sequences beside their pages: `sampling.Slots`, and states."""
    return sum(map(shard_bytes, jax.tree.leaves(slots)))


def page_bytes(kv_pages: jax.ShapeDtypeStruct, *, num_pages: int) -> int:
    """Bytes of one page in all lanes on one device, of a pool of `num_pages` a lane."""
    return shard_bytes(kv_pages) // num_pages


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
    """How many pages sequences take: `layout` of the cache, and the most tokens of a step, on which windows' pages depend."""

    layout: CacheLayout
    page_size: int
    ahead: int

    def of(self, num_tokens: int) -> int:
        """The most pages that a sequence of so many tokens holds."""
        return self.layout.pages_held(num_tokens, page_size=self.page_size, ahead=self.ahead)

    def without_windows(self, num_tokens: int) -> int:
        """The pages that it would hold if every layer kept everything."""
        return len(self.layout.keeps) * -(-num_tokens // self.page_size)

    def tokens_held(self, num_pages: int, *, max_model_len: int) -> int:
        """Tokens of all the sequences of `max_model_len` that so many pages hold together."""
        return tokens_held(
            self.layout.keeps, num_pages, page_size=self.page_size, ahead=self.ahead, max_model_len=max_model_len
        )

    def longest(self, num_pages: int, *, most: int) -> int:
        """The tokens, up to `most`, of the longest sequence that so many pages hold."""
        return self.layout.longest_sequence(num_pages, page_size=self.page_size, ahead=self.ahead, most=most)


def plan_pages(
    budget: MemoryBudget,
    pages: SequencePages,
    *,
    max_model_len: int,
    max_num_seqs: int,
    requested: int | None,
    max_kv_bytes: int | None,
) -> int:
    """Choose the number of pages, the sink included: what was asked for, else what fits and can ever be used.

    Raises:
        CapacityError: one sequence of `max_model_len` does not fit; the message gives the numbers and options that fit.
    """
    per_sequence = pages.of(max_model_len)
    fits = budget.max_pages
    if requested is not None:
        wanted = requested
    else:
        wanted = max_num_seqs * per_sequence + 1
        if max_kv_bytes is not None:
            wanted = min(wanted, max(per_sequence + 1, max_kv_bytes // budget.page_bytes))
        wanted = min(wanted, max(fits, per_sequence + 1))
    if requested is not None and wanted < per_sequence + 1 and per_sequence < fits:
        raise CapacityError(_explain_request(budget, pages, wanted=wanted, max_model_len=max_model_len))
    if wanted > fits or wanted < per_sequence + 1:
        raise CapacityError(_explain(budget, pages, wanted=wanted, max_model_len=max_model_len))
    return wanted


def _explain(budget: MemoryBudget, pages: SequencePages, *, wanted: int, max_model_len: int) -> str:
    fitting_len = pages.longest(max(0, budget.max_pages - 1), most=max_model_len)
    needed = pages.of(max_model_len) + 1
    need = budget.weight_bytes + budget.slot_bytes + budget.workspace_bytes + needed * budget.page_bytes
    lines = [
        f"the model does not fit: one sequence of {max_model_len} tokens needs {_gib(need)} "
        f"(weights {_gib(budget.weight_bytes)}, state of sequences {_gib(budget.slot_bytes)}, "
        f"workspace {_gib(budget.workspace_bytes)}, "
        f"{wanted} KV pages {_gib(wanted * budget.page_bytes)}), "
        f"and there are {_gib(budget.limit_bytes)} of {_gib(budget.device_bytes)} to use.",
    ]
    if fitting_len >= 1:
        lines.append(f"The smallest changes that fit: --max-model-len {fitting_len}")
        if budget.limit_bytes < budget.device_bytes and need <= budget.device_bytes:
            lines.append(f"or --memory-utilization {min(1.0, need / budget.device_bytes + 0.01):.2f}")
    else:
        lines.append(
            "Use more devices (--tensor-parallel-size 2), fewer bytes (--dtype bfloat16, --quantization int8), a smaller model,"
        )
        lines.append("or less workspace: --max-num-seqs 8 --max-num-batched-tokens 256")
    return " ".join(lines)


def _explain_request(budget: MemoryBudget, pages: SequencePages, *, wanted: int, max_model_len: int) -> str:
    """Why a pool that was asked for is too small, though the device has room for a larger one."""
    needed = pages.of(max_model_len) + 1
    longest = pages.longest(max(0, wanted - 1), most=max_model_len)
    shorter = f", or --max-model-len {longest}" if longest >= 1 else ""
    return (
        f"the KV cache that was asked for has {max(0, wanted - 1)} pages of {budget.page_size} tokens "
        f"({budget.page_bytes} bytes each), and one sequence of {max_model_len} tokens needs {needed - 1}. "
        f"Use --kv-cache-memory-bytes {needed * budget.page_bytes} (--num-pages {needed}) or more{shorter}"
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
