"""transformers' processors that need no torch, of a small model's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxengine.media.pictures import picture_of_array
from jaxengine.media.processors import Processor, processor_for
from tests.media_models import FAMILIES, picture, recorded_config, tokenizer_of, write_text_files

SIZES = [(100, 60), (640, 480), (33, 700), (20, 20), (56, 56), (1001, 333)]
"""Width and height."""


def ours(folder: Path, architecture: str, **kwargs: Any) -> Processor:
    """The processor of a family, of files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    family = FAMILIES[architecture]
    write_text_files(folder, family)
    backend = tokenizer_of(family)
    processor = processor_for(
        folder,
        recorded_config(architecture),
        kwargs,
        lambda text: backend.encode(text, add_special_tokens=False).ids,
        decode=lambda ids: backend.decode(list(ids), skip_special_tokens=False),
    )
    assert processor is not None
    return processor


def pil_backend(module: str, name: str) -> Any:
    """A class of transformers, where it has it."""
    return getattr(pytest.importorskip(f"transformers.models.{module}"), name)


def cut(pixels: np.ndarray, size: int) -> np.ndarray:
    """`[n, 3, h, w]` in patches row by row, `[patches, 3 * size * size]`."""
    count, colours, height, width = pixels.shape
    blocks = pixels.reshape(count, colours, height // size, size, width // size, size)
    return blocks.transpose(0, 2, 4, 1, 3, 5).reshape(-1, colours * size * size)


def shown(width: int, height: int, seed: int = 0) -> tuple[np.ndarray, Any]:
    """The pixels of a picture, and the picture."""
    pixels = picture(width, height, seed)
    return pixels, picture_of_array(pixels)
