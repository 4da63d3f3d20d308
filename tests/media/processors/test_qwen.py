"""Pictures and videos of Qwen2.5-VL and Qwen3-VL are what transformers makes of them, and their positions too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Video
from jaxengine.media.placing import Prepared, placed
from jaxengine.media.processors import limits
from jaxengine.media.video import video_of_frames
from tests.media.processors.theirs import SIZES, ours, pil_backend, shown
from tests.media_models import FAMILIES, picture, recorded_config

QWEN2, QWEN3 = "Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration"
START, END, IMAGE, VIDEO = (FAMILIES[QWEN2].id_of(token) for token in FAMILIES[QWEN2].special)


def video(frames: int, width: int = 60, height: int = 40) -> Video:
    return video_of_frames(
        [picture(width, height, seed) for seed in range(frames)], tuple(n / 2 for n in range(frames))
    )


@pytest.mark.torch
@pytest.mark.parametrize("architecture", [QWEN2, QWEN3])
@pytest.mark.parametrize("size", SIZES)
def test_a_picture_becomes_what_transformers_makes_of_it(
    tmp_path: Path, architecture: str, size: tuple[int, int]
) -> None:
    theirs = pil_backend("qwen2_vl.image_processing_pil_qwen2_vl", "Qwen2VLImageProcessorPil")
    mine = ours(tmp_path, architecture)
    pixels, item = shown(*size)
    said = json.loads((tmp_path / "preprocessor_config.json").read_text())
    expected = theirs(**{key: value for key, value in said.items() if key != "image_processor_type"})(
        pixels, return_tensors="np"
    )
    made = mine.image(item)
    assert made.grid == tuple(expected["image_grid_thw"][0])
    assert np.array_equal(made.patches, expected["pixel_values"])
    assert (made.tokens == IMAGE).all()
    assert made.embeds.all()
    assert len(made.tokens) == len(made.patches) // 4


def test_files_of_a_real_checkpoint_are_read_where_transformers_5_writes_them(tmp_path: Path) -> None:
    mine = ours(tmp_path, QWEN2)
    whole = {"image_processor": json.loads((tmp_path / "preprocessor_config.json").read_text())}
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert limits(tmp_path, recorded_config(QWEN2))[Modality.IMAGE] == mine.most(Modality.IMAGE)


def test_what_the_user_says_of_sizes_holds(tmp_path: Path) -> None:
    small = ours(tmp_path, QWEN2, max_pixels=28 * 28 * 4)
    assert small.most(Modality.IMAGE).embeddings == 4
    assert small.image(shown(640, 480)[1]).num_embeddings <= 4
    assert small.identity != ours(tmp_path, QWEN2).identity
    sized = ours(tmp_path, QWEN2, size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 4})
    assert sized.most(Modality.IMAGE).embeddings == 4
    with pytest.raises(ConfigError, match=r"'maxpixels'.*Did you mean 'max_pixels'"):
        ours(tmp_path, QWEN2, maxpixels=4)
    with pytest.raises(ConfigError, match="which nothing is"):
        ours(tmp_path, QWEN2, min_pixels=10_000, max_pixels=5_000).image(shown(64, 64)[1])


def test_a_picture_that_is_a_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="at most 200 times the other, got 1 x 201"):
        ours(tmp_path, QWEN2).image(shown(1, 201)[1])


@pytest.mark.parametrize(("frames", "pairs"), [(1, 1), (2, 1), (5, 3), (8, 4)])
def test_a_video_is_pairs_of_frames(tmp_path: Path, frames: int, pairs: int) -> None:
    made = ours(tmp_path, QWEN2).video(video(frames))
    assert made.grid[0] == pairs
    assert (made.tokens == VIDEO).all()
    assert len(made.tokens) == np.prod(made.grid) // 4
    assert made.interval == 4 * 2 / 2  # positions a second, frames of a patch, frames a second


def test_frames_of_a_video_lie_beside_each_other_in_a_patch(tmp_path: Path) -> None:
    first, second = picture(56, 56, 0), picture(56, 56, 1)
    mine = ours(tmp_path, QWEN2)
    made = mine.video(video_of_frames([first, second], (0.0, 0.5)))
    alone = [mine.image(shown(56, 56, seed)[1]) for seed in (0, 1)]
    pair = made.patches.reshape(-1, 3, 2, 14 * 14)
    for frame, one in enumerate(alone):
        assert np.array_equal(pair[:, :, frame], one.patches.reshape(-1, 3, 2, 14 * 14)[:, :, 0])


def test_pairs_of_frames_of_qwen3_stand_behind_their_second(tmp_path: Path) -> None:
    made = ours(tmp_path, QWEN3).video(video(4))
    each = made.num_embeddings // 2
    text = [list(f"<{second} seconds>".encode()) for second in ("0.2", "1.2")]
    lengths = [len(one) + 2 + each for one in text]
    assert len(made.tokens) == sum(lengths)
    runs = np.split(np.flatnonzero(made.embeds), [each])
    assert [run[0] for run in runs] == [len(text[0]) + 1, lengths[0] + len(text[1]) + 1]
    assert made.tokens[runs[0][0] - 1] == START
    assert made.tokens[runs[1][-1] + 1] == END


def prepared(made: Any, modality: Modality = Modality.IMAGE) -> Prepared:
    return Prepared(modality, b"d" * 32, made)


def test_placeholders_become_what_stands_for_items(tmp_path: Path) -> None:
    mine = ours(tmp_path, QWEN2)
    pictures = [prepared(mine.image(shown(56, 84)[1])), prepared(mine.image(shown(56, 56)[1]))]
    ids, media = placed([1, START, IMAGE, END, 2, START, IMAGE, END], pictures, mine)
    assert ids == (1, START, *[IMAGE] * 6, END, 2, START, *[IMAGE] * 4, END)
    assert [item.places.tolist() for item in media.items] == [list(range(2, 8)), list(range(11, 15))]
    assert media.axes is not None
    assert media.axes[:, :9].tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 3, 3, 4, 4, 5],
        [0, 1, 2, 3, 2, 3, 2, 3, 5],
    ]
    assert media.offset == media.axes.max() + 1 - len(ids)
    again, same = placed(ids, pictures, mine)
    assert again == ids
    assert [item.places.tolist() for item in same.items] == [item.places.tolist() for item in media.items]


@pytest.mark.torch
@pytest.mark.parametrize("architecture", [QWEN2, QWEN3])
def test_positions_are_those_of_transformers(tmp_path: Path, architecture: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    mine = ours(tmp_path, architecture)
    items = [
        prepared(mine.image(shown(200, 120)[1])),
        prepared(mine.video(video(6)), Modality.VIDEO),
        prepared(mine.image(shown(64, 64)[1])),
    ]
    text = [START, IMAGE, END, 5, START, VIDEO, END, 6, 7, START, IMAGE, END, 8]
    ids, media = placed(text, items, mine)
    config = getattr(transformers, architecture).config_class(**FAMILIES[architecture].config())
    kind = getattr(transformers, "Qwen2_5_VLModel" if architecture == QWEN2 else "Qwen3VLModel")
    with torch.device("meta"):
        model = kind(config)
    tokens = torch.tensor([ids])
    kinds = (tokens == IMAGE).int() + 2 * (tokens == VIDEO).int()
    seconds = {"second_per_grid_ts": torch.tensor([1.0])} if architecture == QWEN2 else {}
    axes, delta = model.get_rope_index(
        tokens,
        kinds,
        image_grid_thw=torch.tensor([items[0].made.grid, items[2].made.grid]),
        video_grid_thw=torch.tensor([items[1].made.grid]),
        **seconds,
    )
    assert media.axes is not None
    assert np.array_equal(media.axes, axes[:, 0].numpy())
    assert media.offset == int(delta)
