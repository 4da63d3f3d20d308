"""Pictures in conversations of every API become the items of one prompt, and hostile ones are one request's error."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from buckets import Bucket
from jaxengine.contract.media import MediaFacts, Modality
from jaxengine.text.tokenizer import Tokenizer
from tests.fronts import make_engine
from tests.media.hostile import hostile_pictures, mp4_of, png_of
from tests.media.processors.theirs import ours
from tests.media_models import FAMILIES
from tests.server.rig import Live, live

QWEN = "Qwen2_5_VLForConditionalGeneration"
EACH = 6
"""Embeddings of a picture of 60 by 90."""
FACTS = MediaFacts(
    modalities=(Modality.IMAGE, Modality.VIDEO), buckets=(Bucket(16, 256),), num_pages=64, page_size=16, num_axes=3
)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of an engine that sees as far as its front knows."""
    with serve(tmp_path_factory.mktemp("vlm")) as running:
        yield running


@contextmanager
def serve(folder: Path, *, max_loras: int = 0, **options: Any) -> Iterator[Live]:
    processor = ours(folder, QWEN)
    engine = make_engine(
        tokenizer=Tokenizer.load(folder),
        vocab_size=288,
        max_len=512,
        processor=processor,
        media=FACTS,
        max_loras=max_loras,
        options={"limit_mm_per_prompt": {"image": 3}},
    )
    with live(engine, **options) as running:
        yield running


def as_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64," + base64.b64encode(content).decode()


CAT = as_url(png_of(60, 90))


def part(url: str = CAT, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "see"} if one is None else one for one in parts]}]


def chat(server: Live, *parts: Any, **fields: Any) -> Any:
    body = {"messages": user(*parts), "max_tokens": 3, "temperature": 0, **fields}
    return server.post("/v1/chat/completions", **body)


def prompt_tokens(answer: Any) -> int:
    assert answer.status_code == 200, answer.text
    count: int = answer.json()["usage"]["prompt_tokens"]
    return count


@pytest.mark.slow
def test_a_modality_has_an_adapter_of_its_own(tmp_path: Path) -> None:
    """For requests that name none."""
    defaults = {"image": "/adapters/one", "video": "/adapters/two"}
    video = {"type": "video_url", "video_url": {"url": as_url(mp4_of(4, width=60, height=90), "video/mp4")}}
    with serve(tmp_path, max_loras=2, default_mm_loras=defaults) as server:
        fields = {"return_token_ids": True}
        through = {
            model: chat(server, part(), None, model=model, **fields).json()["choices"][0]["token_ids"]
            for model in (None, "image", "video")
        }
        assert through[None] == through["image"] != through["video"]
        text = [
            chat(server, None, model=model, **fields).json()["choices"][0]["token_ids"] for model in (None, "image")
        ]
        assert text[0] != text[1]
        refused = chat(server, part(), video)
        assert refused.status_code == 400
        assert "shows image and video, which have different adapters" in refused.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_picture_takes_as_many_tokens_as_it_has_embeddings(seeing: Live, count: int) -> None:
    text = prompt_tokens(chat(seeing, None))
    assert prompt_tokens(chat(seeing, *[part()] * count, None)) == text + count * (EACH + 2)


@pytest.mark.parametrize(
    "other",
    [
        {"type": "image_url", "image_url": CAT},
        {"type": "input_image", "image_url": CAT},
        {"type": "image", "url": CAT},
        part(detail="high"),
    ],
    ids=lambda one: str(one["type"]),
)
def test_parts_of_all_forms_show_the_same(seeing: Live, other: dict[str, Any]) -> None:
    fields = {"return_token_ids": True}
    assert (
        chat(seeing, other, None, **fields).json()["prompt_token_ids"]
        == chat(seeing, part(), None, **fields).json()["prompt_token_ids"]
    )


def test_little_detail_is_a_small_picture(seeing: Live) -> None:
    text, large = prompt_tokens(chat(seeing, None)), as_url(png_of(1100, 1100))
    more = {"mm_processor_kwargs": {"max_pixels": 28 * 28 * 400}}
    assert prompt_tokens(chat(seeing, part(large), None, **more)) == text + 2 + 20 * 20
    assert prompt_tokens(chat(seeing, part(large, detail="low"), None, **more)) == text + 2 + 18 * 18  # 512 by 512


def test_a_video_is_shown(seeing: Live) -> None:
    video = {"type": "video_url", "video_url": {"url": as_url(mp4_of(4, width=60, height=90), "video/mp4")}}
    text = prompt_tokens(chat(seeing, None))
    assert prompt_tokens(chat(seeing, video, None)) == text + 2 + 2 * EACH


def test_the_official_client(seeing: Live) -> None:
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none") as client:
        asked: Any = user(None, part())
        answer = client.chat.completions.create(model="tiny", messages=asked, max_tokens=3)
        assert answer.usage is not None
        given: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": CAT, "detail": "auto"}]}]
        response = client.responses.create(model="tiny", input=given, max_output_tokens=4)
        assert response.usage is not None
        assert response.usage.input_tokens > EACH
        with pytest.raises(openai.BadRequestError, match=r"At most 3 image\(s\) may be provided in one prompt"):
            client.chat.completions.create(model="tiny", messages=[*asked, *user(*[part()] * 3)], max_tokens=3)


def test_a_picture_in_anthropics_form(seeing: Live) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": CAT.partition(",")[2]}
    for given in (source, {"type": "url", "url": CAT}):
        messages = [{"role": "user", "content": [{"type": "image", "source": given}, {"type": "text", "text": "a"}]}]
        told = seeing.post("/v1/messages", model="tiny", max_tokens=3, messages=messages).json()
        counted = seeing.post("/v1/messages/count_tokens", model="tiny", messages=messages).json()
        assert told["usage"]["input_tokens"] == counted["input_tokens"] > EACH


def test_a_tool_may_answer_with_a_picture(seeing: Live) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": CAT.partition(",")[2]}
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "text", "text": "b"}, {"type": "image", "source": source}],
    }
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    answer = seeing.post("/v1/messages/count_tokens", model="tiny", messages=messages)
    assert answer.status_code == 200, answer.text
    assert answer.json()["input_tokens"] > EACH


def test_tokens_are_told_with_their_pictures(seeing: Live) -> None:
    answer = seeing.post("/tokenize", messages=user(part()))
    assert answer.json()["tokens"].count(FAMILIES[QWEN].id_of("<|image_pad|>")) == EACH


def test_the_playground_offers_pictures(seeing: Live) -> None:
    assert seeing.http.get("/playground/about").json()["inputs"] == ["text", "image", "video"]


MALFORMED: list[tuple[Any, str]] = [
    ({"type": "image_url"}, "needs image_url, a URL or"),
    ({"type": "image_url", "image_url": {"url": 3}}, "needs image_url, a URL or"),
    ({"type": "image_url", "image_url": {}}, "needs image_url"),
    (part(detail="most"), "detail of a part of message 0 must be one of auto, low, high, original"),
    ({"type": "image"}, "of type image needs image or url"),
    ({"type": "image", "image": [[0]]}, "a picture must be a PIL picture"),
    ({"type": "image_pil", "image_pil": "x"}, "the URL of an item begins with 'x'"),
    ({"type": "image_embeds", "image_embeds": "x"}, "You must set `--enable-mm-embeds`"),
    ({"type": "image_embeds"}, "needs image_embeds, a .npy or a .safetensors file, in base64"),
    ({"type": "audio_embeds", "audio_embeds": "x"}, "embeddings are not taken"),
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, r"At most 0 audio(s)"),
    ({"type": "input_audio", "input_audio": {"data": "?"}}, "are not base64"),
    ({"type": "input_audio"}, "needs input_audio"),
    ({"type": "file", "file": {}}, "content part of type 'file', and what is taken here is text, image, video"),
    (part("file:///etc/passwd"), "--allowed-local-media-path"),
    (part("http://127.0.0.1:1/a.png"), "not public"),
    (part("http://169.254.169.254/latest/meta-data"), "not public"),
    (part("http://[::1]/"), "not public"),
    (part("ftp://a/b"), "begins with 'ftp'"),
    (part("data:image/png;base64,???"), "base64"),
    (part("data:image/png;base64,"), "no format that is read"),
    (part("data:"), "no content"),
    (part(""), "begins with ''"),
    (part("gopher:" + "a" * 5000), "begins with 'gopher'"),
    (part(as_url(png_of(1, 201))), "at most 200 times"),
    (part(as_url(b"\x89PNG")), "a picture"),
    ({"type": "video_url", "video_url": {"url": as_url(png_of(9, 9), "video/mp4")}}, "video"),
    ({"type": "video_url", "video_url": {"url": as_url(mp4_of(4)[:300], "video/mp4")}}, "video"),
    ({"type": "video_url", "video_url": {"url": as_url(b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")}}, "video"),
]
HOSTILE = {name: part(as_url(content)) for name, content in hostile_pictures().items()}
"""Files of pictures that no decoder should trust."""


def test_forty_hostile_items_leave_a_neighbour_alone(seeing: Live) -> None:
    """Sent while texts and a picture are answered, whose answers stay the same."""
    attacks = [(one, told) for one, told in MALFORMED] + [(one, "") for one in HOSTILE.values()]
    assert len(attacks) >= 40
    asked = [lambda: chat(seeing, None), lambda: chat(seeing, part(), None)]
    quiet = [ask().json()["choices"] for ask in asked]
    with ThreadPoolExecutor(6) as threads:
        refused = [threads.submit(chat, seeing, None, one) for one, _ in attacks]
        for _ in range(8):
            assert [ask().json()["choices"] for ask in asked] == quiet
        for (one, told), answer in zip(attacks, refused, strict=True):
            response = answer.result()
            assert response.status_code == 400, (one, response.text)
            assert told in response.json()["error"]["message"], (one, response.text)
    assert [ask().json()["choices"] for ask in asked] == quiet


def test_a_thousand_pictures_are_one_error(seeing: Live) -> None:
    response = chat(seeing, *[part("http://nowhere.invalid/")] * 1000)
    assert response.status_code == 400
    assert "At most 3 image(s)" in response.json()["error"]["message"]


def test_a_conversation_that_shows_something_is_not_cut(seeing: Live) -> None:
    response = chat(seeing, part(), truncate_prompt_tokens=8)
    assert response.status_code == 400
    assert "truncate_prompt_tokens is for prompts that show nothing" in response.json()["error"]["message"]
