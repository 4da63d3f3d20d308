"""Qwen2-Audio and Voxtral: sounds as mel spectrograms, of which tokens in the prompt take embeddings."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from jaxengine.contract.media import Modality
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Sound
from jaxengine.media.mel import HOP, RATE, frames_of_places, mel_features
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, repeated


class HearingProcessor(Processor):
    """What both have. The encoder hears `places` places at a time, of two frames each; `merged` of them are an embedding."""

    modalities = (Modality.AUDIO,)
    knobs: ClassVar[frozenset[str]] = frozenset()
    placeholder: ClassVar[str]
    merged: ClassVar[int]

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.token = settings.token("audio_token_id", "audio_token_index")
        self.marks, self.shown = {Modality.AUDIO: self.token}, {Modality.AUDIO: self.placeholder}
        audio = settings.config.get("audio_config", {})
        self.mels, self.places = int(audio.get("num_mel_bins", 128)), int(audio.get("max_source_positions", 1500))

    @property
    def rate(self) -> int:
        return RATE

    @property
    def at_once(self) -> int:
        """Samples that the encoder hears at a time."""
        return self.places * 2 * HOP


class Qwen2AudioProcessor(HearingProcessor):
    """A sound has as many embeddings as it is long; the encoder hears the silence behind it, and makes nothing of that."""

    placeholder = "<|audio_bos|><|AUDIO|><|audio_eos|>"
    merged = 2

    def most(self, modality: Modality) -> Most:
        return Most(patches=self.places, embeddings=self.places // self.merged)

    def sound(self, sound: Sound) -> Made:
        samples = sound.samples
        if not 4 * HOP <= len(samples) <= self.at_once:
            raise MediaError(
                f"a sound for this model is from {4 * HOP / RATE:g} to {self.at_once / RATE:g} s long, got {sound.seconds:.2f} s"
            )
        frames = -(-len(samples) // HOP)
        places = (frames - 1) // 2 + 1
        features = mel_features(np.pad(samples, (0, self.at_once - len(samples))), self.mels)
        tokens, embeds = repeated(self.token, places // self.merged)
        patches = np.ascontiguousarray(frames_of_places(features)[:places])
        return Made(patches=patches, grid=(1, 1, places), tokens=tokens, embeds=embeds)


class VoxtralProcessor(HearingProcessor):
    """A sound ends in silence, up to whole spans of what the encoder hears at a time, each of which sees only itself."""

    placeholder = "[BEGIN_AUDIO][AUDIO]"
    merged = 4
    most_spans: ClassVar[int] = 10
    """Five minutes."""

    def most(self, modality: Modality) -> Most:
        patches = self.most_spans * self.places
        return Most(patches=patches, embeddings=patches // self.merged, rows=self.most_spans)

    def sound(self, sound: Sound) -> Made:
        spans = max(1, -(-len(sound.samples) // self.at_once))
        if spans > self.most_spans:
            raise MediaError(
                f"a sound for this model is at most {self.most_spans * self.at_once / RATE:g} s long, got {sound.seconds:.1f} s"
            )
        features = mel_features(np.pad(sound.samples, (0, spans * self.at_once - len(sound.samples))), self.mels)
        patches = np.concatenate([frames_of_places(part) for part in np.split(features, spans, axis=1)])
        tokens, embeds = repeated(self.token, len(patches) // self.merged)
        return Made(patches=patches, grid=(spans, 1, self.places), tokens=tokens, embeds=embeds)
