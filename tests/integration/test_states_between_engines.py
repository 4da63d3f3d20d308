"""A hybrid's prompts computed on one engine and answered on another: copies of its states travel with its pages."""

from __future__ import annotations

import json
import random
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from jaxengine.contract.sampling_params import SamplingParams
from tests.device.models.cases import VOCAB, Fixture
from tests.integration.engines import SMALL, run, start, token_ids

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_engines")]

PAGE = SMALL["page_size"]


def _transfer(role: str, port: int) -> dict[str, Any]:
    secret = {"secret_env": "PAGES_SECRET"}
    return {
        "kv_connector": "TcpConnector",
        "kv_role": role,
        "kv_port": port,
        "kv_buffer_size": 1 << 26,
        "kv_connector_extra_config": secret,
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("case", ["lfm2", pytest.param("granite-hybrid", marks=pytest.mark.rare)])
def test_the_tokens_are_those_of_one_engine(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PAGES_SECRET", "a secret for a test")
    for name in ("fetches.ANSWER_S", "fetches.PATIENCE_S", "arrivals.PATIENCE_S"):  # however busy the machine is
        monkeypatch.setattr(f"jaxengine.host.scheduler.{name}", 60.0)
    fixture = Fixture.load(case)
    (tmp_path / "config.json").write_text(json.dumps(fixture.config))
    save_file(fixture.tensors, tmp_path / "model.safetensors")
    options = {"load_format": "auto", "dtype": "float32", "mamba_block_size": PAGE, "num_snapshots": 20}
    rng = random.Random(7)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(rng.randrange(30, 90))] for _ in range(4)]
    params = [SamplingParams(temperature=t, seed=7, max_tokens=12, ignore_eos=True, detokenize=False) for t in (0, 0.9)]
    with closing(start(tmp_path, **options)) as alone:
        wanted = token_ids(run(alone, prompts, params * 2))
    port = _free_port()
    with (
        closing(start(tmp_path, **options, kv_transfer_config=_transfer("kv_producer", port))) as producer,
        closing(start(tmp_path, **options, kv_transfer_config=_transfer("kv_consumer", port))) as consumer,
    ):
        remote = {"kv_transfer_params": {"do_remote_decode": True}}
        first = SamplingParams(max_tokens=1, detokenize=False, extra_args=remote)
        handed = [output.kv_transfer_params for output in run(producer, prompts, [first] * 4)]
        asked = [
            one.replace(extra_args={"kv_transfer_params": where}) for one, where in zip(params * 2, handed, strict=True)
        ]
        outputs = run(consumer, prompts, asked)
        assert token_ids(outputs) == wanted
        assert [output.num_cached_tokens for output in outputs] == [
            (len(prompt) - 1) // PAGE * PAGE for prompt in prompts
        ]
        for engine in (producer, consumer):
            engine.core.check_idle()
