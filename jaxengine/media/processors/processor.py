"""What makes encoder's input of a picture, a sound or a video, and says what stands for it in the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.arrays import Floats, Int32s
from jaxengine.contract.media import Modality, Mosaic
from jaxengine.errors import CheckpointError, ConfigError, UnsupportedError, nearest
from jaxengine.media.embeddings import Embeddings
from jaxengine.media.items import Picture, Sound, Video

Bools = NDArray[np.bool_]

FILES = {
    Modality.IMAGE: ("image_processor", "preprocessor_config.json"),
    Modality.VIDEO: ("video_processor", "video_preprocessor_config.json"),
    Modality.AUDIO: ("feature_extractor", "preprocessor_config.json"),
}
"""Where a model's files say how items are prepared: a key of processor_config.json, or a file of its own."""


OLDER_SIZES = ("min_pixels", "max_pixels")
"""Names in files for what `size` says, which a user's `size` replaces."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Made:
    """An item as its encoder takes it.

    `patches [n, P]` and `grid` as those of `MediaItem`. The ids `tokens` stand in the prompt for its placeholder; those that are
    True in `embeds` take its embeddings, in order. Frames of a video are `interval` apart in positions that count time.
    `unplaced` embeddings stand nowhere in the prompt, `mosaic` is how tiles lie, `given` says that `patches` are embeddings
    (`MediaItem`). With a `lead` that text stands before it, and not what the family has around its placeholders.
    """

    patches: Floats
    grid: tuple[int, int, int]
    tokens: Int32s
    embeds: Bools
    interval: float = 1.0
    unplaced: int = 0
    mosaic: Mosaic | None = None
    given: bool = False
    lead: str | None = None

    @property
    def num_embeddings(self) -> int:
        return int(self.embeds.sum()) + self.unplaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Most:
    """The most that one item can be: patches, embeddings, and rows of the encoder (frames or tiles that see only themselves).

    An item that is `resizable` becomes smaller where the encoder takes less.
    """

    patches: int
    embeddings: int
    rows: int = 1
    resizable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a processor goes by.

    `config` is config.json, `own` what processor_config.json says of the whole, `of` what is said of each modality, with what the
    user says instead. `encode` makes token ids of a text without special tokens around it, `decode` the text again. An item has
    at most `max_patches` where the family can choose.
    """

    config: Mapping[str, Any]
    own: Mapping[str, Any]
    of: Mapping[Modality, Mapping[str, Any]]
    encode: Callable[[str], Sequence[int]] | None = field(default=None, compare=False)
    decode: Callable[[Sequence[int]], str] | None = field(default=None, compare=False)
    max_patches: int | None = None

    @classmethod
    def read(cls, path: Path, config: Mapping[str, Any], encode: Callable[[str], Sequence[int]] | None = None) -> Self:
        """Those of a model's directory.

        Raises:
            CheckpointError: a file is not JSON.
        """
        own = _json(path / "processor_config.json")
        of = {modality: own.get(key) or _json(path / name) for modality, (key, name) in FILES.items()}
        return cls(config=config, own=own, of=of, encode=encode)

    def token(self, *names: str) -> int:
        """The id that config.json has under one of these names.

        Raises:
            CheckpointError: under none.
        """
        for name in names:
            if isinstance(found := self.config.get(name), int):
                return found
        raise CheckpointError(f"config.json has none of {', '.join(names)}, which stand for what a prompt shows")


class Processor:
    """Of one family. What is decoded comes in; a thread may be in it while others are.

    Attributes:
        modalities: what the family takes.
        marks: of each the id in a prompt that stands for one item, before it is expanded.
        shown: of each the text that stands for one in a message whose template has no word for it.
        special: whether texts of prompts get the tokenizer's special tokens around them.
        needs: of what each prompt must have one.
        surround: text on both sides of a placeholder, where the family has it in texts.
        knobs: what `mm_processor_kwargs` may say, of those keys that the files have.
    """

    modalities: ClassVar[tuple[Modality, ...]] = (Modality.IMAGE,)
    knobs: ClassVar[frozenset[str]] = frozenset(
        {"size", "do_resize", "do_rescale", "do_normalize", "image_mean", "image_std"}
    )
    surround: ClassVar[str] = ""
    special: ClassVar[bool] = True
    needs: ClassVar[Modality | None] = None
    marks: Mapping[Modality, int]
    shown: Mapping[Modality, str]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def identity(self) -> bytes:
        """Of two processors with one identity every item comes out the same."""
        said = {str(modality): dict(values) for modality, values in self.settings.of.items()}
        told = [type(self).__name__, said, self.settings.max_patches]
        return json.dumps(told, sort_keys=True, default=str).encode()

    def most(self, modality: Modality) -> Most:
        """The largest item."""
        raise NotImplementedError

    def image(self, picture: Picture) -> Made:
        """Prepare a picture.

        Raises:
            MediaError: it cannot be shown to this model.
        """
        raise UnsupportedError("this model takes no pictures")

    def embedded(self, embeddings: Embeddings) -> Made:
        """Place embeddings that are given instead of a picture.

        Raises:
            MediaError: they are not as many as a picture of this model has.
        """
        raise UnsupportedError("this model's family takes no embeddings (image_embeds); give the picture itself")

    def video(self, video: Video) -> Made:
        """Prepare a video.

        Raises:
            MediaError: it cannot be shown to this model.
        """
        raise UnsupportedError("this model takes no videos")

    def sound(self, sound: Sound) -> Made:
        """Prepare a sound.

        Raises:
            MediaError: this model cannot hear it.
        """
        raise UnsupportedError("this model takes no sounds")

    @property
    def rate(self) -> int:
        """Samples a second of the sounds that it takes."""
        raise UnsupportedError("this model takes no sounds")

    def axes(self, length: int, shown: Sequence[tuple[Made, Int32s]]) -> tuple[Int32s, int] | None:
        """Rotary positions of several axes of a prompt, `[A, length]`, and the offset behind it; None where there is one axis.

        `shown` are items with their places, in order.
        """
        return None

    def ids(self, text: str) -> list[int]:
        """Token ids of a text within what stands for an item."""
        assert self.settings.encode is not None, "a processor without a tokenizer prepares nothing"
        return list(self.settings.encode(text))

    def led(self, ids: Int32s, lead: str) -> Int32s:
        """The ids before a placeholder with another text at their end than what the family has around placeholders."""
        assert self.settings.decode is not None, "a processor without a tokenizer prepares nothing"
        text = self.settings.decode(ids.tolist()).removesuffix(self.surround)
        return np.asarray(self.ids(text + lead), np.int32)


def with_kwargs(settings: Settings, knobs: frozenset[str], kwargs: Mapping[str, Any]) -> Settings:
    """The settings with what `mm_processor_kwargs` says.

    Raises:
        ConfigError: a key that the family does not have.
    """
    for key in kwargs:
        if key not in knobs:
            raise ConfigError(
                f"mm_processor_kwargs has a key {key!r} that this model's processor does not take: it takes "
                f"{', '.join(sorted(knobs))}.{nearest(key, knobs)}"
            )
    older = OLDER_SIZES if "size" in kwargs else ()
    return replace(
        settings,
        of={
            modality: {**{key: value for key, value in said.items() if key not in older}, **kwargs}
            for modality, said in settings.of.items()
        },
    )


def given(embeddings: Embeddings, ids: Sequence[int], token: int, *, grid: tuple[int, int, int] | None = None) -> Made:
    """Embeddings that stand at the `token`s of `ids`."""
    tokens, embeds = taking(ids, token)
    values = embeddings.values
    return Made(patches=values, grid=grid or (1, 1, len(values)), tokens=tokens, embeds=embeds, given=True)


def repeated(token: int, count: int) -> tuple[Int32s, Bools]:
    """`Made.tokens` and `Made.embeds` of `count` tokens that all take an embedding."""
    return np.full(count, token, np.int32), np.ones(count, np.bool_)


def taking(ids: Sequence[int], token: int) -> tuple[Int32s, Bools]:
    """The same of ids of which those that are `token` take an embedding."""
    tokens = np.asarray(ids, np.int32)
    return tokens, tokens == token


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise CheckpointError(f"{path.name} is no JSON object")
    return read
