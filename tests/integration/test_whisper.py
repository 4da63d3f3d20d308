"""Whisper as its users meet it: prompts with a sound, and what is heard is what transformers hears."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxengine import LLM, SamplingParams
from jaxengine.errors import RequestError
from tests.speech_models import RATE, SECONDS, id_of, sound, whisper_directory

pytestmark = [pytest.mark.jax, pytest.mark.slow]
START = "<|startoftranscript|>"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whisper_directory(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", max_num_seqs=4, num_gpu_blocks_override=64) as running:
        yield running


def shown(samples: np.ndarray, prompt: str = START) -> dict[str, object]:
    return {"prompt": prompt, "multi_modal_data": {"audio": (samples, RATE)}}


def test_sounds_of_one_batch_are_each_their_own(llm: LLM) -> None:
    """Together and alone, shown again, and one text of two sounds."""
    prompts = [shown(sound(1.5, seed), START + "<|en|>" * (seed % 2)) for seed in range(5)]
    together = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    assert len(set(together)) == 5
    for prompt, expected in zip(prompts, together, strict=True):
        [alone] = llm.generate(prompt, GREEDY)
        assert alone.outputs[0].token_ids == expected


@pytest.mark.torch
def test_what_is_heard_is_what_transformers_hears(llm: LLM, folder: Path) -> None:
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    samples = [sound(SECONDS, 7), sound(0.8, 8)]
    found = llm.generate([shown(of) for of in samples], GREEDY)
    for of, output in zip(samples, found, strict=True):
        features = extractor(of, sampling_rate=RATE, return_tensors="pt").input_features
        ids = [id_of(START)]
        with torch.no_grad():
            for _ in range(GREEDY.max_tokens or 0):
                logits = model(input_features=features, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
                ids.append(int(logits.argmax()))
        assert list(output.outputs[0].token_ids) == ids[1:]


def test_a_prompt_without_a_sound_or_with_too_much_of_it_says_so(llm: LLM) -> None:
    with pytest.raises(RequestError, match="a prompt of this model is of one audio"):
        llm.generate("text alone", GREEDY)
    with pytest.raises(RequestError, match=r"a sound of 3\.0 s is longer than the 2 s"):
        llm.generate(shown(sound(3.0)), GREEDY)
