"""vLLM's speculative_config: what it means, and what is said of the rest of it."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.speculation import DraftSpeculation, Method, NgramSpeculation, read_speculative_config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"method": "ngram", "num_speculative_tokens": 4}, (4, 5, 5)),
        ({"model": "[ngram]", "num_speculative_tokens": 4, "prompt_lookup_max": 3}, (4, 3, 3)),
        ({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2}, (2, 2, 2)),
        ({"model": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 4, "prompt_lookup_min": 2}, (1, 2, 4)),
    ],
)
def test_what_is_asked_for(config: dict[str, Any], expected: tuple[int, int, int] | None) -> None:
    found = read_speculative_config(config)
    if expected is None:
        assert found is None
    else:
        assert found == NgramSpeculation(num_tokens=expected[0], min_length=expected[1], max_length=expected[2])


@pytest.mark.parametrize(
    ("config", "method", "model"),
    [
        ({"method": "eagle3", "model": "head", "num_speculative_tokens": 3}, Method.EAGLE3, "head"),
        ({"method": "dflash", "model": "head", "num_speculative_tokens": 3}, Method.DFLASH, "head"),
        ({"method": "mtp", "num_speculative_tokens": 3}, Method.MTP, None),
        ({"method": "deepseek_mtp", "num_speculative_tokens": 3}, Method.MTP, None),
        ({"model": "small/model", "num_speculative_tokens": 3}, None, "small/model"),
    ],
)
def test_drafts_of_the_device(config: dict[str, Any], method: Method | None, model: str | None) -> None:
    assert read_speculative_config(config) == DraftSpeculation(num_tokens=3, method=method, model=model)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"method": "medusa", "num_speculative_tokens": 4},
            "'medusa' is not built; built are ngram, draft_model, eagle",
        ),
        ({"method": "eagle", "num_speculative_tokens": 4}, "method eagle needs the draft's model"),
        ({"method": "mtp", "model": "small/model", "num_speculative_tokens": 4}, "layers of the model itself"),
        ({"method": "ngram", "model": "small/model", "num_speculative_tokens": 4}, "needs no model, got 'small/model'"),
        ({"method": "mtp", "num_speculative_tokens": 4, "prompt_lookup_max": 4}, "belongs to method 'ngram'"),
        ({"model": 3, "num_speculative_tokens": 4}, "model must be a string, got 3"),
        (
            {"method": "mtp", "num_speculative_tokens": 1, "draft_tensor_parallel_size": 0},
            "draft_tensor_parallel_size must be an integer, at least 1, got 0",
        ),
        ({"num_speculative_tokens": 4}, "needs a method or a model"),
        ({"method": "ngram"}, "needs num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": "4"}, "must be an integer, got '4'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens must be at least 1, got 0"),
        ({"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_min": 0}, r"prompt_lookup_min \(0\) must be"),
        (
            {"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_min": 3, "prompt_lookup_max": 2},
            r"\(3\) must be at least 1 and at most prompt_lookup_max \(2\)",
        ),
        ({"methd": "ngram"}, "unknown key 'methd'. Did you mean 'method'"),
    ],
)
def test_what_is_refused_and_why(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_speculative_config(config)
