"""Every rule of sampling options: what is refused, in which words, and what is normalised."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest

from jaxengine.contract.sampling_params import (
    BeamSearchParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.options.names import reasons

HUGE = 10**400


def test_defaults_are_those_that_users_know() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert (params.stop, params.stop_token_ids, params.bad_words) == ((), (), ())
    assert (params.logprobs, params.prompt_logprobs, params.logit_bias, params.allowed_token_ids) == (None,) * 4
    assert (params.ignore_eos, params.include_stop_str_in_output) == (False, False)
    assert (params.detokenize, params.skip_special_tokens, params.spaces_between_special_tokens) == (True,) * 3
    assert params.output_kind is RequestOutputKind.CUMULATIVE


REFUSED: list[tuple[str, Any, str]] = [
    ("n", 0, "an integer from 1 to 16384, got 0"),
    ("n", 16_385, "an integer from 1 to 16384, got 16385"),
    ("n", 1.5, "an integer from 1 to 16384, got 1.5"),
    ("n", True, "an integer from 1 to 16384, got True"),
    ("presence_penalty", 2.1, "in [-2.0, 2.0], got 2.1"),
    ("presence_penalty", -2.1, "in [-2.0, 2.0], got -2.1"),
    ("frequency_penalty", math.nan, "in [-2.0, 2.0], got nan"),
    ("frequency_penalty", "1", "in [-2.0, 2.0], got '1'"),
    ("repetition_penalty", 0.0, "above 0.0 and finite, got 0.0"),
    ("repetition_penalty", -1, "above 0.0 and finite, got -1"),
    ("repetition_penalty", math.inf, "above 0.0 and finite, got inf"),
    ("repetition_penalty", HUGE, "above 0.0 and finite, got 1"),
    ("temperature", -0.1, "in [0.0, 2.0], got -0.1"),
    ("temperature", 2.01, "in [0.0, 2.0], got 2.01"),
    ("temperature", math.nan, "in [0.0, 2.0], got nan"),
    ("temperature", "hot", "in [0.0, 2.0], got 'hot'"),
    ("temperature", None, "in [0.0, 2.0], got None"),
    ("temperature", True, "in [0.0, 2.0], got True"),
    ("top_p", 0.0, "in (0.0, 1.0], got 0.0"),
    ("top_p", 1.0001, "in (0.0, 1.0], got 1.0001"),
    ("top_k", -2, "an integer of at least -1, got -2"),
    ("top_k", 3.0, "an integer of at least -1, got 3.0"),
    ("min_p", -0.01, "in [0.0, 1.0], got -0.01"),
    ("min_p", 1.01, "in [0.0, 1.0], got 1.01"),
    ("top_n_sigma", -0.5, "at least 0.0 and finite, got -0.5"),
    ("xtc_probability", 1.5, "in [0.0, 1.0], got 1.5"),
    ("xtc_threshold", 0.6, "in [0.0, 0.5], got 0.6"),
    ("seed", 2**63, "an integer from -9223372036854775808 to 9223372036854775807, got 9223372036854775808"),
    ("seed", 1.0, "an integer from -9223372036854775808"),
    ("stop", "", "non-empty strings, got ('',)"),
    ("stop", ["a", ""], "non-empty strings, got ('a', '')"),
    ("stop", [3], "non-empty strings, got (3,)"),
    ("stop", 3, "a list of strings, got 3"),
    ("stop", False, "a list of strings, got False"),
    ("stop_token_ids", [-1], "an integer of at least 0, got -1"),
    ("stop_token_ids", ["2"], "an integer of at least 0, got '2'"),
    ("stop_token_ids", 2, "a list of token ids, got 2"),
    ("max_tokens", 0, "an integer of at least 1, got 0"),
    ("max_tokens", 2.5, "an integer of at least 1, got 2.5"),
    ("min_tokens", -1, "an integer of at least 0, got -1"),
    ("min_tokens", 17, "min_tokens (17) must be at most max_tokens (16)"),
    ("logprobs", -2, "an integer of at least -1, got -2"),
    ("logprobs", True, "an integer of at least -1, got True"),
    ("prompt_logprobs", -2, "an integer of at least -1, got -2"),
    ("logit_bias", [5], "must map token ids to numbers, got [5]"),
    ("logit_bias", {1.5: 1.0}, "keys must be integers of at least 0, got 1.5"),
    ("logit_bias", {-1: 1.0}, "keys must be integers of at least 0, got -1"),
    ("logit_bias", {"x": 1.0, "7": 1.0, "y": 1.0}, "keys must be integers of at least 0, got 'x', 'y'"),
    ("logit_bias", {"9" * 5000: 1.0}, "keys must be integers of at least 0, got '9999"),
    ("logit_bias", {5: "much"}, "token 5 must be a number (cut to [-100, 100]), got 'much'"),
    ("logit_bias", {5: math.nan}, "token 5 must be a number (cut to [-100, 100]), got nan"),
    ("logit_bias", dict.fromkeys(range(1025), 1.0), "has 1025 entries; at most 1024 are allowed"),
    ("allowed_token_ids", [], "must not be empty; leave it out to allow all"),
    ("allowed_token_ids", [-4], "an integer of at least 0, got -4"),
    ("allowed_token_ids", 4, "a list of token ids, got 4"),
    ("bad_words", "abc", "a list of strings, got 'abc'"),
    ("bad_words", ["abc", ""], "non-empty strings, got ('abc', '')"),
    ("bad_words", ["w"] * 129, "has 129 entries; at most 128 are allowed"),
    ("ignore_eos", 1, "True or False, got 1"),
    ("detokenize", "no", "True or False, got 'no'"),
    ("skip_special_tokens", None, "True or False, got None"),
    ("spaces_between_special_tokens", 0, "True or False, got 0"),
    ("include_stop_str_in_output", "yes", "True or False, got 'yes'"),
    ("output_kind", "delta", "RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=lambda value: str(value)[:24])
def test_a_value_out_of_range_is_refused_with_the_value_and_what_is_allowed(
    name: str, value: Any, message: str
) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(**{name: value})
    assert message in str(refused.value)
    assert name in str(refused.value)
    assert refused.value.param == name
    assert refused.value.http_status == 400


ACCEPTED: list[tuple[str, Any, Any]] = [
    ("n", 16_384, 16_384),
    ("presence_penalty", -2, -2),
    ("frequency_penalty", 2.0, 2.0),
    ("repetition_penalty", 1e-6, 1e-6),
    ("temperature", 2, 2),
    ("temperature", 0.01, 0.01),
    ("top_p", 1e-9, 1e-9),
    ("top_k", -1, 0),
    ("top_k", 10**9, 10**9),
    ("min_p", 1, 1),
    ("top_n_sigma", -1, 0.0),
    ("top_n_sigma", 1e300, 1e300),
    ("xtc_threshold", 0.5, 0.5),
    ("seed", -1, None),
    ("seed", -(2**63), -(2**63)),
    ("stop", "end", ("end",)),
    ("stop", ["a", "b"], ("a", "b")),
    ("stop", None, ()),
    ("stop_token_ids", [0, 7], (0, 7)),
    ("max_tokens", None, None),
    ("min_tokens", 16, 16),
    ("logprobs", 0, 0),
    ("logprobs", -1, -1),
    ("logit_bias", {"7": 150, 8: -math.inf}, {7: 100.0, 8: -100.0}),
    ("logit_bias", {}, {}),
    ("allowed_token_ids", [5, 6], (5, 6)),
    ("bad_words", ["w"] * 128, ("w",) * 128),
]


@pytest.mark.parametrize(("name", "value", "stored"), ACCEPTED, ids=lambda value: str(value)[:24])
def test_a_value_at_the_edge_is_accepted_and_stored_in_one_form(name: str, value: Any, stored: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == stored


def test_greedy_needs_a_single_sequence_and_switches_the_filters_off() -> None:
    params = SamplingParams(temperature=9e-6, top_p=0.5, top_k=9, min_p=0.5, top_n_sigma=1.0, xtc_probability=0.5)
    assert params.greedy
    assert params == SamplingParams(temperature=0.0)
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)
    assert not SamplingParams(temperature=0.5).greedy
    with pytest.raises(RequestError, match=r"n must be 1 with greedy sampling .*got n=2"):
        SamplingParams(n=2, temperature=0)


def test_a_temperature_too_small_to_compute_with_is_raised_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"temperature 0\.001 is raised to 0\.01") as caught:
        assert SamplingParams(temperature=0.001).temperature == 0.01
    assert caught[0].filename == __file__


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match=r"need detokenize=True, got stop=\('x',\); use stop_token_ids instead"):
        SamplingParams(stop="x", detokenize=False)
    assert SamplingParams(stop_token_ids=[1], detokenize=False).stop_token_ids == (1,)


def test_an_unknown_option_names_the_nearest() -> None:
    for build in (SamplingParams, SamplingParams.from_optional):
        with pytest.raises(RequestError, match=r"unknown sampling option 'temprature'. Did you mean 'temperature'\?"):
            build(temprature=1)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match=r"unknown sampling option 'beam_widht'. Did you mean 'beam_width'\?"):
        BeamSearchParams(beam_widht=2, max_tokens=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", reasons("sampling"))
def test_what_is_not_built_is_refused_by_name(name: str) -> None:
    for build in (SamplingParams, SamplingParams.from_optional):
        with pytest.raises(UnsupportedError, match=f"{name!r} is not supported: ") as refused:
            build(**{name: 1})
        assert refused.value.http_status == 400


def test_loosely_typed_fields_take_none_for_the_default() -> None:
    params = SamplingParams.from_optional(temperature=None, top_p=None, max_tokens=None, seed=None, best_of=None)
    assert params == SamplingParams(max_tokens=None)


def test_a_changed_copy_is_validated_and_the_original_kept() -> None:
    params = SamplingParams(temperature=0.5, stop="x", logit_bias={1: 2.0})
    assert params.replace(top_k=4) == SamplingParams(temperature=0.5, stop="x", logit_bias={1: 2.0}, top_k=4)
    assert params.top_k == 0
    with pytest.raises(RequestError, match="top_k"):
        params.replace(top_k=-3)


def test_params_travel_between_processes() -> None:
    for params in (SamplingParams(stop=["x"], seed=3), BeamSearchParams(2, 8)):
        assert pickle.loads(pickle.dumps(params)) == params == copy.deepcopy(params)


def test_beam_search_defaults() -> None:
    params = BeamSearchParams(4, 16)
    assert (params.beam_width, params.max_tokens) == (4, 16)
    assert (params.temperature, params.length_penalty, params.allowed_token_ids) == (0.0, 1.0, None)
    assert (params.ignore_eos, params.include_stop_str_in_output, params.skip_special_tokens) == (False, False, True)
    assert BeamSearchParams(4, 16, allowed_token_ids=[3]).allowed_token_ids == (3,)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("beam_width", 0, "an integer of at least 1, got 0"),
        ("max_tokens", 0, "an integer of at least 1, got 0"),
        ("max_tokens", None, "an integer of at least 1, got None"),
        ("temperature", 3, "in [0.0, 2.0], got 3"),
        ("length_penalty", math.inf, "finite, got inf"),
        ("length_penalty", HUGE, "finite, got 1"),
        ("ignore_eos", 1, "True or False, got 1"),
        ("include_stop_str_in_output", 1, "True or False, got 1"),
        ("skip_special_tokens", 1, "True or False, got 1"),
        ("allowed_token_ids", [], "must not be empty"),
        ("allowed_token_ids", [-1], "an integer of at least 0, got -1"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_beam_search_values_out_of_range_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, name: value})
    assert message in str(refused.value)
    assert refused.value.param == name


def test_structured_outputs_come_as_params_or_as_a_dict() -> None:
    params = StructuredOutputsParams(choice=["yes", "no"])
    assert SamplingParams(structured_outputs=params).structured_outputs is params
    assert SamplingParams(structured_outputs={"choice": ["yes", "no"]}).structured_outputs == params  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="must be StructuredOutputsParams, got int"):
        SamplingParams(structured_outputs=1)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="'structured_outputs' is not supported: beams are ranked"):
        BeamSearchParams(beam_width=2, max_tokens=3, structured_outputs=params)  # type: ignore[call-arg]


def test_a_clone_is_equal() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"])
    assert params.clone() == params


def test_fields_may_be_assigned_and_are_checked_again() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.5, stop="a")
    params.max_tokens = 5
    params.stop = ["b", "c"]
    assert params == SamplingParams(temperature=0.7, top_p=0.5, stop=["b", "c"], max_tokens=5)
    params.temperature = 0.0
    assert params.greedy
    assert params.top_p == 1.0
    with pytest.raises(RequestError, match="max_tokens must be"):
        params.max_tokens = 0
    with pytest.raises(RequestError, match=r"unknown sampling option 'max_token'.*max_tokens"):
        params.max_token = 3  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="best_of"):
        params.best_of = 2  # type: ignore[attr-defined]
    assert params.max_tokens == 5
    assert copy.copy(params) == params
