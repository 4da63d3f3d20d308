"""A model that is asked to write down what it hears is asked as mistral-common's `encode_transcription` asks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxengine.errors import RequestError
from jaxengine.front.instructed_speech import InstructedSpeech
from jaxengine.media.processors.hearing import VoxtralProcessor
from jaxengine.media.processors.processor import Settings
from jaxengine.text.tokenizer import Tokenizer
from tests.text.test_tekken import CONTROL, written

PROCESSOR = VoxtralProcessor(Settings(config={"audio_token_id": 8}, own={}, of={}))


@pytest.fixture
def speech(tmp_path: Path) -> InstructedSpeech:
    tokenizer = Tokenizer.load(written(tmp_path, [*CONTROL, "[TRANSCRIBE]"]), config_json={})
    found = InstructedSpeech.load(tokenizer, PROCESSOR)
    assert found is not None
    return found


def test_prompts_are_those_of_mistrals_library(speech: InstructedSpeech) -> None:
    assert speech.prompt(None, "transcribe", times=False) == (1, 3, 7, 8, 4, 9)
    named = speech.prompt("en", "transcribe", times=False)
    assert (named[:5], named[-1]) == ((1, 3, 7, 8, 4), 9)
    assert speech.tokenizer.decode(named[5:-1]) == "lang:en"


def test_pieces_leave_room_for_their_texts(speech: InstructedSpeech) -> None:
    half_a_minute = 480_000
    found = [speech.most_samples(length) // half_a_minute for length in (100, 1500, 4096, 100_000)]
    assert found == [1, 2, 5, 10]


def test_what_it_cannot_do_is_refused(speech: InstructedSpeech) -> None:
    for language, task, times, previous, told in (
        ("en", "translate", False, (), "Translations API"),
        ("en", "transcribe", True, (), "have no times"),
        ("en", "transcribe", False, (1,), "no text before the sound"),
        ("English", "transcribe", False, (), "a code of two letters"),
    ):
        with pytest.raises(RequestError, match=told):
            speech.prompt(language, task, times=times, previous=previous)


def test_a_tokenizer_without_such_prompts_transcribes_nothing(tmp_path: Path) -> None:
    assert InstructedSpeech.load(Tokenizer.load(written(tmp_path), config_json={}), PROCESSOR) is None
