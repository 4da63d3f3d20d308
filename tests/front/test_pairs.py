"""Two texts in one prompt: joined by the tokenizer or by a template, and cut as transformers cuts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import processors

from jaxengine.errors import RequestError
from jaxengine.front.pairs import match_pairs, pair_prompts, pair_template
from jaxengine.text.tokenizer import Tokenizer
from tests.text import tiny

TEMPLATE = (
    "{% for m in messages if m.role == 'system' %}[{{ m.content }}]{% endfor %}"
    "{% for m in messages if m.role == 'query' %}Q {{ m.content }}{% endfor %}"
    "{% for m in messages if m.role == 'document' %} D {{ m.content }}{% endfor %}{{ ending | default('?') }}"
)


def joining() -> Tokenizer:
    """BERT's way: `<s> A </s> B </s>`, of which B and what follows is of the second kind."""
    tokenizer = tiny.byte_level()
    tokenizer.backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


def templated(templates: Any) -> Tokenizer:
    tokenizer = tiny.byte_level()
    tokenizer.settings = replace(tokenizer.settings, chat_templates=templates)
    return tokenizer


def test_a_tokenizer_joins_them() -> None:
    tokenizer = joining()
    query, document = (tokenizer.encode(text, add_special_tokens=False) for text in ("Tom", "the lazy dog"))
    [prompt] = pair_prompts(tokenizer, [("Tom", "the lazy dog")])
    assert prompt.token_ids == (0, *query, 1, *document, 1)
    assert prompt.second_from == len(query) + 2
    [plain] = tiny.byte_level().encode_pairs([("Tom", "dog")])
    assert plain[1] is None


@pytest.mark.parametrize("most", range(3, 24))
def test_the_longer_text_is_cut_as_in_transformers(most: int) -> None:
    pairs = [
        ("Tom said hello", "the quick brown fox jumps over"),
        ("the quick brown fox jumps over", "Tom"),
        ("Tom", "a"),
    ]
    found = joining().encode_pairs(pairs, max_length=most)
    cutting = joining().backend
    cutting.enable_truncation(most, strategy="longest_first")
    assert [ids for ids, _ in found] == [cutting.encode(*pair).ids for pair in pairs]


def test_a_template_is_given_their_roles_and_an_instruction() -> None:
    tokenizer = templated(TEMPLATE)
    template = pair_template(tokenizer, given=False)
    assert template == TEMPLATE
    [plain] = pair_prompts(tokenizer, [("Tom", "a dog")], template=template)
    assert plain.text == "Q Tom D a dog?"
    assert plain.token_ids == tuple(tokenizer.encode(plain.text, add_special_tokens=False))
    told = pair_prompts(
        tokenizer, [("Tom", "a dog")], template=template, instruction="Judge", variables={"ending": "!"}, max_length=5
    )
    assert told[0].text == "[Judge]Q Tom D a dog!"
    assert len(told[0].token_ids or ()) == 5


def test_which_template_is_one_for_pairs() -> None:
    """Models inherit templates for chats, which say nothing of queries: those are used only where they are given."""
    chat = templated("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert pair_template(chat, given=False) is None
    assert pair_template(chat, given=True) is not None
    assert pair_template(templated({"default": "a", "rerank": "b"}), given=False) == "b"
    assert pair_template(templated(None), given=True) is None
    with pytest.raises(RequestError, match="instruction is for rerankers with a template"):
        pair_prompts(joining(), [("a", "b")], instruction="Judge")


def test_one_with_each_or_as_many_as_there_are() -> None:
    assert match_pairs(["a"], ["x", "y"]) == [("a", "x"), ("a", "y")]
    assert match_pairs(["a", "b"], ["x", "y"]) == [("a", "x"), ("b", "y")]
    for first, second in ((["a", "b"], ["x"]), ([], ["x"]), (["a"], [])):
        with pytest.raises(RequestError):
            match_pairs(first, second)
