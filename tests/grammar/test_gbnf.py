"""GBNF as Lark: what llguidance's converter makes of it, in few rounds."""

from __future__ import annotations

import re

import pytest
from llguidance.gbnf_to_lark import RuleRefNode, gbnf_to_lark

from jaxengine.grammar.gbnf import lark_of_gbnf

LISTS = r"""
root  ::= item ("," ws item)* # of lists
item  ::= word | "[" root "]"
word  ::= [a-z]+ "-"? Fancy-Name
Fancy-Name ::= "\"" [^"\x7F]{1,3} "\"" ws
ws    ::= " "?
"""


def rules_of(lark: str) -> set[str]:
    """Its rules, however they are spaced and commented."""
    return {
        " ".join(rule.split())
        for rule in re.split(r"\n(?=\w+:)", re.sub("//.*|%llguidance.*", "", lark))
        if rule.strip()
    }


@pytest.mark.parametrize("text", [LISTS, 'root ::= "a"', "root ::= root | [0-9]"])
def test_the_rules_are_the_converters(text: str) -> None:
    assert rules_of(lark_of_gbnf(text)) == rules_of(gbnf_to_lark(text))


def test_a_long_chain_of_rules_takes_no_more_rounds_than_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    is_terminal = RuleRefNode.is_terminal

    def counted(node: RuleRefNode) -> bool:
        nonlocal asked
        asked += 1
        return is_terminal(node)

    monkeypatch.setattr(RuleRefNode, "is_terminal", counted)
    count = 300
    chain = "\n".join(["root ::= r0", *(f'r{at} ::= "a" r{at + 1} | "b"' for at in range(count)), f'r{count} ::= "c"'])
    assert lark_of_gbnf(chain).count("\n") > count
    assert asked < 4 * count


@pytest.mark.parametrize("text", ["root ::= missing", "x ::= y\ny ::= x", "root ::= (", "root = a"])
def test_what_is_none_raises(text: str) -> None:
    with pytest.raises(Exception, match=r"\w"):
        lark_of_gbnf(text)
