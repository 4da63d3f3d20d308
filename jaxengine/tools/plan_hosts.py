"""What hosts that share an engine read, send and sum up, as `jaxengine plan` says it."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from buckets import Bucket
from jaxengine.contract.batch import Batch
from jaxengine.contract.rows import Rows
from jaxengine.device.weights.placement import bounds_of
from jaxengine.options.config import EngineConfig
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.tools.plan_links import Links
from jaxengine.tools.plan_splits import Split, compare_splits, exchanged_bytes, sum_bytes

GIB = 1 << 30


@dataclass(frozen=True)
class LinkLoad:
    """What links between chips carry in a step in which all sequences decode.

    Of `count` links `between_hosts` join chips of two hosts. The busiest ones carry `bytes` in each direction, and with that,
    or with the way from chip to chip, the sums of all layers and their exchanges of heads for tokens take `seconds` at least.
    """

    count: int
    between_hosts: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class HostsPlan:
    """`count` hosts with `devices` each.

    Each reads `read_bytes` of weights, the most that one does. To launch a step of as many sequences as may run the first host
    sends `launch_bytes` to each other one, over the network, and nothing comes back. For each place of a step devices that share
    layers sum up `sum_bytes`, over the `links` of their chips. `splits` are what stages would make of it.
    """

    count: int
    devices: int
    read_bytes: int
    launch_bytes: int
    sum_bytes: int
    max_num_seqs: int
    links: LinkLoad | None
    splits: tuple[Split, ...]


def plan_hosts(config: EngineConfig, model: ModelPlan, limits: EngineLimits) -> HostsPlan | None:
    """None where the model's devices are all of one host."""
    hosts = sorted({device.process_index for device in model.devices})
    if len(hosts) == 1:
        return None
    rows = limits.max_num_seqs
    return HostsPlan(
        count=len(hosts),
        devices=len(model.devices) // len(hosts),
        read_bytes=max(_read_bytes(model, host) for host in hosts),
        launch_bytes=_launch_bytes(rows),
        sum_bytes=sum_bytes(model),
        max_num_seqs=rows,
        links=_link_load(model, rows),
        splits=tuple(compare_splits(config, model, max_num_seqs=rows, max_tokens=limits.max_num_batched_tokens)),
    )


def lines(plan: HostsPlan, target: str) -> Iterator[str]:
    """The plan as text, line by line."""
    yield f"{target} is {plan.count} hosts of {plan.devices} devices: start it on each, with --nnodes {plan.count}"
    yield (
        f"  each host reads {plan.read_bytes / GIB:.2f} GiB of weights, and is sent {plan.launch_bytes / 1e3:.1f} kB over the "
        "network to launch a step"
    )
    yield f"  between devices {plan.sum_bytes / 1e6:.2f} MB are summed up for each place of a step"
    if plan.links is not None:
        yield (
            f"  {plan.links.count} links between chips, {plan.links.between_hosts} of them between hosts: where "
            f"{plan.max_num_seqs} sequences decode, one carries {plan.links.bytes / 1e6:.0f} MB a step in each direction, and "
            f"that takes {plan.links.seconds * 1e3:.1f} ms"
        )


def _link_load(model: ModelPlan, rows: int) -> LinkLoad | None:
    links = None if model.pipeline else Links.of(model.target, len(model.devices))
    if links is None:
        return None
    num_sums = 2 * model.config.num_layers
    total, exchanged = rows * sum_bytes(model), exchanged_bytes(model, rows)
    return LinkLoad(
        links.count,
        links.between_hosts,
        round(links.busiest * total + links.crossing * sum(exchanged)),
        num_sums * links.sum_s(total // num_sums) + sum(map(links.exchange_s, exchanged)),
    )


def _read_bytes(model: ModelPlan, host: int) -> int:
    """Bytes of the distinct parts of weights that a host's devices hold."""
    total = 0
    for struct in model.parameters.values():
        assert struct.sharding is not None, "devices of several hosts have a mesh"
        indices = struct.sharding.devices_indices_map(struct.shape)
        parts = {bounds_of(index, struct.shape) for device, index in indices.items() if device.process_index == host}
        numbers = sum(math.prod(high - low for low, high in part) for part in parts)
        total += numbers * np.dtype(struct.dtype).itemsize
    return total


def _launch_bytes(count: int) -> int:
    """Bytes of what says that so many sequences go on by a token each."""
    rows = Rows()
    rows.add_next_tokens(list(range(1, count + 1)), [1000 + slot for slot in range(count)])
    return len(pickle.dumps(Batch(1_000_000, Bucket(count, 1), rows), 5))
