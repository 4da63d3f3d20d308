"""Compiling: what is cached, what is refused, and what a hostile grammar cannot do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from jaxengine.contract.answer_form import AnswerForm, Thinking
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import RequestError
from jaxengine.grammar.checking import CheckerError, GrammarChecker
from jaxengine.grammar.compiler import GrammarCompiler
from jaxengine.grammar.matching import Grammar, GrammarError, GrammarState
from jaxengine.grammar.sources import GrammarLimits, GrammarSources
from jaxengine.text.tokenizer import Tokenizer
from tests.grammar.characters import CHARACTERS, Grammars, character_grammars
from tests.harness import EOS, VOCAB
from tests.text import tiny

END = "\0"
SLOW = {"type": "string", "allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(10, 40)]}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = character_grammars()
    yield grammars
    grammars.close()


def allowed_after(grammar: Grammar, text: str, *, may_end: bool = True) -> str:
    """The characters that may follow a text, END among them."""
    state = grammar.start(may_end=may_end)
    state.advance(np.array([CHARACTERS.index(character) for character in text], np.int32))
    [mask] = GrammarState.masks([state])
    if isinstance(mask, GrammarError):
        raise mask
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return "".join(END if token == EOS else CHARACTERS[token] for token in ids)


def test_masks_allow_exactly_what_may_follow(grammars: Grammars) -> None:
    grammar = grammars.compile(StructuredOutputsParams(regex="(ab|ac)+d?"))
    assert allowed_after(grammar, "") == "a"
    assert allowed_after(grammar, "a") == "bc"
    assert set(allowed_after(grammar, "ab")) == set("ad" + END)
    assert allowed_after(grammar, "abd") == END
    assert set(allowed_after(grammar, "ab", may_end=False)) == set("ad")
    assert allowed_after(grammar, "abd", may_end=False) == END


def test_sequences_do_not_disturb_each_other(grammars: Grammars) -> None:
    grammar = grammars.compile(StructuredOutputsParams(regex="x[0-9]{3}"))
    states = [grammar.start(may_end=True) for _ in range(3)]
    states[1].advance(np.array([CHARACTERS.index("x")], np.int32))
    first, second, third = GrammarState.masks(states)
    assert np.array_equal(first, third)
    assert not np.array_equal(first, second)
    assert allowed_after(grammar, "") == "x"


@pytest.mark.parametrize("sign", ["", "?", "!", "!?"])
def test_larks_signs_of_parse_trees_change_nothing(grammars: Grammars, sign: str) -> None:
    rules = f'{sign}start: item ("," item)*\n{sign}item: "a" | "(" start ")"'
    grammar = grammars.compile(StructuredOutputsParams(grammar=rules))
    assert set(allowed_after(grammar, "a,(a")) == set(",)")
    gbnf = grammars.compile(StructuredOutputsParams(grammar='root ::= "a" item\nitem ::= ("b" "?start: c")'))
    assert allowed_after(gbnf, "ab") == "?"


def test_white_space_is_bounded(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammar = grammars.compile(StructuredOutputsParams(json=schema))
    assert set(allowed_after(grammar, "{")) == set(' "')  # this tokenizer has no line breaks
    assert allowed_after(grammar, "{ ") == '"'
    compact = grammars.compile(StructuredOutputsParams(json=schema, disable_any_whitespace=True))
    none = grammars.compile(StructuredOutputsParams(json=schema, whitespace_pattern=""))
    for without in (compact, none):
        assert allowed_after(without, "{") == '"'
        assert " " not in allowed_after(without, '{"a":')


def test_no_further_properties_where_that_is_asked(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"properties": {"type": "integer"}}, "required": ["properties"]}
    text = '{"properties":1'
    assert "," in allowed_after(grammars.compile(StructuredOutputsParams(json=schema)), text)
    closed = grammars.compile(StructuredOutputsParams(json=schema, disable_additional_properties=True))
    assert "," not in allowed_after(closed, text)


@pytest.mark.parametrize(("side", "work"), [(GrammarSources, "_try"), (GrammarCompiler, "_compile")])
def test_a_grammar_is_tried_and_compiled_once_however_many_ask(
    side: type, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    do = getattr(side, work)

    def counting(self: object, key: object) -> object:
        done.append(key)
        return do(self, key)

    monkeypatch.setattr(side, work, counting)
    grammars = character_grammars()
    params = StructuredOutputsParams(regex="once[0-9]")
    assert not grammars.is_ready(params)
    found: list[Grammar] = []
    threads = [threading.Thread(target=lambda: found.append(grammars.compile(params))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    grammars.close()
    assert len(set(map(id, found))) == 1
    assert len(done) == 1
    assert grammars.is_ready(params)


def test_a_source_that_does_not_compile_is_the_requests_fault() -> None:
    grammars = character_grammars()
    with pytest.raises(RequestError, match="structured_outputs cannot be used"):
        grammars.compiler.begin('{"grammars": [{"lark_grammar": "start: nowhere"}]}').result(timeout=60)
    grammars.close()


def test_the_cache_forgets_the_oldest() -> None:
    grammars = character_grammars(GrammarLimits(cache_size=2))
    try:
        forms = [StructuredOutputsParams(regex=letter) for letter in "abc"]
        for form in (forms[0], forms[1], forms[0], forms[2]):
            grammars.compile(form)
        assert [grammars.is_ready(form) for form in forms] == [True, False, True]
    finally:
        grammars.close()


def test_large_grammars_crowd_out_others() -> None:
    grammars = character_grammars(GrammarLimits(cache_bytes=100))
    try:
        small = [StructuredOutputsParams(regex=letter) for letter in "ab"]
        large = StructuredOutputsParams(regex="c" * 90)
        largest = StructuredOutputsParams(regex="d" * 120)
        for form in (*small, large):
            grammars.compile(form)
        assert [grammars.is_ready(form) for form in (*small, large)] == [True, True, True]
        grammars.compile(largest)
        assert [grammars.is_ready(form) for form in (*small, large, largest)] == [False, False, False, True]
        grammars.compile(small[0])
        assert [grammars.is_ready(form) for form in (*small, large, largest)] == [True, False, False, False]
    finally:
        grammars.close()


def test_one_that_takes_too_long_is_refused_and_the_next_is_fine() -> None:
    grammars = character_grammars(GrammarLimits(compile_timeout_s=1.0))
    try:
        for _ in range(2):  # the second time from the cache
            with pytest.raises(RequestError, match="takes longer than 1 s to compile"):
                grammars.compile(StructuredOutputsParams(json=SLOW))
        assert allowed_after(grammars.compile(StructuredOutputsParams(regex="a")), "") == "a"
    finally:
        grammars.close()


def test_one_that_crashes_the_compiler_is_refused_and_the_next_is_fine(grammars: Grammars) -> None:
    chain = "start: R0\n" + "\n".join(f"R{i}: R{i + 1}" for i in range(8000)) + '\nR8000: "a"'
    with pytest.raises(RequestError, match="nested too deeply or needs too much memory"):
        grammars.compile(StructuredOutputsParams(grammar=chain))
    assert allowed_after(grammars.compile(StructuredOutputsParams(regex="ba")), "") == "b"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (StructuredOutputsParams(regex="[^\\s\\S]"), "matches nothing"),
        (StructuredOutputsParams(grammar="start: start"), "matches nothing"),
        (StructuredOutputsParams(json={"$ref": "#"}), "matches nothing"),
        (StructuredOutputsParams(json="3"), "must be a JSON schema, an object"),
        (StructuredOutputsParams(json='{"x-guidance": 3}'), "x-guidance in a JSON schema must be an object"),
        (StructuredOutputsParams(regex="a\ud800"), "lone surrogate"),
        (StructuredOutputsParams(choice=["a" * 70_000, "b" * 70_000]), "140000 bytes; at most 131072"),
        (StructuredOutputsParams(grammar='root ::= "a" ::= '), "cannot be used|neither Lark nor GBNF"),
        (
            StructuredOutputsParams(structural_tag={"triggers": ["<f"], "structures": [{"begin": "<g", "end": ""}]}),
            "no trigger",
        ),
        (StructuredOutputsParams(structural_tag={"triggers": []}), "structural_tag must be"),
    ],
)
def test_what_cannot_be_used_says_why(grammars: Grammars, params: StructuredOutputsParams, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        grammars.compile(params)
    assert refused.value.param == "structured_outputs"


def test_free_text_before_and_calls_in_place_of_the_answer(grammars: Grammars) -> None:
    opened = AnswerForm(choice=["yes"], thinking=Thinking("<t>", "</t>", True))
    assert END not in allowed_after(grammars.compile(opened), "hm")
    assert allowed_after(grammars.compile(opened), "hm</t>y") == "e"
    optional = grammars.compile(AnswerForm(choice=["yes"], thinking=Thinking("<t>", "</t>", False)))
    assert set(allowed_after(optional, "")) == {"<", "y"}
    assert allowed_after(optional, "<t>hm</t> ") == " y"
    announced = AnswerForm(choice=["yes"], thinking=Thinking("<t>", "</t>", False, "say "), instead='start: "no"')
    assert set(allowed_after(grammars.compile(announced), "")) == {"<", "s", "n"}
    assert allowed_after(grammars.compile(announced), "<t>hm</t>say y") == "e"
    either = AnswerForm(choice=["yes"], instead='start: marker_0 "()"', markers=("call",))
    assert set(allowed_after(grammars.compile(either), "")) == {"c", "y"}
    assert allowed_after(grammars.compile(either), "call(") == ")"


def test_free_text_until_a_marker_announces_what_the_grammar_describes(grammars: Grammars) -> None:
    form = AnswerForm(grammar='start: marker_0 "(" /[0-9]/ ")"', markers=("call",), triggered=True)
    grammar = grammars.compile(form)
    for free in ("", "any cal", "call(1)", "call(1) and "):
        assert allowed_after(grammar, free) == "".join(CHARACTERS) + END
    assert allowed_after(grammar, "any call") == "("
    assert allowed_after(grammar, "call(1) and call(") == "0123456789"


def test_structural_tags_constrain_what_follows_them(grammars: Grammars) -> None:
    tag = {"begin": "<f=1>", "schema": {"enum": ["x"]}, "end": "</f>"}
    grammar = grammars.compile(StructuredOutputsParams(structural_tag={"triggers": ["<f"], "structures": [tag]}))
    assert len(allowed_after(grammar, "any <text")) > 90
    assert allowed_after(grammar, "any <f") == "="
    assert allowed_after(grammar, 'any <f=1>"x"<') == "/"


def test_the_name_of_a_special_token_stays_text() -> None:
    """Where only one text can follow, the end of sequence must not stand for the characters `</s>`."""
    tokenizer = tiny.byte_level()
    end = tokenizer.eos_token_id
    assert end is not None
    grammars = Grammars(tokenizer, vocab_size=tokenizer.vocab_size, end_ids=(end,))
    try:
        for params in (
            StructuredOutputsParams(json={"const": "</s>"}),
            StructuredOutputsParams(regex='"</s>"'),
            StructuredOutputsParams(choice=['"</s>"']),
        ):
            grammar, output = grammars.compile(params), []
            state = grammar.start(may_end=True)
            while not output or output[-1] != end:
                state.advance(np.array(output, np.int32))
                [mask] = GrammarState.masks([state])
                assert isinstance(mask, np.ndarray)
                output.append(int(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0]))
            assert json.loads(tokenizer.decode(output[:-1])) == "</s>"
    finally:
        grammars.close()


def test_tokenizers_of_llamas_kind_work_and_others_are_refused_by_name() -> None:
    tokenizer = tiny.byte_fallback()
    assert tokenizer.eos_token_id is not None
    grammars = Grammars(tokenizer, vocab_size=tokenizer.vocab_size + 5, end_ids=(tokenizer.eos_token_id,))
    try:
        grammar = grammars.compile(StructuredOutputsParams(choice=["a cat", "ein Bär"]))
        ids = tokenizer.encode("a cat", add_special_tokens=False)
        state = grammar.start(may_end=True)
        state.advance(np.array(ids[1:] if tokenizer.decode(ids[:1]) == "" else ids, np.int32)[:0])
        [mask] = GrammarState.masks([state])
        assert isinstance(mask, np.ndarray)
        assert len(mask) == -(-(tokenizer.vocab_size + 5) // 32)
    finally:
        grammars.close()
    words = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    with pytest.raises(RequestError, match="does not work with this model's tokenizer"):
        Grammars(words, vocab_size=2, end_ids=(1,)).compile(StructuredOutputsParams(regex="a"))
    with pytest.raises(RequestError, match="needs an end-of-sequence token"):
        Grammars(tokenizer, vocab_size=VOCAB, end_ids=()).compile(StructuredOutputsParams(regex="a"))


def test_a_checker_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    checker = GrammarChecker("{}", vocab_size=3, end_ids=(2,), timeout_s=1)
    with pytest.raises(CheckerError, match="does not start"):
        checker.start()
    checker.close()
