"""Prompts with none, one and several pictures beside each other: preempted, found again, and on four devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxengine import LLM, SamplingParams
from tests.media_models import picture, vlm_directory

pytestmark = [pytest.mark.jax, pytest.mark.slow]

SHOW = "<|vision_start|><|image_pad|><|vision_end|>"
OPTIONS = {
    "max_model_len": 192,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "page_size": 8,
    "num_pages": 40,
    "dtype": "float32",
}
ONE, OTHER, LARGE = picture(84, 56), picture(56, 56, 1), picture(112, 84, 2)


def prompt(text: str, *pictures: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "prompt": f"<|im_start|>user\n{SHOW * len(pictures)}{text}<|im_end|>\n<|im_start|>assistant\n"
    }
    return made | ({"multi_modal_data": {"image": list(pictures)}} if pictures else {})


PROMPTS = [prompt("none"), prompt("one", ONE), prompt("two", OTHER, LARGE), prompt("three", LARGE, ONE, OTHER)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vlm_directory(tmp_path_factory.mktemp("vlm"), "Qwen2_5_VLForConditionalGeneration")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **OPTIONS) as made:
        yield made


def answers(llm: LLM, prompts: list[dict[str, Any]], max_tokens: int = 6) -> list[tuple[list[int], list[float]]]:
    """Greedy tokens, and their log probabilities to the last bit; nothing compiles for them."""
    compiled = llm.get_metrics()["num_compilations"]
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, logprobs=0)
    found = []
    for output in llm.generate(prompts, params, use_tqdm=False):
        [one] = output.outputs
        tokens = list(one.token_ids)
        found.append((tokens, [at[token].logprob for at, token in zip(one.logprobs, tokens, strict=True)]))
    assert llm.get_metrics()["num_compilations"] == compiled
    return found


def test_pictures_in_company_give_the_bits_that_they_give_alone(llm: LLM) -> None:
    alone = []
    for each in PROMPTS:
        llm.reset_prefix_cache()
        alone += answers(llm, [each])
    llm.reset_prefix_cache()
    assert answers(llm, PROMPTS) == alone
    assert len({tuple(tokens) for tokens, _ in alone}) == len(PROMPTS)


def test_a_picture_that_was_shown_before_is_found_with_its_prefix(llm: LLM) -> None:
    llm.reset_prefix_cache()
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    cached = [
        llm.generate(prompt(text, *shown), params, use_tqdm=False)[0].num_cached_tokens
        for text, shown in (("a", (LARGE, ONE)), ("b", (LARGE, ONE)), ("a", (LARGE, OTHER)), ("a", (OTHER, ONE)))
    ]
    assert cached[0] == 0
    assert cached[1] > cached[2] > cached[3] >= 0
    [found] = answers(llm, [prompt("b", LARGE, ONE)])
    llm.reset_prefix_cache()
    assert answers(llm, [prompt("b", LARGE, ONE)]) == [found]


def test_preempted_prompts_show_their_pictures_again(llm: LLM) -> None:
    llm.reset_prefix_cache()
    alone = [answer for each in PROMPTS for answer in answers(llm, [each], max_tokens=80)]
    llm.reset_prefix_cache()
    before = llm.get_metrics()["num_preemptions"]
    assert answers(llm, PROMPTS, max_tokens=80) == alone
    assert llm.get_metrics()["num_preemptions"] > before


@pytest.mark.rare
def test_four_devices_see_the_same(llm: LLM, folder: Path) -> None:
    llm.reset_prefix_cache()
    wanted = answers(llm, PROMPTS)
    with LLM(str(folder), **OPTIONS, tensor_parallel_size=4) as shared:
        found = answers(shared, PROMPTS)
    for (tokens, logprobs), (same, close) in zip(wanted, found, strict=True):
        assert tokens == same
        assert logprobs == pytest.approx(close, abs=1e-4)
