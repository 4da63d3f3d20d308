"""Words and when they are said: what transformers makes of the same, recorded."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.front.words import Word, token_times, turns, words_of
from tests.speech_models import tokenizer

FIRST_TIME = 300
BACKEND = tokenizer()


def decode(ids) -> str:
    return BACKEND.decode(list(ids), skip_special_tokens=True)


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        (
            "en",
            ' He said: "Go (now)!" — it 5,000 $ ...',
            ["He", "said:", '"Go', '(now)!"', "—", "it", "5", ",000", "$", "..."],
        ),
        ("fr", "naïve café", ["naïve", "café"]),
        ("en", " a . b", ["a", ".", "b"]),
        ("es", " ¿Qué? ¡No!", ["¿Qué?", "¡No!"]),
        ("zh", "你好，世界！“好”", ["你", "好，", "世", "界！", "“", "好”"]),  # noqa: RUF001
        ("ja", "日本語。テスト", ["日", "本", "語。", "テ", "ス", "ト"]),
        ("en", "", []),
    ],
)
def test_tokens_are_put_together_as_transformers_does(language: str, text: str, words: list[str]) -> None:
    """Of a token a byte, which is not a character where text is not English."""
    ids = BACKEND.encode(text, add_special_tokens=False).ids
    found = words_of(ids, [0.0] * len(ids), decode, first_time=FIRST_TIME, language=language)
    assert [word.text for word in found] == words


def test_a_word_is_said_from_the_time_of_the_token_before_it_and_goes_over_no_time() -> None:
    said = BACKEND.encode(" ab c", add_special_tokens=False).ids
    ids = [FIRST_TIME, *said, FIRST_TIME + 9, FIRST_TIME + 9, *said[1:3], FIRST_TIME + 20]
    times = [0.1 * number for number in range(len(ids))]
    assert words_of(ids, times, decode, first_time=FIRST_TIME, language="en", begin=60.0) == [
        Word("ab", 60.0, 60.3),
        Word("c", 60.3, 60.5),
        Word("ab", 60.7, 60.9),
    ]
    assert words_of(ids[1:4], [0.2, 0.3, 0.4], decode, first_time=FIRST_TIME, language="en") == [Word("ab", 0.0, 0.4)]


def test_the_cheapest_path_is_that_of_transformers() -> None:
    """With many ways that cost the same."""
    costs = np.random.default_rng(3).integers(0, 3, (5, 9)).astype(float)
    assert turns(costs) == [0, 5, 5, 6, 8]
    assert turns(np.zeros((1, 7))) == [0]
    assert turns(np.zeros((4, 1))) == [0, 0, 0, 0]
    assert token_times(np.zeros((2, 0), np.float32)) == [0.0, 0.0]
    assert token_times(-costs.astype(np.float32)) == pytest.approx([0.0, 0.1, 0.1, 0.12, 0.16])
