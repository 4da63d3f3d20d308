"""Mel features are those of transformers, which the recording says, and the filters those of OpenAI's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jaxengine.media.mel import FRAMES, RATE, frames_of_places, mel_features, mel_filters
from jaxengine.media.quiet import cut_where_quiet
from jaxengine.media.sound import decode_sound

RECORDED = Path(__file__).with_name("mel_features.npz")


def chirp() -> np.ndarray:
    """Two seconds that rise from 100 to 6,000 Hz, and one of nothing."""
    at = np.arange(2 * RATE) / RATE
    rising = 0.3 * np.sin(2 * np.pi * (100 * at + 1475 * at**2))
    return np.concatenate([rising, np.zeros(RATE)]).astype(np.float32)


def record() -> None:
    """What transformers computes without torch."""
    from transformers import WhisperFeatureExtractor

    arrays = {}
    for mels in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=mels)
        arrays[str(mels)] = extractor._np_extract_fbank_features(chirp()[None], "cpu")[0].astype(np.float32)
    np.savez_compressed(RECORDED, **arrays)


@pytest.mark.parametrize("mels", [80, 128])
def test_features_are_those_of_transformers(mels: int) -> None:
    found = mel_features(chirp(), mels)
    assert found.shape == (mels, 300)
    np.testing.assert_allclose(found, np.load(RECORDED)[str(mels)], atol=1e-5)


@pytest.mark.parametrize("mels", [80, 128])
def test_a_recording_is_heard_as_transformers_hears_it(mels: int, shared: Path) -> None:
    from transformers import WhisperFeatureExtractor

    samples = decode_sound((shared / "audio/jfk.flac").read_bytes(), rate=RATE).samples
    samples = np.pad(samples, (0, 30 * RATE - len(samples)))
    expected = WhisperFeatureExtractor(feature_size=mels)._np_extract_fbank_features(samples[None], "cpu")[0]
    np.testing.assert_allclose(mel_features(samples, mels), expected, atol=1e-5)
    filters = np.load(shared / "audio/mel_filters.npz")[f"mel_{mels}"]
    np.testing.assert_allclose(mel_filters(mels), filters, atol=1e-7)


def test_a_place_comes_of_the_frames_around_it() -> None:
    features = np.arange(1, 13, dtype=np.float32).reshape(2, 6)
    places = frames_of_places(features).reshape(3, FRAMES, 2)
    np.testing.assert_array_equal(places[1], features[:, 0:5].T)
    np.testing.assert_array_equal(places[0, :2], 0.0)


def test_long_sounds_are_cut_where_they_are_quiet() -> None:
    rate, random = 1000, np.random.default_rng(0)
    samples = random.normal(size=10 * rate).astype(np.float32)
    for quiet in (2600, 5400, 8050):
        samples[quiet : quiet + 150] *= 0.001
    pieces = cut_where_quiet(samples, rate, 3 * rate)
    assert [begin for begin, _ in pieces[1:]] == [end for _, end in pieces[:-1]]
    assert (pieces[0][0], pieces[-1][1]) == (0, len(samples))
    assert all(0 < end - begin <= 3 * rate for begin, end in pieces)
    for (_, end), quiet in zip(pieces[:-1], (2600, 5400, 8050), strict=False):
        assert quiet < end < quiet + 150
    assert cut_where_quiet(samples[:100], rate, 3 * rate) == [(0, 100)]


if __name__ == "__main__":
    record()
