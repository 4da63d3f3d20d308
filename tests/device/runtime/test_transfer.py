"""What one process puts on a mesh of several is there without the others, who may be late."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

PROCESS = """
import sys, time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
from jaxengine.device.runtime.transfer import put

everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("tensor",)), PartitionSpec())
assert len(everywhere.device_set) == 2 and not everywhere.is_fully_addressable
client = jax._src.distributed.global_state.client
if rank == 0:
    for number in range(3):
        whole = put(np.arange(4, dtype=np.int32) + number, everywhere)
        np.testing.assert_array_equal(np.asarray(whole), np.arange(4) + number)
    client.key_value_set("done", "yes")
else:
    client.blocking_key_value_get("done", 60_000)
    whole = put(np.arange(4, dtype=np.int32) + 2, everywhere)
total = jax.jit(lambda x: x * 2, out_shardings=everywhere)(whole)
np.testing.assert_array_equal(np.asarray(total), (np.arange(4) + 2) * 2)
print("agreed")
"""


@pytest.mark.slow
def test_nobody_waits_for_another_process() -> None:
    """The second process puts nothing before the first has put everything: a collective would wait for it for ever."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROCESS]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(port)], env=alone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for process in processes:
        out, errors = process.communicate(timeout=100)
        assert out.strip() == "agreed", errors[-2000:]


def test_one_process_puts_as_ever() -> None:
    import jax

    from jaxengine.device.runtime.transfer import put

    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    array = put(np.arange(3, dtype=np.int32), here)
    assert array.sharding == here
    np.testing.assert_array_equal(np.asarray(array), np.arange(3))
