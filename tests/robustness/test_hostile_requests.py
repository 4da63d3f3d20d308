"""More than a hundred hostile requests over every endpoint, beside neighbours whose answers must not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.robustness.answers import assert_refused
from tests.robustness.hostile import BASES, DOCUMENTED, LONE_SURROGATE, dumps

Maker = Callable[[], bytes]
"""Bodies are made when they are sent: all of them would be 100 MB in every process that only collects tests."""

MB = 1 << 20
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}


def anywhere(path: str) -> Iterator[tuple[str, Maker]]:
    """What is hostile to every endpoint that reads JSON."""
    base = BASES[path]
    first = next(iter(base))
    whole = dumps(base)
    yield "nothing", lambda: b""
    yield "half of it", lambda: whole[: len(whole) // 2]
    yield "a list", lambda: dumps([base])
    yield "null", lambda: b"null"
    yield "10,000 levels", lambda: b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    yield "NaN", lambda: dumps({**base, "temperature": float("nan"), "top_p": float("inf")})
    yield "an integer of 400 digits", lambda: dumps({**base, "seed": 10**400, "max_tokens": 10**400})
    yield "a lone surrogate", lambda: dumps({**base, first: LONE_SURROGATE})
    yield "bytes that are no UTF-8", lambda: whole[:-1] + b',"x":"\xff\xfe"}'
    yield "5 MB", lambda: dumps({**base, "x": "y" * (5 * MB)})
    yield "100,000 fields", lambda: dumps({**base, **{f"x{at}": at for at in range(100_000)}})
    yield "the same key 10,000 times", lambda: b"{" + b'"a":1,' * 10_000 + whole[1:]
    yield "no text", lambda: dumps({**base, first: 7})
    yield "an object", lambda: dumps({**base, first: {"a": {"b": [1, None]}}})
    yield "100,000 empty texts", lambda: dumps({**base, first: [""] * 100_000})
    yield "a model that is a path", lambda: dumps({**base, "model": "../../etc/passwd"})
    yield "a timeout of no time", lambda: dumps({**base, "timeout": 0})
    yield "a timeout of an instant", lambda: dumps({**base, "timeout": 1e-9})


SAMPLING: dict[str, dict[str, Any]] = {
    "5,000 stop strings": {"stop": [f"s{at}" for at in range(5_000)]},
    "a stop string of 1 MB": {"stop": "x" * MB},
    "20,000 biases": {"logit_bias": {str(at): 1 for at in range(20_000)}},
    "biases of no token": {"logit_bias": {"-1": 5, "x": 1}},
    "n of 2**40": {"n": 2**40},
    "n of -1": {"n": -1},
    "n of 129": {"n": 129},
    "all log probabilities": {"logprobs": -1, "top_logprobs": -1},
    "log probabilities of 10**9": {"logprobs": 10**9, "top_logprobs": 10**9},
    "log probabilities of a prompt, 10**9": {"prompt_logprobs": 10**9},
    "a million tokens": {"max_tokens": 10**6},
    "-1 tokens": {"max_tokens": -1},
    "more least than most tokens": {"min_tokens": 500, "max_tokens": 2},
    "no token allowed": {"allowed_token_ids": []},
    "tokens that are not there": {"allowed_token_ids": [-1, 10**9]},
    "50,000 stop tokens": {"stop_token_ids": list(range(50_000))},
    "10,000 bad words": {"bad_words": [f"bad{at}" for at in range(10_000)]},
    "a temperature of 1e308": {"temperature": 1e308},
    "penalties without end": {"presence_penalty": 1e308, "repetition_penalty": 0},
    "a regex that explodes": {"structured_outputs": {"regex": "(a|a)*" * 200}},
    "a schema of itself": {"structured_outputs": {"json": {"$ref": "#"}}},
    "20,000 choices": {"structured_outputs": {"choice": [f"c{at}" for at in range(20_000)]}},
    "a grammar that is none": {"structured_outputs": {"grammar": "start: (" * 1000}},
    "two structures": {"structured_outputs": {"regex": "a", "json": {}}},
    "a priority of 2**63": {"priority": 2**63 - 1},
    "a truncation to -5": {"truncate_prompt_tokens": -5},
    "options of a stream without one": {"stream_options": {"include_usage": True}},
    "a user of 1 MB": {"user": "u" * MB, "safety_identifier": "\x00"},
    "a label with a line break": {"request_id": "a\r\nX-Evil: 1"},
}

OTHERS: dict[str, tuple[str, str, dict[str, str], Maker]] = {
    "1,100 prompts": ("POST", "/v1/completions", {}, lambda: dumps({"prompt": ["a"] * 1_100, "max_tokens": 1})),
    "1,000 prompts with n 2": ("POST", "/v1/completions", {}, lambda: dumps({"prompt": ["a"] * 1_000, "n": 2})),
    "an answer of millions of log probabilities": (
        "POST",
        "/v1/completions",
        {},
        lambda: dumps({"prompt": [[5] * 400] * 600, "max_tokens": 1, "prompt_logprobs": 20}),
    ),
    "200,000 token ids": ("POST", "/v1/completions", {}, lambda: dumps({"prompt": [7] * 200_000})),
    "20,000 messages": (
        "POST",
        "/v1/chat/completions",
        {},
        lambda: dumps({"messages": [{"role": "user", "content": "hi"}] * 20_000}),
    ),
    "a template of the caller's": (
        "POST",
        "/v1/chat/completions",
        {},
        lambda: dumps({**BASES["/v1/chat/completions"], "chat_template": "{% for i in range(10**9) %}x{% endfor %}"}),
    ),
    "3,000 tools": (
        "POST",
        "/v1/chat/completions",
        {},
        lambda: dumps(
            {
                **BASES["/v1/chat/completions"],
                "tools": [{"type": "function", "function": {"name": f"f{at}"}} for at in range(3_000)],
            }
        ),
    ),
    "a header of no seconds": (
        "POST",
        "/v1/completions",
        {"X-Request-Timeout": "nan"},
        lambda: dumps(BASES["/v1/completions"]),
    ),
    "a header of an instant": (
        "POST",
        "/v1/chat/completions",
        {"X-Request-Timeout": "1e-12"},
        lambda: dumps(BASES["/v1/chat/completions"]),
    ),
    "a rank that is none": (
        "POST",
        "/v1/completions",
        {"X-data-parallel-rank": "-7"},
        lambda: dumps(BASES["/v1/completions"]),
    ),
    "a form without an end": ("POST", "/v1/files", MULTIPART, lambda: b"--x\r\n" + b"a" * MB),
    "a form of another boundary": ("POST", "/v1/files", MULTIPART, lambda: b"--y\r\n\r\n--y--\r\n"),
    "a file that is no form": ("POST", "/v1/files", {}, lambda: b"{}"),
    "a batch of no file": (
        "POST",
        "/v1/batches",
        {},
        lambda: dumps({"input_file_id": "../x", "endpoint": "/v1/completions"}),
    ),
    "a batch for /metrics": (
        "POST",
        "/v1/batches",
        {},
        lambda: dumps({"input_file_id": "file-1", "endpoint": "/metrics"}),
    ),
    "a list of -1 batches": ("GET", "/v1/batches?limit=-1", {}, lambda: b""),
    "a list of files from nowhere": ("GET", "/v1/files?after=%00", {}, lambda: b""),
    "the content of /etc/passwd": ("GET", "/v1/files/..%2f..%2fetc%2fpasswd/content", {}, lambda: b""),
    "a response that is not there": ("GET", "/v1/responses/resp_x%00", {}, lambda: b""),
    "input items by the billion": ("GET", "/v1/responses/x/input_items?limit=1000000000", {}, lambda: b""),
    "a model that is a path": ("GET", "/v1/models/..%2f..", {}, lambda: b""),
    "a method of its own": ("BREW", "/v1/completions", {}, lambda: b""),
    "a body for /health": ("POST", "/health", {}, lambda: b"x" * 1000),
    "metrics deleted": ("DELETE", "/metrics", {}, lambda: b""),
}


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def cases() -> Iterator[Any]:
    """Where one reader or one check serves several paths the further ones are rare."""
    for path in BASES:
        for name, body in anywhere(path):
            marks = () if path == CHAT or name in ("5 MB", "an object") else pytest.mark.rare
            yield pytest.param("POST", path, {}, body, id=f"{path} {name}", marks=marks)
    for path in (COMPLETIONS, CHAT):
        for name, fields in SAMPLING.items():
            marks = () if path == COMPLETIONS else pytest.mark.rare
            yield pytest.param(
                "POST", path, {}, partial(dumps, {**BASES[path], **fields}), id=f"{path} {name}", marks=marks
            )
    for name, (method, path, headers, body) in OTHERS.items():
        yield pytest.param(method, path, headers, body, id=name)


CASES = list(cases())


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "headers", "make"), CASES)
def test_no_request_breaks_anything(
    client: httpx.Client, method: str, path: str, headers: dict[str, str], make: Maker
) -> None:
    """Whatever is sent, it is answered or refused; the `client` then sees that the neighbours got the bytes of a quiet run."""
    body = make()
    response = client.request(method, path, content=body, headers=headers)
    gave_up = response.status_code == 504 and (b"timeout" in body or "X-Request-Timeout" in headers)
    assert response.status_code < 500 or gave_up, (response.status_code, response.text[:500])
    if path in BASES and method == "POST":
        assert response.status_code in DOCUMENTED
        if response.status_code != 200:
            assert_refused(response, response.status_code)


def test_there_are_more_than_a_hundred() -> None:
    assert len({case.id for case in CASES}) == len(CASES) > 200
