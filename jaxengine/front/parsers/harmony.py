"""The messages of gpt-oss (Harmony), of which an answer has several:

<|channel|>analysis<|message|>reasoning<|end|>
<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
<|start|>assistant<|channel|>final<|message|>content<|return|>

The prompt ends with `<|start|>assistant`; the recipient may stand there instead of behind the channel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from jaxengine.front.parsers.scan import held_back

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
ENDS = (END, RETURN, CALL)
BEGINS = (START, CHANNEL)
FUNCTIONS = "functions."

_RECIPIENT = r"\s+to=(?P<{}>[\w.-]+)"
HEADER = re.compile(
    rf"\s*(?:{re.escape(START)}\s*)?(?:assistant)?(?:{_RECIPIENT.format('before')})?\s*"
    rf"{re.escape(CHANNEL)}\s*(?P<channel>analysis|commentary|final)(?:{_RECIPIENT.format('behind')})?\s*"
    rf"(?:(?:{re.escape(CONSTRAIN)})?\s*\w+\s*)?"
)


class Header(NamedTuple):
    """Where a message goes: its channel, and to whom where it is no text for the user."""

    channel: str
    recipient: str | None


def read_header(text: str) -> Header | None:
    """What stands before `<|message|>`; None when it is no header."""
    found = HEADER.fullmatch(text)
    return None if found is None else Header(found["channel"], found["before"] or found["behind"])


def first_of(text: str, markers: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """The first place where one of the markers stands, and which."""
    places = [(at, marker) for marker in markers if (at := text.find(marker, start)) >= 0]
    return min(places) if places else None


def certain(text: str, markers: Sequence[str]) -> int:
    """How much of a text cannot be the beginning of a marker."""
    return len(text) - max(held_back(text, marker) for marker in markers)


def begins_message(text: str) -> bool | None:
    """Whether a message begins here, behind any white space; None while it may."""
    text = text.lstrip()
    if any(text.startswith(begin) for begin in _HEADS):
        return True
    return None if any(head.startswith(text) for head in _HEADS) else False


_HEADS = (*BEGINS, f"to={FUNCTIONS}")
