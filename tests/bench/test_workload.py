"""What benchmarks ask for."""

from __future__ import annotations

import gzip
import json

import pytest

from jaxengine.bench.workload import IDS, random_requests, sharegpt_requests, trace_requests
from jaxengine.errors import ConfigError


def test_random_requests_have_the_lengths_that_were_asked_for_and_are_the_same_each_time():
    requests = random_requests(20, 30, 5, ids=range(7, 90), seed=3)
    assert [(request.prompt_len, len(request.prompt), request.output_len) for request in requests] == [(30, 30, 5)] * 20
    assert {token for request in requests for token in request.prompt} <= set(range(7, 90))
    assert requests == random_requests(20, 30, 5, ids=range(7, 90), seed=3)
    assert requests != random_requests(20, 30, 5, ids=range(7, 90), seed=4)
    assert len({request.prompt for request in requests}) == 20


def test_lengths_lie_around_the_mean_and_a_prefix_is_shared():
    requests = random_requests(300, 100, 10, range_ratio=0.5, prefix_len=8)
    lengths = {request.prompt_len - 8 for request in requests}
    assert min(lengths) < 60 < 140 < max(lengths)
    assert lengths <= set(range(50, 151))
    assert {request.output_len for request in requests} == set(range(5, 16))
    assert len({request.prompt[:8] for request in requests}) == 1


@pytest.mark.parametrize("wrong", [{"range_ratio": 1.0}, {"prefix_len": -1}, {"count": 0}, {"output_len": 0}])
def test_lengths_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"must be"):
        random_requests(**{"count": 1, "input_len": 4, "output_len": 4, **wrong})


def conversation(*turns: str) -> dict[str, object]:
    return {"conversations": [{"from": "human", "value": turn} for turn in turns]}


def test_a_sharegpt_file_gives_questions_and_the_lengths_of_their_answers(tmp_path):
    path = tmp_path / "shares.json"
    good = [conversation("q" * (10 + number), "a" * (20 + number)) for number in range(5)]
    left_out = [conversation("q" * 2000, "a" * 9), conversation("q" * 9, "a"), conversation("alone"), conversation()]
    path.write_text(json.dumps(good + left_out))
    requests = sharegpt_requests(path, 99, len)
    assert sorted((request.prompt_len, request.output_len) for request in requests) == [
        (10 + number, 20 + number) for number in range(5)
    ]
    assert all(request.prompt == "q" * request.prompt_len for request in requests)
    assert len(sharegpt_requests(path, 3, len)) == 3
    assert {request.output_len for request in sharegpt_requests(path, 9, len, output_len=7)} == {7}


@pytest.mark.parametrize("text", ["{", "[1]", '[{"conversations": [{}, {}]}]', "[]"])
def test_another_file_is_no_sharegpt_file(tmp_path, text):
    path = tmp_path / "shares.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"shares\.json"):
        sharegpt_requests(path, 1, len)


def test_prompts_of_a_trace_begin_alike_where_they_did(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    rows = [
        {"timestamp": 4000, "hash_ids": [1, 2], "input_length": 600, "output_length": 3},
        {"timestamp": 1000, "hash_ids": [1, 3], "input_length": 700, "output_length": 4},
        {"timestamp": 9000, "hash_ids": [9], "input_length": 5, "output_length": 6},
    ]
    with gzip.open(path, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    second, first = trace_requests(str(path), 2)
    assert (first.time_s, first.prompt_len, first.output_len) == (3.0, 600, 3)
    assert (second.time_s, second.prompt_len, second.output_len) == (0.0, 700, 4)
    assert first.prompt[:512] == second.prompt[:512]
    assert first.prompt[512:600] != second.prompt[512:600]
    assert set(first.prompt) <= set(IDS)
    with pytest.raises(ConfigError, match="is no trace that is known"):
        trace_requests(str(tmp_path / "none"), 1)
