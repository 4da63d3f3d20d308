"""Each format reads the same however its text is cut; what is malformed stays content."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.front.parsers.calls import Call
from jaxengine.front.parsers.tools import TOOL_FORMATS, tool_parser
from tests.front.parsers.reading import pieces_of, read_calls

NOW = Call("now", "{}")


def weather(city: str, **more: object) -> Call:
    return Call("get_weather", json.dumps({"city": city, **more}, ensure_ascii=False))


QUOTED = 'a "</tool_call>" [TOOL_CALLS] {;'


def deepseek(text: str) -> str:
    """With the marks that DeepSeek's markers have."""
    return text.replace("|", "\uff5c").replace("_", "▁").replace("get▁weather", "get_weather")


KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"

GOOD = {
    "deepseek_v3": [
        (
            deepseek(
                "<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>now\n```json\n{}\n```<|tool_call_end|>"
            )
            + deepseek("<|tool_calls_end|>"),
            "",
            [NOW],
        ),
        (deepseek("<|tool_call_begin|>function<|tool_sep|>now\n```json\n{}\n```"), "", [NOW]),
        (
            "I call"
            + deepseek("<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>get_weather\n```json\n")
            + json.dumps({"city": QUOTED})
            + deepseek(
                "\n```<|tool_call_end|>\n<|tool_call_begin|>function<|tool_sep|>now\n```json\n{}\n```<|tool_call_end|>"
            )
            + deepseek("<|tool_calls_end|>"),
            "I call",
            [weather(QUOTED), NOW],
        ),
    ],
    "deepseek_v31": [
        (
            deepseek("<|tool_calls_begin|><|tool_call_begin|>now<|tool_sep|>{}<|tool_call_end|><|tool_calls_end|>"),
            "",
            [NOW],
        ),
        (
            "I call "
            + deepseek("<|tool_calls_begin|><|tool_call_begin|>get_weather<|tool_sep|>")
            + json.dumps({"city": QUOTED})
            + deepseek("<|tool_call_end|><|tool_call_begin|>now<|tool_sep|>{}<|tool_call_end|><|tool_calls_end|>"),
            "I call",
            [weather(QUOTED), NOW],
        ),
    ],
    "gemma4": [
        ("<|tool_call>call:now{}<tool_call|>", "", [NOW]),
        ("<|tool_call>call:now{}", "", [NOW]),
        (
            'I call <|tool_call>call:get_weather{city:<|"|>' + QUOTED + ' <tool_call|> "\\\n<|"|>,days:3}<tool_call|>'
            "<|tool_call>call:now{}<tool_call|>",
            "I call",
            [weather(QUOTED + ' <tool_call|> "\\\n', days=3), NOW],
        ),
        (
            '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>, of:{a:[1.5,-2e3, <|"|><|"|>],<|"|>b c<|"|>:null}, at:[],so:true}'
            "<tool_call|>",
            "",
            [weather("Oslo", of={"a": [1.5, -2e3, ""], "b c": None}, at=[], so=True)],
        ),
    ],
    "glm45": [
        ("<tool_call>now\n</tool_call>", "", [NOW]),
        (
            "I call\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value> x </arg_value> y</tool_call>\n</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now</tool_call>",
            "I call",
            [weather(" x </arg_value> y</tool_call>\n", days=3), NOW],
        ),
        (
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Zürich 🏔</arg_value></tool_call>",
            "",
            [weather("Zürich 🏔")],
        ),
    ],
    "granite": [
        ('<|tool_call|>[{"name": "now", "arguments": {}}]', "", [NOW]),
        ('<tool_call> {"name": "now"}', "", [NOW]),
        (
            f"I call <|tool_call|>{json.dumps([{'name': 'get_weather', 'arguments': {'city': QUOTED}}, {'name': 'now'}])}",
            "I call",
            [weather(QUOTED), NOW],
        ),
    ],
    "jamba": [
        ('<tool_calls>[\n{"name": "now", "arguments": {}}\n]</tool_calls>', "", [NOW]),
        ('<tool_calls>{"name": "now"}', "", [NOW]),
        (
            f"I call\n<tool_calls>{json.dumps([{'name': 'get_weather', 'arguments': {'city': QUOTED}}, {'name': 'now'}])}"
            "\n</tool_calls> and wait",
            "I call\n and wait",
            [weather(QUOTED), NOW],
        ),
    ],
    "internlm": [
        ('<|action_start|><|plugin|>\n{"name": "now", "parameters": {}}<|action_end|>', "", [NOW]),
        ('<|action_start|><|plugin|>{"name": "now"}', "", [NOW]),
        (
            "I call <|action_start|><|plugin|>"
            f"{json.dumps({'name': 'get_weather', 'parameters': {'city': QUOTED}})}\n<|action_end|>",
            "I call",
            [weather(QUOTED)],
        ),
    ],
    "kimi_k2": [
        (
            f"<|tool_calls_section_begin|>{KIMI.format('now', 0, '{}')}<|tool_calls_section_end|>",
            "",
            [Call("now", "{}", "functions.now:0")],
        ),
        (
            f"I call <|tool_calls_section_begin|> {KIMI.format('get_weather', 3, json.dumps({'city': QUOTED}))}\n"
            f"{KIMI.format('now', 4, '{}')}<|tool_calls_section_end|>",
            "I call",
            [
                Call("get_weather", weather(QUOTED).arguments, "functions.get_weather:3"),
                Call("now", "{}", "functions.now:4"),
            ],
        ),
    ],
    "minimax_m2": [
        ('<minimax:tool_call>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>', "", [NOW]),
        (
            'I call\n<minimax:tool_call>\n<invoke name="get_weather">\n'
            '<parameter name="city">x </parameter> y</invoke></parameter>\n'
            '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>\n<invoke name=now></invoke>',
            "I call",
            [weather("x </parameter> y</invoke>", days=3), NOW],
        ),
    ],
    "phi4_mini_json": [
        ('functools[{"name": "now", "arguments": {}}]', "", [NOW]),
        (
            f'I call functools[{json.dumps({"name": "get_weather", "arguments": {"city": QUOTED}})}, {{"name": "now"}}]',
            "I call",
            [weather(QUOTED), NOW],
        ),
    ],
    "xlam": [
        ('[{"name": "now", "arguments": {}}]', "", [NOW]),
        (
            f'I call [ {json.dumps({"name": "get_weather", "arguments": {"city": QUOTED}})}, {{"name": "now"}}]',
            "I call",
            [weather(QUOTED), NOW],
        ),
    ],
    "hermes": [
        ('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "", [NOW]),
        ('<tool_call>{"name": "now"}</tool_call>', "", [NOW]),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [NOW]),
        ('<tool_call>{"name": "now", "arguments": "{}"}', "", [NOW]),
        (
            f"Let me see.\n<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': {'city': QUOTED}})}\n</tool_call>\n"
            '<tool_call>{"name": "now"}</tool_call>\n',
            "Let me see.",
            [weather(QUOTED), NOW],
        ),
        (
            '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich 🏔"}}</tool_call> ok',
            "ok",
            [weather("Zürich 🏔")],
        ),
        (
            '<tool_call>{"name": "get_weather", "arguments": {"city": "\\ud800"}}</tool_call>',
            "",
            [Call("get_weather", '{"city": "\\ud800"}')],
        ),
    ],
    "llama3_json": [
        ('{"name": "now", "parameters": {}}', "", [NOW]),
        ('<|python_tag|>{"name": "now"}', "", [NOW]),
        ('{"type": "function", "name": "now", "parameters": {}}', "", [NOW]),
        (
            f'I call {json.dumps({"name": "get_weather", "parameters": {"city": QUOTED}})}; {{"name": "now"}}',
            "I call",
            [weather(QUOTED), NOW],
        ),
        ('<|python_tag|>{"name": "now"}; <|python_tag|>{"name": "now"} done; yes', "done; yes", [NOW, NOW]),
        ('{"name": "get_weather", "parameters": {"city": "Zürich 🏔"}}', "", [weather("Zürich 🏔")]),
    ],
    "mistral": [
        ('[TOOL_CALLS][{"name": "now", "arguments": {}}]', "", [NOW]),
        ("[TOOL_CALLS]now{}", "", [NOW]),
        ("[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[CALL_ID]a1[ARGS]{}", "", [NOW, NOW]),
        (
            f"I call [TOOL_CALLS] {json.dumps([{'name': 'get_weather', 'arguments': {'city': QUOTED}}, {'name': 'now'}])} ok",
            "I call  ok",
            [weather(QUOTED), NOW],
        ),
        ('[TOOL_CALLS]get_weather[ARGS]{"city": "Zürich 🏔"}', "", [weather("Zürich 🏔")]),
    ],
    "openai": [
        ("<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>", "", [NOW]),
        (" to=functions.now<|channel|>commentary json<|message|>{}", "", [NOW]),
        ("<|start|>assistant<|channel|>commentary to=functions.now<|message|><|call|>", "", [NOW]),
        (
            "I call<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
            f"{json.dumps({'city': QUOTED})}<|end|>"
            "<|start|>assistant to=functions.now<|channel|>commentary<|message|>{}<|call|>",
            "I call",
            [weather(QUOTED), NOW],
        ),
        (
            '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Zürich 🏔"}',
            "",
            [weather("Zürich 🏔")],
        ),
    ],
    "pythonic": [
        ("[now()]", "", [NOW]),
        ("[ now( ) , get_weather(city='it\\'s', days=3)]", "", [NOW, weather("it's", days=3)]),
        (f"I call [get_weather(city={QUOTED!r}), now()] ok", "I call  ok", [weather(QUOTED), NOW]),
        (
            "[get_weather(city='x', days={'a': [1.5, -2, (None, true)]})]",
            "",
            [weather("x", days={"a": [1.5, -2, [None, True]]})],
        ),
        ("[get_weather(city='Zürich 🏔')]", "", [weather("Zürich 🏔")]),
    ],
    "qwen3_coder": [
        ("<tool_call>\n<function=now>\n</function>\n</tool_call>", "", [NOW]),
        ("<function=now></function>", "", [NOW]),
        (
            "I call\n<tool_call>\n<function=get_weather>\n<parameter=city>\nx </parameter> y </function>\n\n z\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
            "I call",
            [weather("x </parameter> y </function>\n\n z", days=3), NOW],
        ),
        (
            "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\nsoon\n</parameter>\n"
            "</function>\n</tool_call>",
            "",
            [weather("12", days="soon")],
        ),
        ("<function=get_weather><parameter=city>Zürich 🏔</parameter></function>", "", [weather("Zürich 🏔")]),
    ],
}

MALFORMED = {
    "deepseek_v3": [
        deepseek("<|tool_calls_begin|>"),
        deepseek("<|tool_calls_begin|> so"),
        deepseek("<|tool_call_begin|>now<|tool_sep|>{}<|tool_call_end|>"),
        deepseek("<|tool_call_begin|>function<|tool_sep|>now\n```json\n{]\n```<|tool_call_end|>"),
        deepseek("<|tool_call_begin|>function<|tool_sep|>now\n```json\n{} and<|tool_call_end|>"),
        deepseek("<|tool_call_begin|>function<|tool_sep|>now\n```json\n{"),
        deepseek("<|tool_call_begin|>") + "a" * 600,
    ],
    "deepseek_v31": [
        deepseek("<|tool_call_begin|>"),
        deepseek("<|tool_call_begin|>now{}<|tool_call_end|>"),
        deepseek("<|tool_call_begin|>now<|tool_sep|>{}<|tool_"),
    ],
    "glm45": [
        "<tool_call>",
        "<tool_call> so it is </tool_call>",
        '<tool_call>{"name": "now"}</tool_call>',
        "<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>1",
        "<tool_call>now\ntext</tool_call>",
        "<tool_call>now\nx" + "</tool_call>" * 100,
    ],
    "gemma4": [
        "<|tool_call>",
        "<|tool_call> so",
        "<|tool_call>call:now",
        "<|tool_call>call:now{} so<tool_call|>",
        "<|tool_call>call:now{a:bare}<tool_call|>",
        '<|tool_call>call:now{a:<|"|>x}<tool_call|>',
        "<|tool_call>call:now{a:1 b:2}<tool_call|>",
        "<|tool_call>call:now{a:NaN}<tool_call|>",
        "<|tool_call>call:now{a:" + "[" * 5000 + "]" * 5000 + "}<tool_call|>",
    ],
    "granite": [
        "<|tool_call|>",
        "<tool_call> so",
        "<tool_call>[1]",
        '<|tool_call|>[{"name": 3}]',
        '<|tool_call|>[{"name": "now"}',
    ],
    "jamba": ["<tool_calls>", "<tool_calls> so", "<tool_calls>[1]</tool_calls>", '<tool_calls>[{"name": "now"}'],
    "internlm": [
        "<|action_start|>",
        "<|action_start|><|plugin|>",
        "<|action_start|><|plugin|> {1}",
        "<|action_start|><|plugin|>[]",
    ],
    "kimi_k2": [
        "<|tool_calls_section_begin|>",
        KIMI.format("now", "x", "{}"),
        KIMI.format("now", 0, "[1]"),
        "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{",
    ],
    "minimax_m2": [
        "<minimax:tool_call>",
        "<minimax:tool_call> so",
        "<invoke name=",
        '<invoke name="now">text</invoke>',
    ],
    "phi4_mini_json": ["functools", "functools[]", "functools[1]", 'functools[{"name": "now"', "functools so"],
    "xlam": ["[", "[]", "[1, 2]", '[{"a": 1}]', '[{"name": "now"}, 1]'],
    "hermes": [
        "<tool_call>",
        "use <tool_call> so",
        '<tool_call>{"name": "now"',
        '<tool_call>{"name": now}</tool_call> x',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "now"} and more</tool_call>',
        '<tool_call>{"a": ]}</tool_call>',
        '<tool_call>{"name": "now", "arguments": ' + '{"a": ' * 3000 + "}" * 3001 + "</tool_call>",
    ],
    "llama3_json": [
        '{"name": "Ada"}',
        '{"a": {"name": "now"}, "b": "\\"{"}',
        '{"a": {"name": "now"}',
        '{"a": "\\',
        '{"name": "now", "parameters": 3}',
        '{"name": "now"',
        "<|python_tag|>print(1)",
        "set {1, 2}; {",
    ],
    "mistral": [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] none",
        "[TOOL_CALLS]now",
        "[TOOL_CALLS][1]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]now[ARGS][1]",
    ],
    "openai": [
        "<|channel|>",
        "<|channel|>final<|message|>yes",
        "<|start|>assistant<|channel|>commentary to=browser.open<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{<|call|>",
        "<|channel|>commentary to=functions.now",
        "say to=functions.now",
    ],
    "pythonic": [
        "[now(1)]",
        "[now(",
        "[now(**x)]",
        "[1, 2]",
        "[a](b)",
        "[now(a=b'x')]",
        "[now(a={1: 2})]",
        "[now(a=x)]",
        "[now(a=1e999)]",
        "[now()] ]"[:5],
        "[now(a=" + "[" * 5000 + "]" * 5000 + ")]",
    ],
    "qwen3_coder": [
        "<tool_call>",
        "<tool_call> so",
        "<function=now",
        "<tool_call>\n<function=now>\n<parameter=a>\n1",
        "<function=now>text</function>",
        "<function=></function>",
        "<function=now>x" + "</function>" * 100,
    ],
}
GOOD["qwen3_xml"], MALFORMED["qwen3_xml"] = GOOD["qwen3_coder"], MALFORMED["qwen3_coder"]  # one format, two names
GOOD["llama4_json"], MALFORMED["llama4_json"] = GOOD["llama3_json"], MALFORMED["llama3_json"]
GOOD["llama4_pythonic"] = [
    *GOOD["pythonic"],
    ("<|python_start|>[get_weather(city='x'), now()]<|python_end|>", "", [weather("x"), NOW]),
    ("I call <|python_start|>\n[now()]\n<|python_end|>", "I call", [NOW]),
    ("<|python_start|>print(1)<|python_end|>", "print(1)", []),
]
MALFORMED["llama4_pythonic"] = MALFORMED["pythonic"]


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in GOOD.items() for case in cases])
def test_calls_are_found_whole_and_byte_by_byte(name: str, case: tuple[str, str, list[Call]]) -> None:
    text, content, calls = case
    assert read_calls(name, [text]) == (content, calls)
    assert read_calls(name, list(text)) == (content, calls)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MALFORMED.items() for text in texts])
def test_what_is_malformed_is_content(name: str, text: str) -> None:
    assert read_calls(name, [text]) == (text, [])
    assert read_calls(name, list(text)) == (text, [])


def test_an_object_that_turns_out_to_be_content_is_followed_from_where_it_was() -> None:
    """`a` may begin `arguments` until its quote comes."""
    text = '{"a": {"name": "now"}I call {"name": "now", "parameters": {"city": "{"}}; {"name": "now"}'
    assert read_calls("llama3_json", [text]) == read_calls("llama3_json", list(text)) == (text, [])


@pytest.mark.parametrize("behind", [";<tool_call>", "; <|py", '; <|python_tag|>{"name": "now", "parameters": {}}'])
def test_what_begins_like_a_tag_behind_a_call_is_waited_for(behind: str) -> None:
    text = '{"name": "now", "parameters": {}}' + behind
    whole = read_calls("llama3_json", [text])
    assert read_calls("llama3_json", list(text)) == whole
    assert len(whole[1]) == behind.count("python_tag") + 1


@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_cuts_do_not_matter(name: str, data: st.DataObject) -> None:
    """Good calls, bad ones, text and loose fragments in any order."""
    fragments = [text for text, _, _ in GOOD[name]] + [text for text in MALFORMED[name] if len(text) < 200]
    loose = [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "<|python_start|>",
        "<|start|>assistant",
        "<|channel|>",
        "<|message|>",
        "<|call|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
        deepseek("<|tool_call_begin|>"),
        deepseek("<|tool_call_end|>"),
        "```",
        "</arg_value>",
        "<arg_key>",
        "</invoke>",
        "<|action_end|>",
        '<|"|>',
        "<tool_call|>",
        "functools",
        "to=functions.",
        "{",
        "}",
        '"',
        "\\",
        "[",
        "]",
        " ",
        "\n",
        ";",
        "é🏔",
        "now(",
    ]
    parts = data.draw(st.lists(st.sampled_from(fragments + loose) | st.text(max_size=6), max_size=7))
    text = "".join(parts)
    whole = read_calls(name, [text])
    assert read_calls(name, list(text)) == whole
    assert read_calls(name, pieces_of(text, data.draw(st.lists(st.integers(0, 400), max_size=12)))) == whole
    for call in whole[1]:
        assert isinstance(json.loads(call.arguments), dict)
        call.arguments.encode()


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_plain_text_passes_at_once_and_unchanged(name: str) -> None:
    from jaxengine.front.parsers.tools import tool_parser
    from tests.front.parsers.reading import FUNCTIONS

    parser = tool_parser(name, FUNCTIONS)
    assert parser.feed("  Hello, ") == ["  Hello,"]
    assert parser.feed("world.\n") == [" world."]
    assert parser.finish() == ["\n"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "x\\"}', [("f", '{"a": "x\\"}')]),
        ("hermes", '<tool_call>\n{"name": "f", "argu', [("f", "")]),
        ("hermes", '<tool_call>\n{"na', []),
        ("llama3_json", '{"name": "f", "parameters": {"a": [1, 2], "b": 3}', [("f", '{"a": [1, 2], "b": 3}')]),
        (
            "mistral",
            '[TOOL_CALLS][{"name": "f", "arguments": {"name": "g"}}, {"name": "h", "arguments": {"a": 1',
            [("f", '{"name": "g"}'), ("h", '{"a": 1')],
        ),
        (
            "openai",
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "x',
            [("f", '{"a": "x')],
        ),
        ("openai", "<|channel|>commentary to=functions.f", []),
        (
            "deepseek_v3",
            deepseek('<|tool_call_begin|>function<|tool_sep|>f\n```json\n{"a": 1'),
            [("f", '{"a": 1')],
        ),
        (
            "deepseek_v31",
            deepseek('<|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>{"a": 1}<'),
            [("f", '{"a": 1}')],
        ),
        ("gemma4", '<|tool_call>call:f{a:<|"|>x, y{<|"|>,b:[1, 2', [("f", '{"a": "x, y{"')]),
        ("gemma4", "<|tool_call>call:f{a:", [("f", "{")]),
        ("gemma4", "<|tool_call>call:f", []),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b", [("f", '{"a": "1"')]),
        ("granite", '<|tool_call|>[{"name": "f", "arguments": {"a": 1', [("f", '{"a": 1')]),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_arg", []),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="f">\n', [("f", "{")]),
        ("pythonic", "[f(a='x, y(', b=[1, 2", [("f", '{"a": "x, y("')]),
        ("pythonic", "[f(a=1), h(", [("f", '{"a": 1}'), ("h", "{")]),
        ("pythonic", "[f(a=1), h", [("f", '{"a": 1}')]),
        ("pythonic", "[f", []),
        ("llama4_pythonic", "<|python_start|>[f(a=1), h(", [("f", '{"a": 1}'), ("h", "{")]),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2",
            [("f", '{"a": "1"')],
        ),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<par", [("f", "{")]),
        ("qwen3_coder", "<tool_call>\n<func", []),
    ],
)
def test_calls_that_were_cut_are_told_as_far_as_they_came(name: str, text: str, told: list[tuple[str, str]]) -> None:
    for step in (1, 1000):
        parser = tool_parser(name, [])
        pieces = [piece for at in range(0, len(text), step) for piece in parser.feed(text[at : at + step])]
        pieces += parser.finish(cut=True)
        assert [(call.name, call.arguments) for call in pieces] == told
