"""Pictures of LLaVA-1.5 are what transformers makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jaxengine.errors import ConfigError
from tests.media.processors.theirs import SIZES, cut, ours, pil_backend, shown
from tests.media_models import FAMILIES

LLAVA = "LlavaForConditionalGeneration"


@pytest.mark.torch
@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_picture_becomes_what_transformers_makes_of_it(tmp_path: Path, size: tuple[int, int], pads: bool) -> None:
    theirs = pil_backend("llava.image_processing_pil_llava", "LlavaImageProcessorPil")
    mine = ours(tmp_path, LLAVA, do_pad=pads)
    said = json.loads((tmp_path / "preprocessor_config.json").read_text())
    del said["image_processor_type"]
    pixels, item = shown(*size)
    expected = theirs(**said, do_pad=pads)(pixels, return_tensors="np")["pixel_values"]
    made = mine.image(item)
    assert made.grid == (1, 4, 4)
    assert np.array_equal(made.patches, cut(expected, 14))
    assert made.tokens.tolist() == [FAMILIES[LLAVA].id_of("<image>")] * 16


def test_sizes_that_are_not_the_towers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes pictures of 56 pixels, and the processor's crop_size is 28"):
        ours(tmp_path, LLAVA, crop_size=28)
