"""`kv_transfer_params`: what a request asks for, and what its answer has for the next engine."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.contract.transfer import TransferFacts, TransferParams, read_transfer_params
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.options.transfer import Address

VLLM_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What the proxy of vLLM's NIXL example sends to the engine that computes prompts."""
FACTS = TransferFacts(engine_id="one", serves=True, fetches=False, address=Address("127.0.0.1", 9000))


@pytest.mark.parametrize("given", [None, {}, {"do_remote_decode": False}, {"do_remote_prefill": None}])
def test_nothing_is_asked_for(given: Any) -> None:
    assert read_transfer_params(given) is None


def test_the_answer_of_one_engine_is_what_the_next_is_asked() -> None:
    assert read_transfer_params(VLLM_PREFILL) == TransferParams(hands_over=True)
    answer = FACTS.answer()
    assert read_transfer_params(answer) == TransferParams(takes_over=True, source=Address("127.0.0.1", 9000))
    nixl = {**answer, "remote_request_id": "cmpl-1", "remote_block_ids": [[1, 2]], "tp_size": 10**12}
    assert read_transfer_params(nixl) == read_transfer_params(answer), "ids of theirs mean nothing, however large"
    assert read_transfer_params({"do_remote_prefill": True}) == TransferParams(takes_over=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x", "must be an object, got str"),
        ([], "must be an object, got list"),
        ({"do_remote_decod": True}, "unknown key 'do_remote_decod'. Did you mean 'do_remote_decode'"),
        ({"do_remote_decode": 1}, "do_remote_decode must be true or false"),
        ({"do_remote_decode": True, "do_remote_prefill": True}, "contradict each other"),
        ({"do_remote_prefill": True, "remote_host": "a"}, "remote_port must be a whole number"),
        ({"do_remote_prefill": True, "remote_port": 1}, "remote_host must be a name"),
        ({"do_remote_prefill": True, "remote_host": "a" * 256, "remote_port": 1}, "remote_host must be a name"),
        ({"do_remote_prefill": True, "remote_host": "a", "remote_port": 2**63}, "remote_port must be a whole number"),
        ({"do_remote_prefill": True, "remote_host": "a", "remote_port": True}, "remote_port must be a whole number"),
    ],
)
def test_what_is_refused_and_why(given: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"kv_transfer_params .*{message}"):
        read_transfer_params(given)


def test_sampling_params_take_them_as_vllms_do() -> None:
    assert SamplingParams().transfer is None
    params = SamplingParams(extra_args={"kv_transfer_params": VLLM_PREFILL})
    assert params.transfer == TransferParams(hands_over=True)
    assert params.clone().transfer == params.transfer
    with pytest.raises(RequestError, match="must be a mapping"):
        SamplingParams(extra_args=[1])  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="extra_args may have kv_transfer_params, got 'penalty'"):
        SamplingParams(extra_args={"penalty": 1})
    with pytest.raises(RequestError, match="unknown key"):
        SamplingParams(extra_args={"kv_transfer_params": {"x": 1}})
