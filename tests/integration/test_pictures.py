"""A small model that sees, from its files to answers: in the library, and by the official client of a server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from jaxengine import LLM, BeamSearchParams, SamplingParams
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import build_engine
from tests.media.hostile import hostile_pictures, saved
from tests.media_models import picture, vlm_directory
from tests.server.rig import Live, live

QWEN = "Qwen2_5_VLForConditionalGeneration"
SHOW = "<|vision_start|><|image_pad|><|vision_end|>"
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
OPTIONS = {"max_model_len": 192, "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_pages": 64, "dtype": "float32"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of a small model with random weights."""
    folder = vlm_directory(tmp_path_factory.mktemp("vlm"), QWEN)
    with live(build_engine(EngineConfig.from_options(model=str(folder), **OPTIONS))) as running:
        yield running


def as_url(pixels: Any) -> str:
    return "data:image/png;base64," + base64.b64encode(saved(Image.fromarray(pixels), "PNG")).decode()


@pytest.mark.slow
def test_answers_depend_on_what_is_shown(server: Live) -> None:
    model = server.service.model_names[0]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:

        def told(*pictures: Any) -> tuple[str, int]:
            parts = [{"type": "image_url", "image_url": {"url": as_url(one)}} for one in pictures]
            messages: Any = [{"role": "user", "content": [*parts, {"type": "text", "text": "a"}]}]
            answer = client.chat.completions.create(
                model=model, messages=messages, max_tokens=6, temperature=0, extra_body={"ignore_eos": True}
            )
            assert answer.usage is not None
            return answer.choices[0].message.content or "", answer.usage.prompt_tokens

        one, other = picture(84, 56), 255 - picture(84, 56, 3)
        first = told(one)
        assert told(one) == first
        assert told(other)[1] == first[1]
        assert told(other)[0] != first[0]
        assert told(one, other)[1] == first[1] + 6 + 2
        for hostile in list(hostile_pictures().values())[:4]:
            url = "data:image/png;base64," + base64.b64encode(hostile).decode()
            parts: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(model=model, messages=parts, max_tokens=2)
        assert told(one) == first


@pytest.mark.slow
def test_the_library_answers_the_same_by_every_way(tmp_path: Any) -> None:
    folder = vlm_directory(tmp_path, QWEN)
    pixels = picture(84, 56)
    with LLM(str(folder), **OPTIONS) as llm:
        chat = llm.chat(
            [{"role": "user", "content": [{"type": "image", "image": pixels}, {"type": "text", "text": "a"}]}],
            GREEDY,
            use_tqdm=False,
        )[0]
        same = llm.chat(
            [{"role": "user", "content": [{"type": "image_pil", "image_pil": Image.fromarray(pixels)}, "a"]}],
            GREEDY,
            use_tqdm=False,
        )[0]
        prompt = {
            "prompt": f"<|im_start|>user\n{SHOW}a<|im_end|>\n<|im_start|>assistant\n",
            "multi_modal_data": {"image": pixels},
        }
        plain = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
        again = llm.generate(
            {"prompt_token_ids": plain.prompt_token_ids, "multi_modal_data": {"image": pixels}}, GREEDY, use_tqdm=False
        )[0]
        [beams] = llm.beam_search(prompt, BeamSearchParams(beam_width=1, max_tokens=6, ignore_eos=True))
    assert tuple(beams.sequences[0].tokens) == (*plain.prompt_token_ids, *plain.outputs[0].token_ids)
    assert len({tuple(output.prompt_token_ids) for output in (chat, same, plain, again)}) == 1
    assert len({tuple(output.outputs[0].token_ids) for output in (chat, same, plain, again)}) == 1
