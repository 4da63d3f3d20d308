"""What hosts that share an engine read, send and sum up, as `jaxengine plan` says it."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from buckets import Bucket
from jaxengine.contract.batch import Batch, Rows
from jaxengine.device.weights.placement import bounds_of
from jaxengine.startup.model_plan import ModelPlan

GIB = 1 << 30


@dataclass(frozen=True)
class HostsPlan:
    """`count` hosts with `devices` each.

    Each reads `read_bytes` of weights, the most that one does. To launch a step of as many sequences as may run the first host
    sends `launch_bytes` to each other one, and nothing comes back. For each place of a step devices of all hosts sum up
    `sum_bytes`: the residual stream, after attention and after the MLP of every layer.
    """

    count: int
    devices: int
    read_bytes: int
    launch_bytes: int
    sum_bytes: int


def plan_hosts(model: ModelPlan, *, max_num_seqs: int) -> HostsPlan | None:
    """None where the model's devices are all of one host."""
    hosts = sorted({device.process_index for device in model.devices})
    if len(hosts) == 1:
        return None
    config = model.config
    return HostsPlan(
        count=len(hosts),
        devices=len(model.devices) // len(hosts),
        read_bytes=max(_read_bytes(model, host) for host in hosts),
        launch_bytes=_launch_bytes(max_num_seqs),
        sum_bytes=2 * config.num_layers * config.hidden_size * model.dtype.itemsize,
    )


def lines(plan: HostsPlan, target: str) -> Iterator[str]:
    """The plan as text, line by line."""
    yield f"{target} is {plan.count} hosts of {plan.devices} devices: start it on each, with --nnodes {plan.count}"
    yield (
        f"  each host reads {plan.read_bytes / GIB:.2f} GiB of weights, and is sent {plan.launch_bytes / 1e3:.1f} kB to launch a "
        f"step; between devices {plan.sum_bytes / 1e6:.2f} MB are summed up for each place of a step"
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
