"""Files of pictures are decoded, or refused."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image

from jaxengine.errors import UnsupportedError
from jaxengine.media.errors import MediaError
from jaxengine.media.pictures import decode_picture, picture_of, picture_of_array
from tests.media.hostile import hostile_pictures, png_of, saved

HOSTILE = hostile_pictures()


def test_a_file_has_the_pixels_that_were_saved() -> None:
    picture = decode_picture(png_of(40, 30))
    assert picture.pixels.shape == (30, 40, 3)
    assert np.array_equal(picture.pixels, np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))
    assert not picture.pixels.flags.writeable


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_three_colours(mode: str) -> None:
    form = "TIFF" if mode == "CMYK" else "PNG"
    assert decode_picture(saved(Image.new(mode, (5, 4)), form)).pixels.shape == (4, 5, 3)


def test_what_is_transparent_lies_on_the_background() -> None:
    clear = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert (decode_picture(saved(clear, "PNG")).pixels == 255).all()
    black = decode_picture(saved(clear, "PNG"), background=(0, 0, 0))
    assert (black.pixels == 0).all()
    assert black.digest != decode_picture(saved(clear, "PNG")).digest


def test_a_picture_is_turned_as_its_camera_was_held() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode_picture(saved(Image.new("RGB", (20, 10)), "JPEG", exif=exif)).pixels.shape == (20, 10, 3)


def test_equal_pictures_have_equal_digests() -> None:
    first, again, other = png_of(4, 4), png_of(4, 4), png_of(4, 5)
    assert decode_picture(first).digest == decode_picture(again).digest != decode_picture(other).digest
    array = np.zeros((2, 3, 3), np.uint8)
    assert picture_of_array(array).digest != picture_of_array(array.reshape(3, 2, 3)).digest
    assert picture_of(Image.fromarray(array)).digest == picture_of_array(array).digest


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_picture_is_refused(what: str) -> None:
    with pytest.raises(MediaError, match=r"^a picture "):
        decode_picture(HOSTILE[what])


@pytest.mark.parametrize("array", [np.zeros((4, 4), np.uint8), np.zeros((3, 4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_other_arrays_are_refused(array: np.ndarray) -> None:
    with pytest.raises(MediaError, match="height, width and 3 colours"):
        picture_of_array(array)


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    content = png_of(2, 2)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match=r"jaxengine\[vision\]"):
        decode_picture(content)
