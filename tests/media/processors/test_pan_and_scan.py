"""Gemma 3's long pictures are shown again in parts, with transformers' words around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jaxengine.contract.media import Modality
from jaxengine.media.pictures import picture_of_array
from jaxengine.media.placing import Prepared, placed
from tests.media.processors.theirs import ours, shown
from tests.media_models import FAMILIES, tokenizer_of

GEMMA3 = "Gemma3ForConditionalGeneration"
ASKED = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 32}
CROPS = {
    (100, 60): [(50, 60), (50, 60)],
    (640, 480): [(320, 480), (320, 480)],
    (33, 700): [(33, 175)] * 4,
    (20, 20): [],
    (100, 84): [],
    (1001, 333): [(334, 333), (334, 333), (333, 333)],
    (70, 30): [],
}
"""By width and height: of each part, as transformers' `Gemma3ImageProcessorPil.pan_and_scan` cuts them."""


@pytest.mark.parametrize("size", CROPS, ids=str)
def test_parts_are_those_of_transformers(tmp_path: Path, size: tuple[int, int]) -> None:
    processor = ours(tmp_path, GEMMA3, **ASKED)
    pixels, picture = shown(*size)
    made, expected, at = processor.image(picture), [pixels], 0
    for width, height in CROPS[size]:
        across = size[0] >= size[1]
        expected.append(pixels[:, at : at + width] if across else pixels[at : at + height])
        at += width if across else height
    one = ours(tmp_path, GEMMA3)
    whole = np.concatenate([one.image(picture_of_array(part)).patches for part in expected])
    np.testing.assert_array_equal(made.patches, whole)
    assert made.grid[0] == len(expected)
    assert made.num_embeddings == 16 * len(expected)
    assert processor.most(Modality.IMAGE).embeddings == 16 * 5


def test_their_words_are_transformers(tmp_path: Path) -> None:
    """The second picture is whole; the ids are those of the text that transformers makes of all."""
    processor, backend = ours(tmp_path, GEMMA3, **ASKED), tokenizer_of(FAMILIES[GEMMA3])
    mark = "<start_of_image>"
    one = f"\n\n{mark}{'<image_soft_token>' * 16}<end_of_image>\n\n"
    said = f"Here is the original image {one} and here are some crops to help you see better {one} {one}"
    items = [Prepared(Modality.IMAGE, bytes(32), processor.image(shown(*size)[1])) for size in ((100, 60), (20, 20))]
    given = backend.encode(f"see \n\n{mark}\n\nand \n\n{mark}\n\n?", add_special_tokens=False).ids
    ids, media = placed(given, items, processor)
    assert list(ids) == backend.encode(f"see {said}and {one}?", add_special_tokens=False).ids
    token = FAMILIES[GEMMA3].id_of("<image_soft_token>")
    places = np.concatenate([item.places for item in media.items])
    assert [ids[place] for place in places] == [token] * (16 * 4)
    again, same = placed(ids, items, processor)
    assert again == ids
    np.testing.assert_array_equal(same.items[0].places, media.items[0].places)
