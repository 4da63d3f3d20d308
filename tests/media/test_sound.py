"""Files of sound are decoded, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.media.errors import MediaError
from jaxengine.media.sound import decode_sound, sound_of_array
from tests.media.hostile import hostile_sounds, mp4_of, wav_of

HOSTILE = hostile_sounds()


def test_a_file_at_its_own_rate_is_taken_as_it_is() -> None:
    sound = decode_sound(wav_of(0.25), rate=16000)
    assert (len(sound.samples), sound.rate, sound.seconds) == (4000, 16000, 0.25)
    tone = (np.sin(2 * np.pi * 440 * np.arange(4000) / 16000) * 20000).astype(np.int16) / np.float32(32768)
    assert np.array_equal(sound.samples, tone)


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44100, 2), (48000, 1)])
def test_another_rate_sounds_the_same(rate: int, channels: int) -> None:
    sound = decode_sound(wav_of(1.0, rate=rate, channels=channels), rate=16000)
    assert len(sound.samples) == 16000
    spectrum = np.abs(np.fft.rfft(sound.samples))
    assert spectrum.argmax() == 440
    assert abs(np.abs(sound.samples).max() - 20000 / 32768) < 0.02


def test_arrays_are_taken_with_their_rate() -> None:
    stereo = np.stack([np.ones(441), np.zeros(441)])
    sound = sound_of_array(stereo, given_rate=44100, rate=44100)
    assert np.array_equal(sound.samples, np.full(441, 0.5, np.float32))
    assert len(sound_of_array(stereo, given_rate=44100, rate=16000).samples) == 160


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_sound_is_refused(what: str) -> None:
    with pytest.raises(MediaError, match="sound"):
        decode_sound(HOSTILE[what], rate=16000)


def test_a_file_that_is_too_long_is_refused_before_all_of_it_is_decoded() -> None:
    with pytest.raises(MediaError, match="longer than 1 s"):
        decode_sound(wav_of(3.0), rate=16000, max_seconds=1.0)


@pytest.mark.parametrize("samples", [np.zeros(0), np.zeros((1, 2, 3)), np.array([np.nan]), np.array(1.0)])
def test_other_arrays_are_refused(samples: np.ndarray) -> None:
    with pytest.raises(MediaError, match="sound"):
        sound_of_array(samples, given_rate=16000, rate=16000)


def test_equal_sounds_have_equal_digests() -> None:
    assert decode_sound(wav_of(0.1), rate=16000).digest == decode_sound(wav_of(0.1), rate=16000).digest
    assert decode_sound(wav_of(0.1), rate=16000).digest != decode_sound(wav_of(0.2), rate=16000).digest
    assert mp4_of(2) != wav_of(0.1)
