"""Prompts that show something become requests with items in them, or are refused with what is wrong."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from buckets import Bucket
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.media import MediaFacts, Modality
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.errors import RequestError
from jaxengine.front.intake import Intake
from jaxengine.front.showing import Showing
from jaxengine.media.items import Shown
from jaxengine.options.media import MediaConfig
from jaxengine.text.tokenizer import Tokenizer
from tests.media.hostile import png_of
from tests.media.processors.theirs import ours
from tests.media_models import FAMILIES, picture

QWEN = "Qwen2_5_VLForConditionalGeneration"
SHOW = "<|vision_start|><|image_pad|><|vision_end|>"
SHAPES = (Bucket(16, 256),)


class Front:
    """An intake for a model that sees, and its way in for pictures."""

    def __init__(
        self, folder: Path, architecture: str = QWEN, *, max_model_len: int = 512, given: int = 0, **options: Any
    ) -> None:
        facts = MediaFacts(
            modalities=(Modality.IMAGE, Modality.VIDEO),
            buckets=SHAPES,
            num_pages=64,
            page_size=16,
            num_axes=3,
            given_width=given,
        )
        processor = ours(folder, architecture)
        self.showing = Showing(processor, facts, MediaConfig(**options), max_model_len=max_model_len)
        tokenizer = Tokenizer.load(folder)
        self.intake = Intake(
            tokenizer, EngineFacts(vocab_size=288, max_model_len=max_model_len, media=facts), showing=self.showing
        )

    def request(self, prompt: Any) -> Request:
        [request] = self.intake.prepare([prompt], [SamplingParams(max_tokens=4)])
        return request


@pytest.fixture
def front(tmp_path: Path) -> Front:
    return Front(tmp_path)


def shows(*items: Any, text: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "prompt": SHOW * len(items) if text is None else text,
        "multi_modal_data": {"image": items[0] if len(items) == 1 else list(items)},
        **more,
    }


def as_url(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def test_a_picture_stands_in_the_prompt_of_its_request(front: Front) -> None:
    request = front.request(shows(picture(56, 84), text=f"see {SHOW}?"))
    image = FAMILIES[QWEN].id_of("<|image_pad|>")
    assert request.media is not None
    [item] = request.media.items
    assert [request.prompt_token_ids[place] for place in item.places] == [image] * 6
    assert request.prompt_token_ids.count(image) == 6
    assert item.grid == (1, 6, 4)
    assert request.prompt == f"see {SHOW}?"
    assert request.media.axes is not None
    assert request.media.axes.shape == (3, len(request.prompt_token_ids))


def test_a_text_shows_nothing(front: Front) -> None:
    assert front.request("see?").media is None
    assert front.request({"prompt": "see?", "multi_modal_data": {}}).media is None


WAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda pixels: pixels,
    "pil": Image.fromarray,
    "file": lambda pixels: png_of(pixels.shape[1], pixels.shape[0]),
    "url": lambda pixels: as_url(png_of(pixels.shape[1], pixels.shape[0])),
}


@pytest.mark.parametrize("way", WAYS)
def test_pictures_come_in_many_ways(front: Front, way: str) -> None:
    media = front.request(shows(WAYS[way](picture(60, 90)))).media
    assert media is not None
    assert media.items[0].grid == (1, 6, 4)


def test_one_picture_has_one_digest_and_settings_are_part_of_it(front: Front) -> None:
    def digest(prompt: Any) -> bytes:
        media = front.request(prompt).media
        assert media is not None
        return media.items[0].digest

    first = digest(shows(picture(56, 56)))
    assert digest(shows(picture(56, 56))) == first
    assert digest(shows(picture(56, 56, 1))) != first
    assert digest(shows(picture(56, 56), mm_processor_kwargs={"max_pixels": 28 * 28 * 8})) != first


def test_what_is_prepared_is_kept(tmp_path: Path) -> None:
    front = Front(tmp_path)
    kept = front.showing.kept
    items = [front.request(shows(picture(56, 56))).media for _ in range(2)]
    assert (kept.queries, kept.hits) == (2, 1)
    assert items[0] is not None
    assert items[1] is not None
    assert items[0].items[0].patches is items[1].items[0].patches
    none = Front(tmp_path, mm_processor_cache_gb=0.0)
    for _ in range(2):
        none.request(shows(picture(56, 56)))
    assert none.showing.kept.hits == 0


def test_an_earlier_answers_ids_may_come_again(front: Front) -> None:
    first = front.request(shows(picture(56, 84), picture(56, 56)))
    data = {"image": [picture(56, 84), picture(56, 56)]}
    again = front.request({"prompt_token_ids": list(first.prompt_token_ids), "multi_modal_data": data})
    assert again.prompt_token_ids == first.prompt_token_ids


def test_a_video_is_shown(front: Front) -> None:
    frames = np.stack([picture(56, 56, seed) for seed in range(4)])
    text = "<|vision_start|><|video_pad|><|vision_end|>"
    media = front.request({"prompt": text, "multi_modal_data": {"video": (frames, {"fps": 2.0})}}).media
    assert media is not None
    assert media.items[0].grid[0] == 2
    assert media.items[0].modality is Modality.VIDEO


def test_embeddings_stand_where_their_picture_would(tmp_path: Path) -> None:
    front = Front(tmp_path, given=8)
    values, text = np.arange(80, dtype=np.float32).reshape(10, 8), f"{SHOW}a{SHOW}"
    given = {"image_embeds": values, "image_grid_thw": np.array([[1, 4, 6], [1, 8, 2]])}
    request, seen = (front.request(shows(of, text=text)) for of in (given, [picture(84, 56), picture(28, 112)]))
    assert request.media is not None
    assert seen.media is not None
    assert request.prompt_token_ids == seen.prompt_token_ids
    np.testing.assert_array_equal(request.media.axes, seen.media.axes)
    first, second = request.media.items
    assert first.given
    np.testing.assert_array_equal(first.patches, values[:6])
    np.testing.assert_array_equal(second.patches, values[6:])
    with pytest.raises(
        RequestError, match=r"6 embeddings need image_grid_thw.*in whole blocks of 2 x 2, 4 times as many"
    ):
        front.request(shows(values[:6]))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "none": (shows(np.zeros((9, 9, 3), np.uint8), text="no"), "has 0 placeholder"),
    "more": (shows(np.zeros((9, 9, 3), np.uint8), text=SHOW * 2), r"has 2 placeholder\(s\) of image .* and 1 image"),
    "shape": (shows(np.zeros((9, 9), np.uint8)), "height, width and 3 colours of uint8"),
    "torn": (shows(png_of(20, 20)[:60]), "cannot be decoded"),
    "number": (shows(7), "a picture must be a PIL picture, an array .* got int"),
    "word": (shows("cat.png"), "the URL of an item begins with 'cat.png'"),
    "file": (shows("file:///etc/passwd"), "start it with --allowed-local-media-path"),
    "kind": ({"prompt": "a", "multi_modal_data": {"images": 1}}, "modality 'images'.*Did you mean 'image'"),
    "embeddings": (shows(np.zeros((6, 8), np.float32)), "must set `--enable-mm-embeds`"),
    "embeddings of sound": ({"prompt": "a", "multi_modal_data": {"audio": {"audio_embeds": 1}}}, "of audio are not"),
    "sound": ({"prompt": "a", "multi_modal_data": {"audio": [0.0]}}, r"At most 0 audio\(s\) may be provided"),
    "data": ({"prompt": "a", "multi_modal_data": 3}, "multi_modal_data must be such as"),
    "kwargs": (shows(picture(9, 9), mm_processor_kwargs={"pixels": 3}), "has a key 'pixels'"),
    "kwargs word": (
        shows(picture(9, 9), mm_processor_kwargs={"max_pixels": "a"}),
        "mm_processor_kwargs cannot be used",
    ),
    "kwargs size": (shows(picture(9, 9), mm_processor_kwargs={"size": 3}), "mm_processor_kwargs cannot be used"),
    "kwargs mean": (shows(picture(9, 9), mm_processor_kwargs={"image_mean": ["a"]}), "mm_processor_kwargs cannot be"),
    "kwargs none": (shows(picture(9, 9), mm_processor_kwargs={"max_pixels": -1}), "mm_processor_kwargs cannot be used"),
    "kwargs type": (shows(picture(9, 9), mm_processor_kwargs=3), "mm_processor_kwargs must map"),
    "uuids": (shows(picture(9, 9), multi_modal_uuids={"image": ["a"]}), "known by their content"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shown_is_told(front: Front, name: str) -> None:
    prompt, told = REFUSED[name]
    with pytest.raises(RequestError, match=told):
        front.request(prompt)


def test_as_many_are_shown_as_are_allowed(tmp_path: Path) -> None:
    front = Front(tmp_path, limit_mm_per_prompt={"image": 1, "video": 0})
    with pytest.raises(
        RequestError, match=r"At most 1 image\(s\) may be provided in one prompt. Set `--limit-mm-per-prompt`"
    ):
        front.request(shows(picture(9, 9), picture(9, 9)))
    with pytest.raises(RequestError, match=r"At most 0 video\(s\)"):
        front.request({"prompt": "", "multi_modal_data": {"video": np.zeros((2, 9, 9, 3), np.uint8)}})


def test_a_thousand_pictures_are_refused_before_one_is_read(front: Front) -> None:
    with pytest.raises(RequestError, match=r"At most 999 image\(s\)"):
        front.request(shows(*["http://nowhere.invalid/"] * 1000))
    with pytest.raises(RequestError, match="more tokens than max_model_len"):
        front.request(shows(*["http://nowhere.invalid/"] * 600))


def test_a_prompt_that_grows_too_long_is_refused(tmp_path: Path) -> None:
    front = Front(tmp_path, max_model_len=40)
    with pytest.raises(RequestError, match=r"maximum context length is 40 tokens\. However, your prompt contains 66"):
        front.request(shows(picture(448, 448)))


def test_a_model_without_eyes_says_so() -> None:
    intake = Intake(None, EngineFacts(vocab_size=9, max_model_len=64))
    prompt = {"prompt_token_ids": [1], "multi_modal_data": {"image": picture(9, 9)}}
    with pytest.raises(
        RequestError, match=r"At most 0 image\(s\) may be provided in one prompt: this model takes text alone"
    ):
        intake.prepare([prompt], [SamplingParams()])


def test_pictures_are_as_small_as_the_encoder_takes(tmp_path: Path) -> None:
    processor = ours(tmp_path, QWEN)
    facts = MediaFacts(modalities=(Modality.IMAGE,), buckets=(Bucket(1, 64),), num_pages=9, page_size=16)
    showing = Showing(processor, facts, MediaConfig(), max_model_len=512)
    [item] = showing.prepare([Shown(Modality.IMAGE, picture(640, 480))])
    assert len(item.made.patches) <= 64


def test_a_file_of_the_allowed_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(png_of(60, 90))
    front = Front(tmp_path, allowed_local_media_path=str(tmp_path))
    assert front.request(shows(f"file://{tmp_path}/cat.png")).media is not None
