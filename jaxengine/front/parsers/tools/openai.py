"""gpt-oss: a call is a message to `functions.f`, one an answer; others are content (`front/parsers/harmony.py`)."""

from __future__ import annotations

from jaxengine.front.parsers.calls import Call, Functions, call_of
from jaxengine.front.parsers.harmony import (
    BEGINS,
    CHANNEL,
    CONSTRAIN,
    ENDS,
    FUNCTIONS,
    MESSAGE,
    START,
    certain,
    first_of,
    read_header,
)
from jaxengine.front.parsers.regions import Outcome
from jaxengine.front.parsers.tools.grammar import alternatives, json_rule, literal
from jaxengine.front.parsers.tools.traits import Traits

RECIPIENT = f"to={FUNCTIONS}"
LONGEST_HEADER = 512


class OpenAI(Traits):
    """The format. Beside it the reasoning format `openai_gptoss` takes the headers of other messages away."""

    markers = (START, CHANNEL, CONSTRAIN, MESSAGE)
    starts = (*BEGINS, RECIPIENT)

    def region(self) -> MessageRegion:
        """A scanner for one message."""
        return MessageRegion()

    def under_way(self, text: str) -> list[Call]:
        """The call in a region that was cut, as far as it came."""
        head, whole, arguments = text.partition(MESSAGE)
        header = read_header(_padded(head)) if whole else None
        name = header.recipient.removeprefix(FUNCTIONS) if header and header.recipient else ""
        return [Call(name, arguments)] if name else []

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """A call of one of these functions and nothing else, in Lark; the model ends its answer with a call."""
        rules = []
        for function in functions:
            head = literal(f"commentary {RECIPIENT}{function.name} ")
            rules.append(
                f'(marker_0 "assistant")? marker_1 {head} marker_2 "json" marker_3 {json_rule(function.parameters)}'
            )
        return alternatives(rules, separator="", several=False)


class MessageRegion:
    """A message from its header to its end, which may be missing where the text ends."""

    def __init__(self) -> None:
        self._position = 0
        self._name: str | None = None
        self._begin = 0

    def scan(self, text: str, *, final: bool) -> Outcome | None:
        if self._name is None:
            at = text.find(MESSAGE, self._position, LONGEST_HEADER)
            if at < 0:
                self._position = max(0, len(text) - len(MESSAGE))
                return Outcome(_past(text), None) if final or len(text) >= LONGEST_HEADER else None
            header = read_header(_padded(text[:at]))
            recipient = header.recipient if header and header.recipient else ""
            self._name = recipient.removeprefix(FUNCTIONS)
            if not self._name or self._name == recipient:
                return Outcome(_past(text), None)
            self._begin = self._position = at + len(MESSAGE)
        found = first_of(text, (*ENDS, *BEGINS), self._position)
        if found is None and not final:
            self._position = max(self._begin, certain(text, (*ENDS, *BEGINS)))
            return None
        at, marker = found or (len(text), "")
        call = call_of({"name": self._name, "arguments": text[self._begin : at]})
        if call is None:
            return Outcome(_past(text), None)
        return Outcome(at + (len(marker) if marker in ENDS else 0), (call,))


def _padded(head: str) -> str:
    """A header as a whole begins: what stands before a recipient belongs to the text."""
    return f" {head}" if head.startswith(RECIPIENT) else head


def _past(text: str) -> int:
    """Behind what made a region begin."""
    return next(len(start) for start in OpenAI.starts if text.startswith(start))
