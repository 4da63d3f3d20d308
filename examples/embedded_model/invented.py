"""Names that nobody has: they are several tokens each, so they can be repeated only by looking back."""

import random

_ONSETS = ("b", "c", "ch", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "sh", "t", "v", "w", "z", "br", "cl", "dr", "gr", "kr", "th", "tr", "st")  # fmt: skip # noqa: E501
_VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "ie", "oo")
_CODAS = ("n", "r", "l", "s", "t", "m", "k", "x", "nd", "th", "ck", "ss")


def invented_name(rng: random.Random) -> str:
    """A name of one to three syllables, such as Dafick or Laiki."""
    syllables = rng.choice((1, 2, 2, 2, 3))
    name = "".join(rng.choice((*_ONSETS, "") if part else _ONSETS) + rng.choice(_VOWELS) for part in range(syllables))
    if syllables == 1 or rng.random() < 0.6:
        name += rng.choice(_CODAS)
    return name.capitalize()
