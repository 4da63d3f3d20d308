"""The rules of times, as transformers' processor has them."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.contract.speech import SpeechRules
from jaxengine.host.scheduler.speech_masks import SpeechMasks

END, FIRST, VOCABULARY = 50, 60, 100
RULES = SpeechRules(end=END, suppressed=(59, 7), not_first=(5, END), first_time=FIRST, latest_first=10)


def allowed(output: list[int], rules: SpeechRules = RULES) -> set[int]:
    mask = SpeechMasks(rules, VOCABULARY).allowed(np.array(output, np.int32))
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def test_a_text_begins_with_an_early_time() -> None:
    assert allowed([]) == set(range(60, 71))


def test_times_come_in_pairs_and_do_not_go_back() -> None:
    text = set(range(50)) - {7}
    between = set(range(50, 59))  # the end, and what is neither text nor time
    assert allowed([65]) == text | between
    assert allowed([65, 1]) == text | between | set(range(66, 100))
    assert allowed([65, 1, 80]) == between | set(range(80, 100))
    assert allowed([65, 1, 80, 80]) == text | between
    assert allowed([65, 1, 80, 80, 2]) == text | between | set(range(81, 100))


def test_without_times_ids_are_only_left_out() -> None:
    rules = SpeechRules(end=END, suppressed=(7,), not_first=(5,))
    assert allowed([], rules) == set(range(VOCABULARY)) - {5, 7}
    assert allowed([1], rules) == set(range(VOCABULARY)) - {7}


@pytest.mark.torch
def test_transformers_allows_the_same() -> None:
    """Where its rule of probabilities, which a mask cannot know, does not speak: any text is likelier than all times."""
    torch = pytest.importorskip("torch")
    from transformers import GenerationConfig
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    told = GenerationConfig(no_timestamps_token_id=FIRST - 1, eos_token_id=END, max_initial_timestamp_index=10)
    processor = WhisperTimeStampLogitsProcessor(told, begin_index=2)
    random = np.random.default_rng(0)
    rules = SpeechRules(end=END, suppressed=(FIRST - 1,), first_time=FIRST, latest_first=10)
    for _ in range(200):
        output: list[int] = []
        for _ in range(random.integers(0, 8)):
            output.append(int(random.choice(sorted(allowed(output, rules)))))
        scores = torch.zeros(1, VOCABULARY)
        scores[:, :FIRST] = 50.0
        found = processor(torch.tensor([[1, 2, *output]]), scores)[0]
        assert set(torch.isfinite(found).nonzero().ravel().tolist()) == allowed(output, rules), output
