"""Prompts and parameters in, requests or clear refusals out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxengine.engine.intake import Intake, derived_seed
from jaxengine.engine.prompts import split_prompts
from jaxengine.errors import ContextLengthError, RequestError, UnsupportedError
from jaxengine.sampling_params import SamplingParams
from jaxengine.text.generation_config import GenerationDefaults
from tests.text import tiny

TOKENIZER = tiny.byte_level()
VOCAB = 400
EOS = 1


def intake(**options: Any) -> Intake:
    options = {"vocab_size": VOCAB, "max_model_len": 32, "clock": lambda: 7.0, **options}
    return Intake(options.pop("tokenizer", TOKENIZER), **options)


def one(prompt: Any = "Tom", *, entry: Intake | None = None, **sampling: Any) -> Any:
    return (entry or intake()).request(prompt, SamplingParams(**sampling), request_id="r")


IDS = tuple(TOKENIZER.encode("Tom said"))


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("Tom said", "Tom said"),
        (list(IDS), None),
        (IDS, None),
        ([np.int64(token) for token in IDS], None),
        ({"prompt": "Tom said"}, "Tom said"),
        ({"prompt_token_ids": list(IDS)}, None),
        ({"prompt_token_ids": list(IDS), "prompt": "told otherwise"}, "told otherwise"),
        ({"prompt": "Tom said", "multi_modal_data": None}, "Tom said"),
    ],
)
def test_forms_of_a_prompt(prompt: Any, text: str | None) -> None:
    request = one(prompt)
    assert (request.prompt_token_ids, request.prompt) == (IDS, text)
    assert all(type(token) is int for token in request.prompt_token_ids)
    assert (request.request_id, request.eos_token_id, request.arrival, request.cache_salt) == ("r", EOS, 7.0, None)


def test_a_salt_is_passed_on() -> None:
    assert one({"prompt": "Tom", "cache_salt": "tenant"}).cache_salt == "tenant"


@pytest.mark.parametrize(
    ("prompts", "count", "alone"),
    [
        ("a", 1, True),
        ([1, 2], 1, True),
        ({"prompt": "a"}, 1, True),
        (["a", [1], {"prompt": "b"}], 3, False),
        ([[1, 2], [3]], 2, False),
        (("a", "b"), 2, False),
        ([], 0, False),
    ],
)
def test_one_prompt_or_several(prompts: Any, count: int, alone: bool) -> None:
    items, single = split_prompts(prompts)
    assert (len(items), single) == (count, alone)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "The decoder prompt cannot be empty"),
        ([], "The decoder prompt cannot be empty"),
        ({"prompt_token_ids": []}, "The decoder prompt cannot be empty"),
        ([1, VOCAB], f"token id {VOCAB}, which is out of vocabulary: ids are 0 to {VOCAB - 1}"),
        ([-1], "token id -1"),
        ([1, "a"], "list of integers"),
        ([1.5], "list of integers"),
        ([True], "list of integers"),
        (3, "got int"),
        (b"bytes", "got bytes"),
        ({}, "needs 'prompt' or 'prompt_token_ids'"),
        ({"promt": "a"}, "Did you mean 'prompt'"),
        ({"prompt": 3}, "prompt must be text"),
        ({"prompt": "a", "cache_salt": ""}, "non-empty string"),
    ],
)
def test_prompts_that_are_wrong(prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        one(prompt)


@pytest.mark.parametrize("key", ["prompt_embeds", "encoder_prompt", "multi_modal_data"])
def test_forms_that_are_not_built_are_refused_by_name(key: str) -> None:
    with pytest.raises(UnsupportedError, match=key):
        one({"prompt": "a", key: [1]})


def test_length_rules() -> None:
    with pytest.raises(ContextLengthError, match=r"maximum context length is 32 tokens.*contains 33 input tokens"):
        one([5] * 33)
    with pytest.raises(ContextLengthError, match=r"at least 1\) is longer than the maximum model length of 32"):
        one([5] * 32)
    with pytest.raises(RequestError, match="max_tokens=33 cannot be greater than max_model_len=32"):
        one([5], max_tokens=33)
    assert one([5] * 31, max_tokens=None).max_tokens == 1
    assert one([5] * 20, max_tokens=32).max_tokens == 12
    assert one([5] * 20, max_tokens=3).max_tokens == 3
    capped = intake(defaults=GenerationDefaults(max_new_tokens=4))
    assert one([5], entry=capped, max_tokens=9).max_tokens == 4
    assert one([5], entry=capped, max_tokens=None).max_tokens == 4


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"logprobs": 21}, "logprobs=21 asks for 21.*at most 20.*larger max_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs=21"),
        ({"logprobs": -1}, f"asks for {VOCAB}"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids holds token id 400"),
        ({"allowed_token_ids": [0, VOCAB]}, "allowed_token_ids holds token id 400"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias holds token id 400"),
        ({"bad_words": ["é" * 300, "ü" * 300]}, "at most 1024"),
        ({"max_tokens": None, "min_tokens": 10**9}, "min_tokens=1000000000 is more than the .* tokens"),
    ],
)
def test_parameters_that_do_not_fit_the_engine(sampling: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        one(**sampling)


def test_without_a_limit_every_logprob_may_be_asked_for() -> None:
    assert one(entry=intake(max_logprobs=-1), logprobs=-1).sampling.logprobs == -1


def test_bad_words_are_tokenised_with_and_without_a_space() -> None:
    words = one(bad_words=["Tom", " hello"]).bad_words_token_ids
    forms = ("Tom", " Tom", "hello", " hello")
    assert words == tuple(tuple(TOKENIZER.encode(form, add_special_tokens=False)) for form in forms)


def test_further_eos_ids_become_stop_tokens() -> None:
    entry = intake(defaults=GenerationDefaults(eos_token_ids=(9, EOS, 11)))
    assert entry.end_token_ids == (EOS, 9, 11)
    request = one(entry=entry, stop_token_ids=[5, 9])
    assert (request.eos_token_id, request.sampling.stop_token_ids) == (EOS, (5, 9, 11))
    assert one(entry=entry, ignore_eos=True).sampling.stop_token_ids == ()
    ids_only = intake(tokenizer=None, defaults=GenerationDefaults(eos_token_ids=(9, 11)))
    assert one([5], entry=ids_only).eos_token_id == 9


def test_without_a_tokenizer_text_is_refused() -> None:
    entry = intake(tokenizer=None)
    assert one([5, 6], entry=entry).prompt_token_ids == (5, 6)
    for prompt, sampling in (("Tom", {}), ([5], {"stop": "x"}), ([5], {"bad_words": ["x"]})):
        with pytest.raises(RequestError, match="skip_tokenizer_init"):
            one(prompt, entry=entry, **sampling)


def test_seeds_repeat_with_the_run_and_differ_between_requests() -> None:
    params = [SamplingParams()] * 3
    seeds = [[request.seed for request in intake().prepare(["Tom"] * 3, params)] for _ in range(2)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3
    assert [request.seed for request in intake(seed=1).prepare(["Tom"] * 3, params)] != seeds[0]
    assert one(seed=-5).seed == -5
    assert all(0 <= derived_seed(0, number) < 2**62 for number in range(100))


def test_one_bad_prompt_says_which_and_takes_no_number() -> None:
    entry = intake()
    params = [SamplingParams()] * 3
    with pytest.raises(RequestError, match=r"^prompt 1: The decoder prompt cannot be empty") as caught:
        entry.prepare(["Tom", "", "Tom"], params)
    assert caught.value.param == "prompt"
    with pytest.raises(UnsupportedError, match=r"^prompt 2: "):
        entry.prepare(["Tom", "Tom", {"prompt_embeds": 1}], params)
    with pytest.raises(RequestError, match=r"^The decoder"):
        entry.prepare([""], params)
    requests = entry.prepare(["Tom", [5], "said"], params, priorities=[0, 2, 1])
    assert [request.request_id for request in requests] == ["0", "1", "2"]
    assert [request.priority for request in requests] == [0, 2, 1]
    assert [request.request_id for request in entry.prepare(["Tom"], params[:1])] == ["3"]


@pytest.mark.parametrize("priority", [1.5, True, "1"])
def test_priorities_are_integers(priority: Any) -> None:
    with pytest.raises(RequestError, match="priority must be an integer"):
        intake().request("Tom", SamplingParams(), request_id="r", priority=priority)


def test_lone_surrogates_do_not_reach_the_tokenizer() -> None:
    assert TOKENIZER.decode(one("Tom\ud800").prompt_token_ids) == "Tom\ufffd"


def test_parameters_must_be_sampling_params() -> None:
    with pytest.raises(RequestError, match="must be SamplingParams, got dict"):
        intake().request("Tom", {"temperature": 0}, request_id="r")  # type: ignore[arg-type]


def test_defaults_of_the_model_are_used() -> None:
    entry = intake(defaults=GenerationDefaults(sampling={"temperature": 0.6, "top_k": 20}))
    assert entry.default_params() == SamplingParams(temperature=0.6, top_k=20)
