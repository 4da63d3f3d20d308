"""Whisper: half a minute of sound as a mel spectrogram, of which no token stands in the prompt (arXiv 2212.04356)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Sound
from jaxengine.media.mel import HOP, RATE, WINDOW, frames_of_places, mel_features
from jaxengine.media.processors.processor import Made, Most, Processor, Settings

SAID = {"sampling_rate": RATE, "hop_length": HOP, "n_fft": WINDOW}
"""What preprocessor_config.json says, if it says anything."""


class WhisperProcessor(Processor):
    """A prompt is of one sound, which layers of the decoder attend to; what is shorter than they hear ends in silence."""

    modalities = (Modality.AUDIO,)
    knobs: ClassVar[frozenset[str]] = frozenset()
    special = False
    needs = Modality.AUDIO

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.marks, self.shown = {}, {Modality.AUDIO: ""}
        self.mels = int(settings.config.get("num_mel_bins", 80))
        self.places = int(settings.config.get("max_source_positions", 1500))
        said = settings.of[Modality.AUDIO]
        for name, value in {**SAID, "feature_size": self.mels}.items():
            if said.get(name, value) != value:
                raise ConfigError(f"the feature extractor's {name} is {said[name]}, and the model hears {value}")

    @property
    def rate(self) -> int:
        return RATE

    @property
    def most_samples(self) -> int:
        """What the model hears at once."""
        return self.places * 2 * HOP

    def most(self, modality: Modality) -> Most:
        return Most(patches=self.places, embeddings=self.places)

    def sound(self, sound: Sound) -> Made:
        samples = sound.samples
        if len(samples) > self.most_samples:
            raise MediaError(
                f"a sound of {sound.seconds:.1f} s is longer than the {self.most_samples / RATE:g} s that the model hears at "
                "once: give it in pieces, or to /v1/audio/transcriptions, which cuts it where it is quiet"
            )
        padded = np.pad(samples, (0, self.most_samples - len(samples)))
        return Made(
            patches=frames_of_places(mel_features(padded, self.mels)),
            grid=(1, 1, self.places),
            tokens=np.zeros(0, np.int32),
            embeds=np.zeros(0, np.bool_),
            unplaced=self.places,
        )
