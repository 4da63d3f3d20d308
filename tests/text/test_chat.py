"""Chat templates render byte for byte as transformers renders them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import CheckpointError, RequestError, UnsupportedError
from jaxengine.text.tokenizer import Tokenizer
from tests.text import tiny

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a <place> & time, für jeden",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln"}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hi <there> & 😀"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\nsum\n</think>\n\n2"},
        {"role": "user", "content": " and 2+2? "},
    ],
    "reasoning": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2", "reasoning": "easy"},
        {"role": "user", "content": "sure?"},
    ],
    "tools": [
        {"role": "user", "content": "Weather in Köln?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": '{"sky": "clear"}', "tool_call_id": "c1"},
    ],
}
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|' + m.role + '|>' }}\n{{ m['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "blocks": """{%- set ns = namespace(count=0) %}
{% for message in messages %}
    {% if message.role == 'tool' %}
        {% continue %}
    {% endif %}
    {% generation %}{{ bos_token }}{{ message.content }}{% endgeneration %}
    {%- set ns.count = ns.count + 1 %}
{% endfor %}
{{ ns.count }} {{ tools | tojson(indent=2) if tools else 'none' }} {{ dict(a=1)['a'] }} {{ greeting }}
""",
}


def pair(path: Path) -> tuple[Tokenizer, Any]:
    transformers = pytest.importorskip("transformers")
    return Tokenizer.load(path), transformers.AutoTokenizer.from_pretrained(str(path))


def agree(ours: Tokenizer, theirs: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    text = ours.apply_chat_template(messages, **options)
    options.setdefault("add_generation_prompt", True)
    assert text == theirs.apply_chat_template(messages, tokenize=False, **options)
    return text


@pytest.fixture(scope="module")
def qwen3(shared: Path) -> tuple[Tokenizer, Any]:
    return pair(shared / "tokenizers/qwen3")


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize(
    "options", [{}, {"add_generation_prompt": False}, {"tools": [WEATHER]}, {"enable_thinking": False}]
)
def test_qwen3_template(qwen3: tuple[Tokenizer, Any], name: str, options: dict[str, Any]) -> None:
    ours, theirs = qwen3
    agree(ours, theirs, CONVERSATIONS[name], **options)


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("options", [{}, {"tools": [WEATHER]}, {"greeting": "hello"}])
def test_small_templates(tmp_path: Path, name: str, template: str, options: dict[str, Any]) -> None:
    source = TEMPLATES[template]
    ours, theirs = pair(tiny.write(tmp_path, tiny.byte_level(), chat_template=source))
    agree(ours, theirs, CONVERSATIONS[name], **options)


@pytest.mark.parametrize("ending", ["The sky", "The sky "])
@pytest.mark.parametrize("template", ["chatml", "blocks"])
def test_the_final_message_is_continued(tmp_path: Path, template: str, ending: str) -> None:
    ours, theirs = pair(tiny.write(tmp_path, tiny.byte_level(), chat_template=TEMPLATES[template]))
    messages = [*CONVERSATIONS["one"], {"role": "assistant", "content": ending}]
    text = agree(ours, theirs, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith((ending.rstrip(), ending))


def test_the_embedded_model_template() -> None:
    path = Path(__file__).parents[2] / "jaxengine/embedded/checkpoint"
    if not (path / "tokenizer.json").is_file():
        pytest.skip("the embedded checkpoint is not built")
    ours, theirs = pair(path)
    for name in ("one", "system", "turns", "tools"):
        agree(ours, theirs, CONVERSATIONS[name], tools=[WEATHER])
        agree(ours, theirs, CONVERSATIONS[name])


def test_templates_come_from_files_lists_and_options(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    path = tiny.write(tmp_path, tiny.byte_level(), chat_template=named)
    ours, theirs = pair(path)
    messages = CONVERSATIONS["one"]
    assert agree(ours, theirs, messages) == "D"
    assert agree(ours, theirs, messages, tools=[WEATHER]) == "T"
    assert agree(ours, theirs, messages, chat_template="tool_use") == "T"
    assert agree(ours, theirs, messages, chat_template="{{ messages[0].role }}") == "user"
    (path / "chat_template.jinja").write_text("file")
    (path / "chat_templates").mkdir()
    (path / "chat_templates/short.jinja").write_text("short")
    ours, theirs = pair(path)
    assert agree(ours, theirs, messages) == "file"
    assert agree(ours, theirs, messages, chat_template="short") == "short"
    (path / "own.jinja").write_text("{{ messages | length }} own")
    assert Tokenizer.load(path, chat_template=str(path / "own.jinja")).apply_chat_template(messages) == "1 own"
    assert Tokenizer.load(path, chat_template="{{ eos_token }}!").apply_chat_template(messages) == "</s>!"
    with pytest.raises(CheckpointError, match=r"chat_template '\{\{ broken': the chat template is not valid jinja"):
        Tokenizer.load(path, chat_template="{{ broken")


PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
LOOPS = "{% for m in messages %}{% for part in m['content'] %}[{{ part.text }}]{% endfor %}{% endfor %}"
ALIAS = "{% for m in messages %}{% set c = m.content %}{% for part in c %}[{{ part.text }}]{% endfor %}{% endfor %}"
MACRO = (
    "{% macro show(c, d=None) %}{% if c is string %}{{ c }}{% else %}{% for part in c %}[{{ part.text }}]{% endfor %}{% endif %}"
    "{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}"
)
CALLS = (
    "{% for m in messages %}{% if m.tool_calls is defined %}{% set calls = m.tool_calls %}{% else %}{% set calls = m.content %}"
    "{% endif %}{% if m.role == 'tool' %}{% for call in calls %}{{ call }}{% endfor %}{% endif %}{{ m.content }}{% endfor %}"
)
STRING = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "content_format", "expected"),
    [
        (LOOPS, "auto", "[a][b]"),
        (ALIAS, "auto", "[a][b]"),
        (MACRO, "auto", "[a][b]"),
        (MACRO.replace("show(m.content)", "show(c=m['content'])"), "auto", "[a][b]"),
        (MACRO.replace("show(m.content)", "show(m.role)"), "auto", "user"),
        (CALLS, "auto", "a\nb"),
        (STRING, "auto", "a\nb"),
        (LOOPS, "string", "[][][]"),
        (STRING, "openai", "[{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]"),
    ],
)
def test_text_parts_come_as_the_template_reads_them(template: str, content_format: str, expected: str) -> None:
    tokenizer = tiny.byte_level()
    text = tokenizer.apply_chat_template(PARTS, chat_template=template, content_format=content_format)
    assert text == expected


def test_a_string_becomes_a_part_for_a_template_that_loops() -> None:
    text = tiny.byte_level().apply_chat_template([{"role": "user", "content": "ab"}], chat_template=LOOPS)
    assert text == "[ab]"


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        (CONVERSATIONS["one"], {}, "no chat template. Start with one"),
        (
            CONVERSATIONS["one"],
            {"chat_template": "{{ raise_exception('roles must alternate') }}"},
            "roles must alternate",
        ),
        (CONVERSATIONS["one"], {"chat_template": "{% for %}"}, "not valid jinja"),
        (CONVERSATIONS["one"], {"chat_template": "{{ messages[0].content + 1 }}"}, "TypeError"),
        (CONVERSATIONS["one"], {"chat_template": "{{ messages.append(1) }}"}, "refused"),
        (CONVERSATIONS["one"], {"chat_template": "{{ ''.__class__.__mro__ }}"}, "refused"),
        (CONVERSATIONS["one"], {"chat_template": "{% set n = namespace(_x=1) %}"}, "underscore"),
        (CONVERSATIONS["one"], {"chat_template": "x", "continue_final_message": True}, "exclude each other"),
        (
            CONVERSATIONS["one"],
            {"chat_template": "x", "continue_final_message": True, "add_generation_prompt": False},
            "drops or changes",
        ),
        (CONVERSATIONS["one"], {"chat_template": "x", "tools": [print]}, "a tool is a JSON schema"),
        (CONVERSATIONS["one"], {"chat_template": "x", "content_format": "xml"}, "auto, string or openai"),
        ([], {"chat_template": "x"}, "non-empty list"),
        ("hi", {"chat_template": "x"}, "non-empty list"),
        ([{"content": "x"}], {"chat_template": "x"}, "message 0 must be a dict with a role"),
        ([{"role": "user", "content": 3}], {"chat_template": "x"}, "text or a list of parts"),
        ([{"role": "user", "content": [{"type": "text"}]}], {"chat_template": "x"}, "has no text"),
    ],
)
def test_what_is_wrong_is_said(messages: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        tiny.byte_level().apply_chat_template(messages, **options)


@pytest.mark.parametrize(
    "field", [{"function_call": {"name": "f", "arguments": "{}"}}, {"audio": {"id": "a"}}], ids=str
)
def test_what_no_template_reads_of_a_message_is_refused(field: dict[str, Any]) -> None:
    [name] = field
    with pytest.raises(UnsupportedError, match=f"message 0 has {name}, which is not supported"):
        tiny.byte_level().apply_chat_template([{"role": "assistant", "content": None, **field}], chat_template="x")
    said = [{"role": "assistant", "content": "Hi", name: None}]
    assert tiny.byte_level().apply_chat_template(said, chat_template="x") == "x"


def test_a_refusal_is_what_the_model_said() -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    messages = [{"role": "assistant", "content": content, "refusal": "No"} for content in (None, "Yes")]
    assert tiny.byte_level().apply_chat_template(messages, chat_template=template) == "[No][Yes]"


def test_pictures_are_refused_by_name() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(UnsupportedError, match="image_url"):
        tiny.byte_level().apply_chat_template(messages, chat_template="x")


def test_several_templates_without_a_default_name_the_choices(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "R"}, {"name": "tool_use", "template": "T"}]
    ours = Tokenizer.load(tiny.write(tmp_path, tiny.byte_level(), chat_template=named))
    with pytest.raises(RequestError, match=r"rag.*tool_use"):
        ours.apply_chat_template(CONVERSATIONS["one"])
    assert ours.apply_chat_template(CONVERSATIONS["one"], chat_template="rag") == "R"
