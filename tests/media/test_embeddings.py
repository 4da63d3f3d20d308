"""Embeddings that prompts give: every form that is read without torch, and what is told of others."""

from __future__ import annotations

import base64
import io
import json
import pickle
from typing import Any

import numpy as np
import pytest

from jaxengine.media.embeddings import Given, embeddings_of, given_of
from jaxengine.media.errors import MediaError

WIDTH = 4
VALUES = np.arange(12, dtype=np.float32).reshape(3, WIDTH) / 8  # which bfloat16 holds


def npy(values: np.ndarray) -> str:
    written = io.BytesIO()
    np.save(written, values)
    return base64.b64encode(written.getvalue()).decode()


def tensors(name: str, values: np.ndarray, **more: Any) -> str:
    data = values.tobytes()
    entry = {"dtype": name, "shape": list(values.shape), "data_offsets": [0, len(data)], **more}
    header = json.dumps({"__metadata__": {}, "a": entry}).encode()
    return base64.b64encode(len(header).to_bytes(8, "little") + header + data).decode()


FORMS: dict[str, Any] = {
    "array": VALUES,
    "half": VALUES.astype(np.float16),
    "of one": VALUES[None],
    "npy": npy(VALUES),
    "bytes": base64.b64decode(npy(VALUES)),
    "safetensors": tensors("F32", VALUES),
    "bfloat16": tensors("BF16", (VALUES.view(np.uint32) >> 16).astype(np.uint16)),
}


@pytest.mark.parametrize("form", FORMS)
def test_embeddings_come_in_many_forms(form: str) -> None:
    found = embeddings_of(Given(FORMS[form]), WIDTH)
    np.testing.assert_array_equal(found.values, VALUES)
    assert found.digest == embeddings_of(Given(VALUES), WIDTH).digest
    assert found.digest != embeddings_of(Given(VALUES + 1), WIDTH).digest
    assert found.digest != embeddings_of(Given(VALUES, [1, 2, 6]), WIDTH).digest


def test_those_of_several_pictures_are_told_apart() -> None:
    assert [len(one.values) for one in given_of(np.zeros((2, 3, WIDTH)))] == [3, 3]
    by_grid = given_of({"image_embeds": np.zeros((5, WIDTH)), "image_grid_thw": [1, 2, 4, 1, 2, 6]})
    assert [(len(one.values), list(one.grid)) for one in by_grid] == [(2, [1, 2, 4]), (3, [1, 2, 6])]


REFUSED: dict[str, tuple[Any, str]] = {
    "torch": (
        base64.b64encode(b"PK\x03\x04 torch").decode(),
        r"torch.save wrote are not read.* a .npy or a .safetensors",
    ),
    "pickle": (base64.b64encode(pickle.dumps([1])).decode(), "torch.save wrote are not read"),
    "pickle in npy": (npy(np.array([{}], object)), "cannot be read"),
    "base64": ("?", "no base64"),
    "nothing": ("", "cannot be read as a .npy"),
    "text": (base64.b64encode(b"hello, world").decode(), "cannot be read"),
    "torn": (tensors("F32", VALUES)[:-8], "cannot be read"),
    "shape": (tensors("F32", VALUES, shape=[1 << 40, 4]), "cannot be read"),
    "no numbers": (tensors("U8", VALUES.astype(np.uint8)), "cannot be read"),
    "width": (np.zeros((3, 5)), r"are \[n, 4\] for this model, got \[3, 5\]"),
    "none": (np.zeros((0, WIDTH)), "one to three axes"),
    "nan": (np.full((1, WIDTH), np.nan), "finite"),
    "large": (np.full((1, WIDTH), 1e300), "finite"),
    "word": (3, "must be an array, or a .npy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_embeddings_is_told(name: str) -> None:
    given, told = REFUSED[name]
    with pytest.raises(MediaError, match=told):
        embeddings_of(Given(given), WIDTH)


@pytest.mark.parametrize("grid", [[1, 2], [1, 2, 0], [1, 2, 5000], [1.0, 2.0, 2.0], [1, 3, 7, 1, 1, 1], "?"])
def test_grids_that_do_not_fit_are_told(grid: Any) -> None:
    with pytest.raises(MediaError):
        given_of({"image_embeds": np.zeros((5, WIDTH)), "image_grid_thw": grid})
