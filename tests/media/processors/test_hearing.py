"""What processors make of sounds: as many tokens as the encoder makes embeddings, and as transformers counts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxengine.contract.media import Modality
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Sound
from jaxengine.media.mel import RATE, frames_of_places, mel_features
from jaxengine.media.placing import Prepared, placed
from jaxengine.media.processors import processor_for
from jaxengine.media.processors.processor import Processor

TOKEN = 7


def processor(architecture: str, folder: Path, **config: Any) -> Processor:
    """Of a model that hears two seconds at a time."""
    heard = {"num_mel_bins": 16, "max_source_positions": 100}
    given = {"architectures": [architecture], "audio_config": heard, "audio_token_id": TOKEN, **heard, **config}
    found = processor_for(folder, given)
    assert found is not None
    return found


def sound(samples: int) -> Sound:
    random = np.random.default_rng(samples)
    return Sound(random.normal(0, 0.1, samples).astype(np.float32), RATE, bytes(32))


@pytest.mark.parametrize("samples", [640, 1601, 16_000, 31_999, 32_000])
def test_qwen2_audio_has_a_token_for_each_40_ms(samples: int, tmp_path: Path) -> None:
    made = processor("Qwen2AudioForConditionalGeneration", tmp_path).sound(sound(samples))
    frames = len(range(0, samples, 160))  # of transformers' mask
    assert len(made.tokens) == (((frames - 1) // 2 + 1) - 2) // 2 + 1
    assert made.grid == (1, 1, (frames - 1) // 2 + 1)
    assert len(made.patches) == made.grid[2]
    assert made.num_embeddings == made.grid[2] // 2


def test_voxtral_hears_span_after_span(tmp_path: Path) -> None:
    made = processor("VoxtralForConditionalGeneration", tmp_path).sound(sound(40_000))
    assert made.grid == (2, 1, 100)
    assert made.tokens.tolist() == [TOKEN] * 50
    features = mel_features(np.pad(sound(40_000).samples, (0, 24_000)), 16)
    np.testing.assert_array_equal(made.patches[:100], frames_of_places(features[:, :200]))
    np.testing.assert_array_equal(made.patches[100:], frames_of_places(features[:, 200:]))


def test_no_token_stands_for_what_whisper_hears(tmp_path: Path) -> None:
    own = processor("WhisperForConditionalGeneration", tmp_path)
    made = own.sound(sound(9_000))
    ids, media = placed([1, 2, 3], [Prepared(Modality.AUDIO, bytes(32), made)], own)
    assert ids == (1, 2, 3)
    [item] = media.items
    assert (len(item.places), item.unplaced, item.num_embeddings) == (0, 100, 100)
    assert item.patches.shape == (100, 5 * 16)


@pytest.mark.parametrize(
    ("architecture", "samples"),
    [
        ("Qwen2AudioForConditionalGeneration", 32_001),
        ("Qwen2AudioForConditionalGeneration", 600),
        ("VoxtralForConditionalGeneration", 320_001),
        ("WhisperForConditionalGeneration", 32_001),
    ],
)
def test_what_is_too_long_or_too_short_says_so(architecture: str, samples: int, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=" s"):
        processor(architecture, tmp_path).sound(sound(samples))


def test_another_spectrogram_is_refused(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"hop_length": 80}')
    with pytest.raises(Exception, match="hop_length is 80"):
        processor("WhisperForConditionalGeneration", tmp_path)
