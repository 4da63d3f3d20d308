"""Prompts and parameters in, requests or clear refusals out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.pooling import Finish, Pooled, PoolerTraits
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.errors import ConfigError, ContextLengthError, RequestError, UnsupportedError
from jaxengine.front.intake import Intake, derived_seed
from jaxengine.front.prompts import split_prompts
from jaxengine.text.generation_config import GenerationDefaults
from tests.text import tiny

TOKENIZER = tiny.byte_level()
VOCAB = 400
EOS = 1


def intake(**options: Any) -> Intake:
    """Options are those of an intake, and what is true of its engine."""
    options = {"vocab_size": VOCAB, "max_model_len": 32, "clock": lambda: 7.0, **options}
    known = {field.name for field in dataclasses.fields(EngineFacts)}
    facts = EngineFacts(**{name: options.pop(name) for name in known & options.keys()})
    return Intake(options.pop("tokenizer", TOKENIZER), facts, **options)


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


@pytest.mark.parametrize("key", ["prompt_embeds", "encoder_prompt", "multi_modal_uuids"])
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
    assert (request.eos_token_id, request.stop_token_ids) == (EOS, {5, 9, 11})
    assert one(entry=entry, ignore_eos=True, stop_token_ids=[5]).stop_token_ids == {5}
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
        entry.prepare([""], params[:1])
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
    assert entry.default_params == SamplingParams(temperature=0.6, top_k=20)
    with pytest.raises(ConfigError, match=r"override_generation_config: temperature must be in \[0\.0, 2\.0\], got -1"):
        intake(defaults=GenerationDefaults(sampling={"temperature": -1}))


def embedding(prompt: Any = "Tom", *, entry: Intake | None = None, **pooling: Any) -> Any:
    return (entry or intake(pooler=PoolerTraits(size=8))).request(prompt, PoolingParams(**pooling), request_id="r")


def test_an_embedding_takes_a_prompt_of_any_form_and_samples_nothing() -> None:
    for prompt in ("Tom said", list(IDS), {"prompt": "Tom said", "cache_salt": "tenant"}):
        request = embedding(prompt, dimensions=3, use_activation=False)
        assert request.prompt_token_ids == IDS
        assert request.pooling == Pooled(task="embed", dimensions=3, finish=Finish.NONE)
        assert (request.max_tokens, request.sampling.n, request.sampling.greedy) == (1, 1, True)
    assert (request.cache_salt, request.arrival, request.seed) == ("tenant", 7.0, 0)
    both = intake(pooler=PoolerTraits(size=8)).prepare(
        ["Tom", [5]], [PoolingParams(), SamplingParams()], priorities=[2, 1]
    )
    assert [(request.pooling is None, request.priority) for request in both] == [(False, 2), (True, 1)]


def test_the_model_says_whether_embeddings_are_normalised() -> None:
    raw = intake(pooler=PoolerTraits(size=8, finish=Finish.NONE))
    assert embedding().pooling.finish is Finish.NORMALIZE
    assert embedding(entry=raw).pooling.finish is Finish.NONE
    assert embedding(entry=raw, normalize=True).pooling.finish is Finish.NORMALIZE


def test_an_embedding_may_fill_the_context() -> None:
    assert len(embedding([5] * 32).prompt_token_ids) == 32
    with pytest.raises(ContextLengthError, match=r"maximum context length is 32 tokens.*contains 33 input tokens"):
        embedding([5] * 33)
    with pytest.raises(RequestError, match="The decoder prompt cannot be empty"):
        embedding([])
    with pytest.raises(RequestError, match="token id 400, which is out of vocabulary"):
        embedding([VOCAB])


def test_dimensions_are_at_most_the_models() -> None:
    assert embedding(dimensions=8).pooling.dimensions == 8
    with pytest.raises(RequestError, match=r"dimensions must be from 1 to 8, .*, got 9") as caught:
        embedding(dimensions=9)
    assert caught.value.param == "dimensions"


def test_embeddings_keep_the_beginning_of_a_prompt_and_its_special_tokens() -> None:
    assert embedding(IDS, truncate_prompt_tokens=2).prompt_token_ids == IDS[:2]
    assert embedding([5] * 40, truncate_prompt_tokens=-1).prompt_token_ids == (5,) * 32
    ended = tiny.byte_level()
    ended.backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    entry = intake(tokenizer=ended, pooler=PoolerTraits(size=8))
    assert embedding("Tom said", entry=entry).prompt_token_ids == (*IDS, EOS)
    assert embedding("Tom said", entry=entry, truncate_prompt_tokens=2).prompt_token_ids == (IDS[0], EOS)
    params = [PoolingParams(truncate_prompt_tokens=length) for length in (1, None, 2)]
    requests = entry.prepare(["Tom said", "Tom said", "Tom said"], params)
    assert [request.prompt_token_ids for request in requests] == [(EOS,), (*IDS, EOS), (IDS[0], EOS)]
    with pytest.raises(RequestError, match=r"from 1 to max_model_len \(32\), or -1, got 33"):
        embedding(truncate_prompt_tokens=33)


def test_a_model_does_what_it_was_made_for() -> None:
    without_head = intake(pooler=PoolerTraits(size=8), generates=False)
    assert embedding(entry=without_head).pooling is not None
    with pytest.raises(UnsupportedError, match=r"generates nothing: its tasks are embed.*runner='generate'"):
        one(entry=without_head)
    other = intake(pooler=PoolerTraits(pooling=None))
    assert one(entry=other).pooling is None
    with pytest.raises(RequestError, match="beside generation this model's embeddings are not built"):
        embedding(entry=other)


@pytest.mark.parametrize(
    "option", ["num_pages", "kv_cache_memory_bytes", "memory_utilization", "max_num_batched_tokens"]
)
def test_what_bounds_the_context_is_told_and_nothing_else(option: str) -> None:
    bounded = intake(longest_context=4096, context_option=option)
    for length in (32, 33):
        with pytest.raises(ContextLengthError, match=rf"\({option}\): the model takes up to 4096 tokens\.$") as caught:
            bounded.request([5] * length, SamplingParams(), request_id="a")
        assert "max_model_len" not in str(caught.value)


def test_a_context_that_could_be_longer_is_said_so() -> None:
    bounded, whole = intake(longest_context=4096), intake(longest_context=32)
    for length in (32, 33):
        with pytest.raises(ContextLengthError, match=r"or start the engine .*\(max_model_len up to 4096\)\.$"):
            bounded.request([5] * length, SamplingParams(), request_id="a")
        with pytest.raises(ContextLengthError, match=r"length of the input prompt\.$"):
            whole.request([5] * length, SamplingParams(), request_id="a")
