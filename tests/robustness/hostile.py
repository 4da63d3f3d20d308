"""Hostile requests: a corpus of values that have broken servers, and strategies that mix them into bodies."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

POSTS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize"),
    *("/v1/messages", "/v1/messages/count_tokens", "/invocations", "/v1/responses/input_tokens"),
    *("/pooling", "/score", "/rerank", "/v2/embed"),
)
NAMED = ("/v1/models/", "/v1/responses/")
DOCUMENTED = frozenset({200, 400, 401, 403, 404, 405, 413, 429, 503, 504})

LONE_SURROGATE = "\ud800"
NAMES = (
    *(
        "../../../etc/passwd",
        "..\\..\\boot.ini",
        "/etc/passwd",
        "file:///etc/passwd",
        "http://127.0.0.1:1/x",
        "a/b",
        "..",
        ".",
    ),
    *("%2e%2e%2f", "con", "nul\x00.bin", "embedded", "{{7*7}}", "${jndi:ldap://x}", "' OR 1=1 --", "x" * 5000, ""),
)
TEXTS = (
    *NAMES,
    *(
        "\x00",
        "\x1b[2J",
        "\u202e",
        "\ufeff",
        LONE_SURROGATE,
        "\udfff\ud800",
        "\U0010ffff",
        "\r\nX-Injected: 1",
        "<|im_end|>",
    ),
    *("{% for i in range(10**9) %}x{% endfor %}", "{{ ''.__class__.__mro__ }}", "(a+)+$", "[" * 3000, "é" * 3000),
    *("data: [DONE]\n\n", "NaN", "null", "-0", "1e999", "0x10", "\n" * 2000),
)
NUMBERS = (
    *(
        0,
        -1,
        1,
        2,
        3,
        7,
        16,
        127,
        128,
        129,
        511,
        512,
        513,
        2**31 - 1,
        2**31,
        -(2**31),
        2**32,
        2**53 + 1,
        2**63 - 1,
        2**63,
    ),
    *(-(2**63), -(2**63) - 1, 2**64, 10**40, 10**400, 0.0, -0.0, 0.5, 1e-45, 5e-324, 1e308, -1e308, 1.5, 1e30),
    *(float("nan"), float("inf"), float("-inf")),
)
SHAPES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [{}], {"": ""}, [None], {"type": None}, [[[[[[[[[[]]]]]]]]]]),
    *(
        {"$ref": "#"},
        {"type": "object"},
        {"type": "json_schema"},
        {"type": "image_url", "image_url": {"url": "http://x/"}},
    ),
    *([{"role": "user"}], [{"role": None, "content": []}], [{"role": "user", "content": "hi"}], [{"content": "hi"}]),
    *([{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/nowhere"}}}], [0] * 700, ["a"] * 300),
    {"role": "user", "content": [{"type": "text", "text": {"type": "text"}}]},
    [
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": []}]}],
        }
    ],
    [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "f", "input": [1]}, {"type": "thinking"}],
        }
    ],
    [{"name": "f", "input_schema": {"$ref": "#/nowhere"}}],
    {"type": "tool", "name": "f"},
)
FIELDS = (
    *("model", "prompt", "messages", "input", "tokens", "n", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("stop_token_ids", "logit_bias", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "presence_penalty"),
    *(
        "frequency_penalty",
        "repetition_penalty",
        "min_tokens",
        "allowed_token_ids",
        "bad_words",
        "stream",
        "stream_options",
    ),
    *(
        "truncate_prompt_tokens",
        "priority",
        "cache_salt",
        "request_id",
        "return_token_ids",
        "add_special_tokens",
        "tools",
    ),
    *("tool_choice", "parallel_tool_calls", "response_format", "structured_outputs", "guided_json", "guided_regex"),
    *(
        "guided_choice",
        "guided_grammar",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
    ),
    *("add_generation_prompt", "reasoning_effort", "instructions", "previous_response_id", "store", "include", "text"),
    *("reasoning", "background", "metadata", "user", "suffix", "best_of", "ignore_eos", "skip_special_tokens", "role"),
    *("encoding_format", "dimensions", "normalize", "use_activation", "embed_dtype", "endianness"),
    *("system", "thinking", "stop_sequences", "output_config", "max_tokens"),
    *("return_token_strs", "add_bos", "__class__", "self", "\x00", "x" * 2000),
)
BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a cat", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/embeddings": {"input": "a cat"},
    "/tokenize": {"prompt": "a cat"},
    "/detokenize": {"tokens": [5, 6, 7]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/invocations": {"prompt": "a cat", "max_tokens": 2},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/pooling": {"input": "a cat"},
    "/score": {"text_1": "a cat", "text_2": "a dog"},
    "/rerank": {"query": "a cat", "documents": ["a dog"]},
    "/v2/embed": {"texts": ["a cat"]},
}


def dumps(body: Any) -> bytes:
    """JSON, and what is nearly JSON: NaN, numbers of any size, lone surrogates as escapes."""
    return json.dumps(body).encode()


scalars = st.one_of(
    st.sampled_from(TEXTS),
    st.sampled_from(NUMBERS),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.booleans(),
    st.none(),
)
values = st.one_of(
    st.sampled_from(SHAPES),
    st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(st.text(max_size=10) | st.sampled_from(FIELDS), inner, max_size=4),
        ),
        max_leaves=10,
    ),
)
lengths = st.sampled_from((0, 1, 2, 3, -1, 513, 10**9, 2**63, 1.5, "3", [3]))


@st.composite
def bodies(draw: st.DrawFn, path: str) -> bytes:
    """A body for `path`: a good one with some fields replaced or added, at times cut, spliced or not an object at all."""
    body: Any = dict(BASES[path])
    body |= draw(st.dictionaries(st.sampled_from(FIELDS), values, max_size=5))
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if draw(st.integers(0, 9)) == 0:
            body[name] = draw(lengths)
    if draw(st.integers(0, 19)) == 0:
        body = draw(values)
    raw = dumps(body)
    damage = draw(st.integers(0, 19))
    if damage == 0:
        raw = raw[: draw(st.integers(0, len(raw)))]
    elif damage == 1:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=8)) + raw[at:]
    elif damage == 2:
        raw = raw[:-1] + b"," + raw[1:]
    return raw


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, bytes]:
    """Method, path and body."""
    if draw(st.integers(0, 19)) == 0:
        name = draw(st.sampled_from(NAMES) | st.text(max_size=20))
        encoded = quote(name.encode("utf-8", "surrogatepass"), safe="")
        return draw(st.sampled_from(("GET", "DELETE", "POST"))), draw(st.sampled_from(NAMED)) + encoded, b""
    path = draw(st.sampled_from(POSTS))
    return "POST", path, draw(bodies(path))
