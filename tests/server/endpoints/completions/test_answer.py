"""`/v1/completions`: forms of prompts, choices, log probabilities; whole and streamed answers are the same."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jaxengine.contract.sampling_params import SamplingParams
from tests.fakes import oracle
from tests.fronts import MAX_LEN, TOKENIZER, make_engine
from tests.robustness.loopback import until
from tests.server.rig import Live, live

PROMPT = "Once upon a time"
IDS = TOKENIZER.encode("The quick brown fox")
GREEDY = {"temperature": 0, "max_tokens": 12}


def complete(server: Live, **body: Any) -> dict[str, Any]:
    response = server.post("/v1/completions", **body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(server: Live, **body: Any) -> list[dict[str, Any]]:
    *events, done = server.events("/v1/completions", **body)
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def joined(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices that the chunks of a stream add up to."""
    choices: dict[int, dict[str, Any]] = {}
    for part in (choice for chunk in chunks for choice in chunk["choices"]):
        whole = choices.setdefault(part["index"], part)
        assert whole is part or whole["finish_reason"] is None, "a chunk came after the last"
        if whole is part:
            continue
        whole["text"] += part["text"]
        if part["logprobs"] is not None:
            for name, values in part["logprobs"].items():
                whole["logprobs"][name] += values
        for name in ("token_ids",):
            if name in part:
                whole[name] += part[name]
        whole["finish_reason"], whole["stop_reason"] = part["finish_reason"], part["stop_reason"]
        if "weight_versions" in part:
            whole["weight_versions"] = part["weight_versions"]
    return [choices[index] for index in sorted(choices)]


def expected(prompt: Any, **sampling: Any) -> tuple[int, ...]:
    params = SamplingParams(**sampling)
    request = make_engine().front.intake.request(prompt, params, request_id="0")
    return oracle(request, 0, vocab_size=TOKENIZER.vocab_size, max_len=MAX_LEN).tokens


def test_the_answer_is_the_oracles(server: Live) -> None:
    answer = complete(server, model="tiny", prompt=PROMPT, return_token_ids=True, **GREEDY)
    [choice] = answer["choices"]
    ids = TOKENIZER.encode(PROMPT)
    assert tuple(choice["token_ids"]) == expected(PROMPT, **GREEDY)
    assert choice["prompt_token_ids"] == ids
    assert TOKENIZER.decode([*ids, *choice["token_ids"]], skip_special_tokens=True) == PROMPT + choice["text"]
    assert (answer["object"], answer["model"]) == ("text_completion", "tiny")
    assert answer["id"].startswith("cmpl-")
    assert answer["system_fingerprint"].startswith("jaxengine-")
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(ids)
    assert usage["completion_tokens"] == len(choice["token_ids"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= len(ids)


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        (PROMPT, [PROMPT]),
        (IDS, ["The quick brown fox"]),
        ([PROMPT, "Tom"], [PROMPT, "Tom"]),
        ([IDS, TOKENIZER.encode("Tom")], ["The quick brown fox", "Tom"]),
    ],
)
def test_forms_of_prompts(server: Live, prompt: Any, texts: list[str]) -> None:
    answer = complete(server, prompt=prompt, echo=True, **GREEDY)
    alone = [complete(server, prompt=text, **GREEDY)["choices"][0] for text in texts]
    assert [choice["text"] for choice in answer["choices"]] == [
        text + choice["text"] for text, choice in zip(texts, alone, strict=True)
    ]
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))


BODIES: list[dict[str, Any]] = [
    {},
    {"logprobs": 2},
    {"echo": True},
    {"echo": True, "logprobs": 1},
    {"n": 3, "temperature": 1.0, "seed": 5, "logprobs": 0, "echo": True},
    {"prompt": [PROMPT, IDS[:2] and "Tom", "x"], "n": 2, "temperature": 0.9, "seed": 7, "logprobs": 3, "echo": True},
    {"prompt": IDS, "return_token_ids": True, "max_tokens": 40},
    {"max_tokens": 60, "stop": ["a", "e "], "temperature": 1.0, "seed": 3},
    {"max_tokens": 60, "stop": ["s"], "include_stop_str_in_output": True, "temperature": 1.0, "seed": 4},
    {"max_tokens": 0, "echo": True, "logprobs": 1},
    {"max_tokens": 3, "logprobs": 1, "return_tokens_as_token_ids": True},
]


@pytest.mark.parametrize("extra", BODIES, ids=str)
def test_joined_chunks_are_the_whole_answer(server: Live, extra: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, **GREEDY, "seed": 1, **extra}
    whole = complete(server, **body)
    chunks = stream(server, **body, stream_options={"include_usage": True})
    unasked = dict.fromkeys(("token_ids", "prompt_token_ids", "prompt_logprobs"))
    assert [{**unasked, **choice} for choice in joined(chunks)] == whole["choices"]
    assert (whole["service_tier"], whole["kv_transfer_params"]) == (None, None)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert chunks[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert all("usage" not in chunk for chunk in chunks[:-1])


def test_characters_of_several_tokens_are_never_cut_between_chunks(server: Live) -> None:
    """However many chunks there are: how much of a text waits for its reader is a matter of the machine's pace."""
    body = {"prompt": "ü", "temperature": 1.0, "seed": 11, "max_tokens": 80, "ignore_eos": True}
    assert joined(stream(server, **body))[0]["text"] == complete(server, **body)["choices"][0]["text"]


def test_usage_on_every_chunk(server: Live) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(server, prompt=PROMPT, **GREEDY, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 12


def test_the_form_that_lm_eval_reads(server: Live) -> None:
    context, continuation = IDS, TOKENIZER.encode(" jumps over", add_special_tokens=False)
    ids = [*context, *continuation]
    [choice] = complete(server, prompt=ids, echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234)["choices"]
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(ids) + 1}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    scores = logprobs["token_logprobs"][len(context) : -1]
    tops = logprobs["top_logprobs"][len(context) : -1]
    assert len(scores) == len(tops) == len(continuation)
    assert all(isinstance(score, float) for score in scores)
    for name, score, top in zip(logprobs["tokens"][len(context) : -1], scores, tops, strict=True):
        assert top[name] == score
        assert 1 <= len(top) <= 2


def test_text_offsets_point_into_the_text(server: Live) -> None:
    [choice] = complete(server, prompt=PROMPT, echo=True, logprobs=0, add_special_tokens=False, **GREEDY)["choices"]
    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert offsets[0] == 0
    for offset, token in zip(offsets, tokens, strict=True):
        assert choice["text"][offset:].startswith(token)
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("prompt", [PROMPT, "<s>Once</s> upon"])
def test_text_offsets_of_an_echo_are_those_of_what_was_written(server: Live, prompt: str, skip: bool) -> None:
    """The token that the tokenizer puts before it is not in it; special ones that were written are, skipped or not."""
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "skip_special_tokens": skip, **GREEDY}
    [choice] = complete(server, **body)["choices"]
    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    count = len(TOKENIZER.encode(prompt))
    assert (tokens[0], offsets[0], offsets[1], offsets[count]) == ("<s>", 0, 0, len(prompt))
    for offset, token in zip(offsets[1:count], tokens[1:count], strict=True):
        assert choice["text"][offset:].startswith(token)


def test_text_offsets_behind_bytes_that_are_no_characters(server: Live) -> None:
    body = {"prompt": PROMPT, "temperature": 1.0, "seed": 11, "max_tokens": 60, "ignore_eos": True, "logprobs": 0}
    [choice] = complete(server, **body)["choices"]
    assert "\N{REPLACEMENT CHARACTER}" in choice["text"].rstrip("\N{REPLACEMENT CHARACTER}")
    for offset, token in zip(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"], strict=True):
        if not token.startswith("<"):  # special ones
            assert choice["text"][offset:].startswith(token)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_that_was_aborted_before_it_was_computed_is_echoed(streamed: bool) -> None:
    with live(server_dev_mode=True) as server, ThreadPoolExecutor(1) as pool:
        server.http.post("/pause")
        body = {"prompt": PROMPT, "echo": True, "logprobs": 1, "n": 2, "temperature": 1.0, "seed": 1}
        ask = (lambda: joined(stream(server, **body))) if streamed else (lambda: complete(server, **body)["choices"])
        asked = pool.submit(ask)
        until(lambda: server.service.engine.num_open == 1, "it waits")
        server.http.post("/pause?mode=abort")
        choices = asked.result()
    for choice in choices:
        assert (choice["finish_reason"], choice["text"]) == ("abort", PROMPT)
        assert {name: len(column) for name, column in choice["logprobs"].items()} == dict.fromkeys(
            choice["logprobs"], 1
        )


def test_prompt_logprobs(server: Live) -> None:
    [choice] = complete(server, prompt=IDS, prompt_logprobs=1, **GREEDY)["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert [next(iter(position)) for position in others] == [str(token_id) for token_id in IDS[1:]]
    assert {"logprob", "rank", "decoded_token"} == set(others[0][str(IDS[1])])


def test_max_tokens(server: Live) -> None:
    defaulted = complete(server, prompt=PROMPT, ignore_eos=True)
    assert defaulted["usage"]["completion_tokens"] == 16
    clamped = complete(server, prompt=[5] * (MAX_LEN - 3), max_tokens=50, ignore_eos=True)
    assert clamped["usage"]["completion_tokens"] == 3
    assert clamped["choices"][0]["finish_reason"] == "length"


def test_truncated_prompts_keep_their_end(server: Live) -> None:
    ids = list(range(5, 25))
    cut = complete(server, prompt=ids, truncate_prompt_tokens=4, return_token_ids=True, **GREEDY)
    assert cut["choices"][0]["prompt_token_ids"] == ids[-4:]
    begin = complete(
        server, prompt=ids, truncate_prompt_tokens=4, truncation_side="right", return_token_ids=True, **GREEDY
    )
    assert begin["choices"][0]["prompt_token_ids"] == ids[:4]
    most = complete(server, prompt=ids * 20, truncate_prompt_tokens=-1)
    usage = most["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (MAX_LEN - 1, 1, MAX_LEN)


def test_defaults_of_the_model_hold_for_fields_left_out() -> None:
    with live(make_engine(sampling={"temperature": 0.0}, max_new_tokens=5)) as server:
        first, second = (complete(server, prompt=PROMPT, ignore_eos=True) for _ in range(2))
        assert first["choices"] == second["choices"]
        assert first["usage"]["completion_tokens"] == 5
        warm = complete(server, prompt=PROMPT, ignore_eos=True, temperature=2.0, seed=1, top_p=None, stop=None)
        assert warm["choices"][0]["text"] != first["choices"][0]["text"]


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"prompt": []}, "The decoder prompt cannot be empty", "prompt"),
    ({"prompt": [[]]}, "The decoder prompt cannot be empty", "prompt"),
    ({"prompt": [[5], []]}, "prompt 1: The decoder prompt cannot be empty", "prompt"),
    ({"prompt": [5] * 200}, "maximum context length is 96 tokens", "input_tokens"),
    ({"prompt": [5] * MAX_LEN}, "requested output tokens (at least 1)", "input_tokens"),
    ({"max_tokens": 97}, "max_tokens=97 cannot be greater than max_model_len=96", "max_tokens"),
    ({"max_tokens": 0}, "max_tokens must be an integer of at least 1, got 0", "max_tokens"),
    ({"prompt": [10**9]}, "out of vocabulary", "prompt_token_ids"),
    ({"prompt": [-1]}, "out of vocabulary", "prompt_token_ids"),
    ({"prompt": [2**70]}, "prompt", "prompt"),
    ({"n": 0}, "n must be", "n"),
    ({"n": 129}, "n must be at most 128 (--max-n), got 129", "n"),
    ({"n": 100, "prompt": ["a"] * 11, "temperature": 1}, "more than 1024 choices", "prompt"),
    ({"n": 2, "temperature": 0}, "n must be 1 with greedy sampling", "n"),
    ({"temperature": -1}, "temperature must be in [0.0, 2.0]", "temperature"),
    ({"temperature": "hot"}, "temperature: ", "temperature"),
    ({"top_p": 0}, "top_p must be in (0.0, 1.0]", "top_p"),
    ({"min_tokens": 20, "max_tokens": 2}, "min_tokens (20) must be at most max_tokens (2)", "min_tokens"),
    ({"logprobs": 21}, "at most 20", "logprobs"),
    ({"logprobs": -2}, "logprobs", "logprobs"),
    ({"stop": ["a"] * 17}, "at most 16 strings", "stop"),
    ({"stop": ["a" * 1001]}, "at most 1000 characters", "stop"),
    ({"stop": [""]}, "non-empty strings", "stop"),
    ({"logit_bias": {"999999": 1}}, "out of vocabulary", "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "keys must be integers of at least 0, got '9999", "logit_bias"),
    ({"allowed_token_ids": []}, "must not be empty", "allowed_token_ids"),
    ({"stream_options": {"include_usage": True}}, "stream_options needs stream=true", "stream_options"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs needs stream=false", "prompt_logprobs"),
    ({"suffix": "end"}, "suffix is not supported: no model here fills in the middle", "suffix"),
    ({"best_of": 3}, "best_of is not supported: vLLM removed it too", "best_of"),
    ({"use_beam_search": True}, "use_beam_search is not supported", "use_beam_search"),
    ({"truncate_prompt_tokens": 97}, "from 1 to max_model_len (96)", "truncate_prompt_tokens"),
    ({"priority": 3}, "scheduling_policy", "priority"),
    ({"cache_salt": ""}, "cache_salt", "cache_salt"),
    ({"request_id": "../x"}, "only a label", "request_id"),
    ({"prompt": {"text": "a"}}, "prompt", "prompt"),
    ({"prompt": None}, "prompt", "prompt"),
]


@pytest.mark.parametrize(("fields", "message", "param"), WRONG, ids=lambda value: str(value)[:60])
def test_wrong_bodies_say_what_is_wrong(server: Live, fields: dict[str, Any], message: str, param: str | None) -> None:
    response = server.post("/v1/completions", **{"prompt": PROMPT, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert message in error["message"]
    assert (error["param"], error["code"]) == (param, 400)
    assert error["type"] in ("BadRequestError", "Bad Request")


def test_an_unknown_model_is_a_404(server: Live) -> None:
    response = server.post("/v1/completions", model="gpt-9", prompt="x")
    assert response.status_code == 404
    assert response.json()["error"] == {
        "message": "The model `gpt-9` does not exist. Served: tiny.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


def test_unknown_fields_warn_once_and_harmless_ones_pass(server: Live, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        complete(server, prompt="x", frobnicate=3, user="me", metadata={"a": 1}, best_of=1, suffix=None)
    warnings = [record.getMessage() for record in caplog.records if "frobnicate" in record.getMessage()]
    assert len(warnings) == 1
    assert "user" not in warnings[0]
