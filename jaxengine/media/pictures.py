"""Files of pictures become pixels."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxengine.media.errors import MediaError, needing
from jaxengine.media.items import Picture, digest_of

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""Those that are opened: what browsers show, and plain ones. Others have decoders that few have looked at."""
MAX_PIXELS = 64 << 20
"""Of one picture: 192 MiB as they are decoded."""
WHITE = (255, 255, 255)


def decode_picture(content: bytes, *, background: tuple[int, int, int] = WHITE) -> Picture:
    """The first frame of a file, turned as its EXIF says, on `background` where it is transparent.

    Raises:
        MediaError: it is no picture of a known format, is cut or damaged, or has too many pixels.
        UnsupportedError: Pillow is not installed.
    """
    with needing("vision"):
        from PIL import Image, ImageFile, UnidentifiedImageError
    assert not ImageFile.LOAD_TRUNCATED_IMAGES, "somebody in this process asked Pillow to make up missing pixels"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd about a file and does not keep it from being read
            opened = Image.open(io.BytesIO(content), formats=FORMATS)
            check_size(*opened.size)  # before anything is decoded
            picture = picture_of(opened, background=background)
    except UnidentifiedImageError as error:
        raise MediaError(f"a picture is of no format that is read: {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise _too_large() from error
    except MediaError:
        raise
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise MediaError(f"a picture cannot be decoded: {type(error).__name__}: {str(error)[:200]}") from error
    return Picture(picture.pixels, digest_of("picture", content, bytes(background)))


def picture_of(image: Image, *, background: tuple[int, int, int] = WHITE) -> Picture:
    """A picture that the caller has opened.

    Raises:
        MediaError: it has too many pixels.
    """
    from PIL import ImageOps
    from PIL.Image import new

    check_size(*image.size)
    turned = ImageOps.exif_transpose(image)
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        layer = turned.convert("RGBA")
        flat = new("RGB", layer.size, background)
        flat.paste(layer, mask=layer.getchannel("A"))
    else:
        flat = turned.convert("RGB")
    return picture_of_array(np.array(flat))


def picture_of_array(pixels: Any) -> Picture:
    """Pixels as they are: `[height, width, 3]` of uint8.

    Raises:
        MediaError: they have another shape or type.
    """
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise MediaError(
            f"a picture as an array has height, width and 3 colours of uint8, got {array.dtype} {list(array.shape)}"
        )
    check_size(array.shape[1], array.shape[0])
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return Picture(array, digest_of("pixels", repr(array.shape).encode(), array.data))


def check_size(width: int, height: int) -> None:
    """Whether a picture of this size is taken.

    Raises:
        MediaError: it has no pixels, or too many.
    """
    if width < 1 or height < 1:
        raise MediaError(f"a picture of {width} x {height} has no pixels")
    if width * height > MAX_PIXELS:
        raise _too_large()


def _too_large() -> MediaError:
    return MediaError(f"a picture has more than {MAX_PIXELS:,} pixels, which is the most that is decoded")
