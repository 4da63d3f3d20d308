import pytest

from buckets import Limits

LIMITS = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 100, "page_size": 16}


@pytest.mark.parametrize("name", [*sorted(LIMITS), "free_tokens"])
def test_every_limit_is_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Limits(**{**LIMITS, name: 0})


@pytest.mark.parametrize(
    ("changes", "rows", "tokens", "block"),
    [
        ({}, 8, 512, 100),
        ({"max_num_seqs": 2}, 2, 200, 100),
        ({"max_num_batched_tokens": 4}, 4, 4, 100),
        ({"max_model_len": 4096}, 8, 512, 128),
        ({"max_model_len": 4096, "page_size": 256}, 8, 512, 256),
    ],
)
def test_what_follows_from_the_limits(changes, rows, tokens, block):
    limits = Limits(**{**LIMITS, **changes})
    assert (limits.max_rows, limits.max_tokens, limits.block) == (rows, tokens, block)
