"""Which weights stay in the host's memory, and that tokens are those of weights on the device."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine import LLM
from jaxengine.device.runtime.memory import is_on_host, parameter_bytes
from jaxengine.errors import ConfigError
from jaxengine.startup import model_plan, weights_on_host
from jaxengine.startup.weights_on_host import keep_on_host
from tests.integration.engines import SMALL, greedy, token_ids, write_checkpoint

KIB = 1024
PROMPTS = [[5, 9, 60, 7], [8] * 20, list(range(3, 40))]


def parameters(num_layers: int = 4) -> dict[str, jax.ShapeDtypeStruct]:
    """A table of 4 KiB, and layers of 1 KiB each, halved by two devices."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

    def struct(rows: int) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec("x"))
        return jax.ShapeDtypeStruct((rows, 256), jnp.float32, sharding=sharding)

    layers = {f"layers.{number}.{name}": struct(1) for number in range(num_layers) for name in ("up", "down")}
    doubled = {
        path: jax.ShapeDtypeStruct((2, 128), each.dtype, sharding=each.sharding) for path, each in layers.items()
    }
    return {"embed.table": struct(4), **doubled}


@pytest.mark.parametrize(("kib", "layers"), [(0.5, 1), (1, 1), (1.5, 2), (100, 4)])
def test_whole_layers_of_each_devices_part(kib: float, layers: int, caplog: pytest.LogCaptureFixture) -> None:
    given = parameters()
    with caplog.at_level(logging.WARNING, "jaxengine"):
        kept = keep_on_host(given, kib / KIB / KIB, platform="tpu", here=False)
    on_host = {path for path, struct in kept.items() if is_on_host(struct)}
    assert on_host == {path for path in given if path.startswith("layers.") and int(path.split(".")[1]) < layers}
    assert [(struct.shape, struct.dtype) for struct in kept.values()] == [
        (struct.shape, struct.dtype) for struct in given.values()
    ]
    assert parameter_bytes(given) - parameter_bytes(kept) == layers * KIB
    assert f"the weights of {layers} layers" in caplog.text


def test_nothing_is_moved_where_nothing_is_asked_for_and_a_gpu_is_refused() -> None:
    given = parameters()
    for gib, platform in ((0.0, "tpu"), (0.0, "gpu"), (4.0, "cpu")):
        assert keep_on_host(given, gib, platform=platform, here=False) == given
    with pytest.raises(ConfigError, match="cpu_offload_gb=4 is not built for GPUs"):
        keep_on_host(given, 4.0, platform="gpu", here=False)


def test_more_than_the_host_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_on_host, "host_memory_bytes", lambda: 2 * KIB)
    with pytest.raises(ConfigError, match=r"keeps .* GiB of weights of \d devices .* give it less"):
        keep_on_host(parameters(), 1.0, platform="tpu", here=True)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_engines")
def test_the_tokens_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On two devices of a CPU, whose pinned memory is another one to JAX; also after a sleep, and with weights read again."""
    model = write_checkpoint(tmp_path / "model")
    options: dict[str, Any] = {**SMALL, "load_format": "auto", "tensor_parallel_size": 2, "num_pages": 40}
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]

    def tokens(llm: LLM) -> list[tuple[int, ...]]:
        return token_ids(llm.generate(prompts, greedy(8), use_tqdm=False))

    with LLM(str(model), **options) as llm:
        wanted = tokens(llm)
    as_of_a_tpu = partial(keep_on_host, platform="tpu")
    monkeypatch.setattr(
        model_plan, "keep_on_host", lambda given, gib, platform, here: as_of_a_tpu(given, gib, here=here)
    )
    with LLM(str(model), **options, cpu_offload_gb=1e-6) as llm:
        runner: Any = llm._engine.core._runner
        for again in (lambda: None, lambda: (llm.sleep(), llm.wake_up()), lambda: llm.update_weights(str(model))):
            again()
            kinds = Counter(array.sharding.memory_kind for array in runner.parameters)
            assert 0 < kinds["pinned_host"] < len(runner.parameters)
            assert tokens(llm) == wanted
