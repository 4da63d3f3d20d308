"""When the words of a text are said, by how much its tokens attend to the places of a sound: a path through that by dynamic
time warping, and tokens put together to words (arXiv 2212.04356, and OpenAI's code)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxengine.contract.arrays import Floats
from jaxengine.contract.speech import SECONDS_OF_TIME

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages whose characters stand for words here, as in OpenAI's code: spaces do not divide them."""
BEFORE, AFTER = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
"""Punctuation that belongs to the word behind it, and to the one before it."""
ALONE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
UNFINISHED = "\ufffd"
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Word:
    """A word with the punctuation at it, and when it is said, in seconds of the sound."""

    text: str
    begin: float
    end: float


def token_times(picture: Floats) -> list[float]:
    """Seconds at which the model turns from each token to the next, of `[tokens, frames]`: a token is said from the time of the
    one before it to its own."""
    if not picture.size:
        return [0.0] * len(picture)
    return [place * SECONDS_OF_TIME for place in turns(-picture.astype(np.float64))]


def turns(costs: np.ndarray) -> list[int]:
    """The first place that each token has on the cheapest path through `costs [tokens, places]`, from corner to corner, where
    neither goes back; where two ways cost the same, as in transformers.

    What lies on a diagonal depends on the two before alone, so these are computed at once: a text of 200 tokens takes tens of
    milliseconds and not seconds.
    """
    tokens, places = costs.shape
    own = np.zeros((tokens + 1, places + 1))
    own[1:, 1:] = costs
    total = np.full((tokens + 1, places + 1), np.inf, np.float32)
    total[0, 0] = 0.0
    came = np.full((tokens + 1, places + 1), 2, np.int8)  # 0: both went on, 1: the token did, 2: the place did
    came[:, 0] = 1
    flat_own, flat_total, flat_came = own.ravel(), total.ravel(), came.ravel()
    for diagonal in range(2, tokens + places + 1):
        first, last = max(1, diagonal - places), min(tokens, diagonal - 1)
        begin, end = first * places + diagonal, last * places + diagonal + 1  # token i's is at i * places + diagonal

        def part(values: np.ndarray, back: int, begin: int = begin, end: int = end) -> np.ndarray:
            return values[begin - back : end - back : places]

        both, token, place = (part(flat_total, back) for back in (places + 2, places + 1, 1))
        by_both, by_token = (both < token) & (both < place), (token < both) & (token < place)
        part(flat_came, 0)[...] = np.where(by_both, 0, np.where(by_token, 1, 2))
        part(flat_total, 0)[...] = part(flat_own, 0) + np.where(by_both, both, np.where(by_token, token, place))
    found = [0] * tokens
    at, place = tokens, places
    while at > 0 and place > 0:
        found[at - 1] = place - 1
        way = int(came[at, place])
        at, place = at - (way != 2), place - (way != 1)
    return found


def words_of(
    tokens: Sequence[int],
    times: Sequence[float],
    decode: Decode,
    *,
    first_time: int,
    language: str | None,
    begin: float = 0.0,
) -> list[Word]:
    """The words of a piece that begins at `begin`, of its `tokens` with the `times` of `token_times`. Ids from `first_time` on
    are times: no word goes over one."""
    found: list[Word] = []
    own: list[int] = []
    for number, token in enumerate((*tokens, first_time)):
        if token < first_time:
            own.append(number)
            continue
        for text, of_word in _joined([tokens[at] for at in own], decode, spaced=language not in UNSPACED):
            at, last = own[of_word[0]], own[of_word[-1]]
            since = times[at - 1] if at else 0.0
            found.append(Word(text.strip(), round(begin + since, 2), round(begin + times[last], 2)))
        own = []
    return [word for word in found if word.text]


def _joined(tokens: Sequence[int], decode: Decode, *, spaced: bool) -> list[tuple[str, list[int]]]:
    """Words of a text, and which of its tokens they are of."""
    words: list[tuple[str, list[int]]] = []
    for text, numbers in _characters(tokens, decode):
        if spaced and words and not text.startswith(" ") and text.strip() not in ALONE:
            before, others = words[-1]
            words[-1] = before + text, others + numbers
        else:
            words.append((text, numbers))
    return _with_punctuation(words)


def _characters(tokens: Sequence[int], decode: Decode) -> list[tuple[str, list[int]]]:
    """The least runs of tokens that are of whole characters."""
    whole = decode(tokens)
    found: list[tuple[str, list[int]]] = []
    own: list[int] = []
    length = 0
    for number in range(len(tokens)):
        own.append(number)
        text = decode([tokens[at] for at in own])
        broken = text.find(UNFINISHED)
        if broken < 0 or length + broken >= len(whole) or whole[length + broken] == UNFINISHED:
            found.append((text, own))
            own, length = [], length + len(text)
    return found


def _with_punctuation(words: list[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    """Opening punctuation goes to the word behind, closing punctuation to the one before."""
    opened: list[tuple[str, list[int]]] = []
    for text, numbers in reversed(words):
        if opened and text.startswith(" ") and text.strip() in BEFORE:
            behind, others = opened[-1]
            opened[-1] = text + behind, numbers + others
        else:
            opened.append((text, numbers))
    closed: list[tuple[str, list[int]]] = []
    for text, numbers in reversed(opened):
        if closed and not closed[-1][0].endswith(" ") and text in AFTER:
            before, others = closed[-1]
            closed[-1] = before + text, others + numbers
        else:
            closed.append((text, numbers))
    return closed
