"""A tiny template language, so that the corpus can be written as sentences.

`[this|that|]` picks one branch (they nest), `{slot}` takes a value from the slots, `a~` becomes "a" or "an" by the next
word. A slot's value is text, a list to draw from anew at each use, or a function of the random source; text may hold
further templates. Afterwards spaces are tidied and sentences get their capitals.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence

Slot = str | Sequence[str] | Callable[[random.Random], str]
Slots = Mapping[str, Slot]

_BRANCH = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa])~ (?=(\w+))")
_CAPITAL = re.compile(r"((?:^|[.!?] |[.] ?\"\s|\n)\"?)([a-z])")
_SPACES = re.compile(r" {2,}")
_SPACE_BEFORE = re.compile(r" +([,.!?;:\n])")
_VOWEL_SOUND_NOT = ("uni", "use", "eu", "one", "once", "uku")
_SILENT_H = ("hour", "honest", "honour", "heir")


def article(word: str) -> str:
    """The indefinite article that `word` takes: "a" or "an"."""
    lowered = word.lower()
    if lowered.startswith(_SILENT_H):
        return "an"
    if lowered.startswith(_VOWEL_SOUND_NOT):
        return "a"
    if lowered.isdigit():
        return "an" if lowered.startswith("8") or lowered in ("11", "18") else "a"
    return "an" if lowered[0] in "aeiou" else "a"


def a(noun: str) -> str:
    """The noun phrase with its indefinite article."""
    return f"{article(noun)} {noun}"


def listing(items: Sequence[str], last: str = "and") -> str:
    """The items as an English list: "a", "a and b", "a, b, and c"."""
    if len(items) < 3:
        return f" {last} ".join(items)
    return ", ".join(items[:-1]) + f", {last} {items[-1]}"


def expand(template: str, slots: Slots, rng: random.Random) -> str:
    """The template with every branch picked, every slot filled, and articles, spaces and capitals set right."""
    text = _fill(template, slots, rng)
    text = _SPACES.sub(" ", text)
    text = _SPACE_BEFORE.sub(r"\1", text)
    text = _ARTICLE.sub(lambda m: m[1] + article(m[2])[1:] + " ", text)
    return _CAPITAL.sub(lambda m: m[1] + m[2].upper(), text).strip()


def _fill(template: str, slots: Slots, rng: random.Random) -> str:
    while "[" in template:
        template = _BRANCH.sub(lambda m: rng.choice(m[1].split("|")), template)
    return _SLOT.sub(lambda m: _value(slots[m[1]], slots, rng), template)


def _value(slot: Slot, slots: Slots, rng: random.Random) -> str:
    if callable(slot):
        slot = slot(rng)
    elif not isinstance(slot, str):
        slot = rng.choice(slot)
    return _fill(slot, slots, rng) if "{" in slot or "[" in slot else slot
