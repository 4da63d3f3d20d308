"""Each family's pictures and videos are those that transformers makes, as recorded; what stands for them is as many tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jaxengine.contract.media import Modality
from jaxengine.media.processors import PROCESSORS, TOWERS, Made, limits, processor_for
from jaxengine.media.video import video_of_frames
from tests.media.processors.record import FRAMES, RECORDED, VIDEOS, frames, places
from tests.media.processors.theirs import SIZES, ours, shown
from tests.media_models import FAMILIES, recorded_config

THEIRS = json.loads(RECORDED.read_text())
GREY = 0.02
"""A level of grey behind normalisation, and more: filters of Pillow and of torch round some pixels to neighbouring levels."""


def check(made: Made, theirs: dict[str, list[float]]) -> None:
    assert list(made.patches.shape) == theirs["shape"]
    assert np.prod(made.grid) == len(made.patches)
    flat = made.patches.ravel()
    assert np.abs(flat[places(len(flat))] - np.asarray(theirs["values"])).max() < GREY


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_picture(tmp_path: Path, architecture: str, size: tuple[int, int]) -> None:
    processor = ours(tmp_path, architecture)
    made = processor.image(shown(*size)[1])
    check(made, THEIRS[architecture][f"{size[0]}x{size[1]}"])
    most = processor.most(Modality.IMAGE)
    assert len(made.patches) <= most.patches
    assert made.num_embeddings <= most.embeddings
    assert made.grid[0] <= most.rows
    assert len(made.tokens) >= made.num_embeddings > 0
    assert len(made.patches) % made.num_embeddings == 0 or made.mosaic is not None


@pytest.mark.parametrize("architecture", VIDEOS)
@pytest.mark.parametrize("video", FRAMES, ids=str)
def test_a_video(tmp_path: Path, architecture: str, video: tuple[int, int, int]) -> None:
    times = tuple(number / 2 for number in range(video[0]))
    made = ours(tmp_path, architecture).video(video_of_frames(frames(*video), times))
    check(made, THEIRS[f"{architecture}/video"]["x".join(map(str, video))])


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("most", [64, 200])
def test_pictures_are_as_small_as_the_encoder_takes_where_they_can_be(
    tmp_path: Path, architecture: str, most: int
) -> None:
    processor = ours(tmp_path, architecture)
    if not processor.most(Modality.IMAGE).resizable:
        pytest.skip("every picture of this family has as many patches")
    encode = processor.settings.encode
    small = processor_for(tmp_path, recorded_config(architecture), None, encode, max_patches=most)
    assert small is not None
    for size in SIZES:
        assert len(small.image(shown(*size)[1]).patches) <= most
    assert small.identity != processor.identity


STANDS: dict[str, list[str]] = {
    "Gemma3ForConditionalGeneration": ["<start_of_image>", *["<image_soft_token>"] * 16, "<end_of_image>"],
    "Gemma4ForConditionalGeneration": ["<|image>", *["<|image|>"] * 64, "<image|>"],
    "LlavaOnevisionForConditionalGeneration": ["<image>"] * (16 + 4 * 5),
    "Mistral3ForConditionalGeneration": [*["[IMG]", "[IMG]", "[IMG_BREAK]"], *["[IMG]", "[IMG]", "[IMG_END]"]],
    "InternVLForConditionalGeneration": ["<img>", *["<IMG_CONTEXT>"] * 4, "</img>"],
    "Llama4ForConditionalGeneration": ["<|image_start|>", "<|image|>", *["<|patch|>"] * 4, "<|image_end|>"],
    "LlavaForConditionalGeneration": ["<image>"] * 16,
    "LlavaForConditionalGeneration/pixtral": (["[IMG]"] * 4 + ["[IMG_BREAK]"]) * 3 + ["[IMG]"] * 4 + ["[IMG_END]"],
    "Qwen2_5_VLForConditionalGeneration": ["<|image_pad|>"] * 4,
    "Qwen3VLForConditionalGeneration": ["<|image_pad|>"] * 4,
}


@pytest.mark.parametrize("architecture", STANDS)
def test_tokens_stand_for_a_small_square(tmp_path: Path, architecture: str) -> None:
    made = ours(tmp_path, architecture).image(shown(56, 56)[1])
    assert made.tokens.tolist() == [FAMILIES[architecture].id_of(token) for token in STANDS[architecture]]


def test_rows_of_tiles_end_with_a_line(tmp_path: Path) -> None:
    """SmolVLM's: each tile with its row and column, an empty line, and the whole."""
    family = FAMILIES["SmolVLMForConditionalGeneration"]
    processor = ours(tmp_path, "SmolVLMForConditionalGeneration")
    made = processor.image(shown(192, 128)[1])
    around = family.id_of("<fake_token_around_image>")
    tiles = [family.id_of(f"<row_{row}_col_{column}>") for row in (1, 2) for column in (1, 2, 3)]
    ids = made.tokens[~made.embeds].tolist()
    [line] = processor.ids("\n")
    assert ids == [
        *[part for tile in tiles[:3] for part in (around, tile)],
        line,
        *[part for tile in tiles[3:] for part in (around, tile)],
        *[line, line],
        *[around, family.id_of("<global-img>"), around],
    ]
    assert made.num_embeddings == 7 * 16


def test_tiles_of_llama4_are_parted(tmp_path: Path) -> None:
    family = FAMILIES["Llama4ForConditionalGeneration"]
    made = ours(tmp_path, "Llama4ForConditionalGeneration").image(shown(112, 56)[1])
    names = ["<|image_start|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>", "<|image_end|>"]
    assert made.tokens[~made.embeds].tolist() == [family.id_of(name) for name in names]
    assert made.num_embeddings == 3 * 4


def test_limits_are_known_without_a_tokenizer(tmp_path: Path) -> None:
    for architecture in FAMILIES:
        processor = ours(tmp_path / architecture, architecture)
        told = limits(tmp_path / architecture, recorded_config(architecture))
        assert told == {modality: processor.most(modality) for modality in processor.modalities}
    assert limits(tmp_path, {"architectures": ["LlamaForCausalLM"]}) == {}


def test_every_family_here_is_tried() -> None:
    every = {**PROCESSORS, **TOWERS}
    covered = {every[architecture] for architecture in FAMILIES}
    assert covered == {row for row in every.values() if row[0] not in ("hearing", "whisper")}
