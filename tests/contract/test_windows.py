"""What sequences take where some layers keep a window, by formula and by the ledger's own accounts."""

from __future__ import annotations

import pytest

from jaxengine.contract.windows import longest_sequence, pages_held, tokens_held
from jaxengine.host.kvcache import Ledger, PagePool

PAGE, STEP = 64, 2048
GEMMA = (None, *(1024,) * 6)
"""Gemma-3-27B: ten layers see everything, 52 a window of 1,024, in groups of ten."""


def run(ledger: Ledger, sequence_id: int, length: int, *, step: int) -> int:
    """Compute a prompt in steps; return the most pages that it held."""
    tokens = [7] * length
    computed = ledger.add(sequence_id, tokens, ledger.chain(str(sequence_id)))
    most = 0
    while computed < length:
        assert ledger.grow(sequence_id, length, start=computed, ahead=step)
        computed = min(length, computed + step, ledger.covered(sequence_id))
        most = max(most, (ledger.pages(sequence_id) != 0).sum())
        ledger.commit(sequence_id, tokens, computed)
        ledger.check()
    return int(most)


def test_a_long_sequence_holds_only_its_window_in_windowed_layers():
    ledger = Ledger([PagePool(4000, GEMMA)], PAGE)
    most = run(ledger, 1, 32_768, step=STEP)
    assert most <= pages_held(GEMMA, 32_768, page_size=PAGE, ahead=STEP) == 512 + 6 * 49
    # it goes on by decoding: a step writes one token
    assert ledger.grow(1, 32_769 + PAGE, start=32_769, ahead=1)
    full, *windows = (ledger.pages(1) != 0).sum(axis=1).tolist()
    assert full == 514
    assert windows == [17] * 6, "a window of 1,024 spans 17 pages of 64"


@pytest.mark.parametrize("keeps", [(None,), (None, 6), (3,), (None, 4, 9)])
@pytest.mark.parametrize("step", [1, 3, 8])
def test_no_sequence_holds_more_than_the_formula_says(keeps, step):
    for length in range(1, 40):
        ledger = Ledger([PagePool(200, keeps)], 4)
        assert run(ledger, 1, length, step=step) <= pages_held(keeps, length, page_size=4, ahead=step)


@pytest.mark.parametrize("keeps", [(None,), (None, 6), (3, 9), (None, 4, 9)])
@pytest.mark.parametrize("num_pages", [1, 5, 12, 40])
def test_the_longest_sequence_fits_and_a_longer_one_does_not(keeps, num_pages):
    longest = longest_sequence(keeps, num_pages, page_size=4, ahead=3, most=500)
    assert pages_held(keeps, longest, page_size=4, ahead=3) <= num_pages
    assert longest == 500 or pages_held(keeps, longest + 1, page_size=4, ahead=3) > num_pages


def test_tokens_of_a_pool():
    assert tokens_held((None,), 10, page_size=4, ahead=3, max_model_len=7) == 40
    per_sequence = pages_held((None, 6), 100, page_size=4, ahead=3)
    assert tokens_held((None, 6), 3 * per_sequence, page_size=4, ahead=3, max_model_len=100) == 300


def test_what_a_window_no_longer_sees_can_still_be_found():
    """Pages that went back stay in the index until they are needed; a prompt alike needs those that its next token sees."""
    ledger = Ledger([PagePool(40, (None, 6))], 4)
    tokens = list(range(30))
    for number in range(2):
        assert ledger.add(number, tokens, ledger.chain(None)) == (28 if number else 0)
        computed = 28 if number else 0
        while computed < len(tokens):
            assert ledger.grow(number, len(tokens), start=computed, ahead=8)
            computed = min(len(tokens), computed + 8)
            ledger.commit(number, tokens, computed)
        ledger.check()
    assert (ledger.pages(1)[1] != 0).sum() < 4, "the second took pages that it will never see"


def test_a_prefix_whose_window_was_given_to_others_is_found_no_further_than_it_serves():
    ledger = Ledger([PagePool(14, (None, 6))], 4)
    tokens = list(range(16))
    ledger.add(1, tokens, ledger.chain(None))
    computed = 0
    while computed < len(tokens):
        assert ledger.grow(1, len(tokens), start=computed, ahead=4)
        computed += 4
        ledger.commit(1, tokens, computed)
    # The window's first pages are idle; another sequence takes them.
    ledger.add(2, [99] * 12, ledger.chain(None))
    assert ledger.grow(2, 12, start=0, ahead=12)
    ledger.check()
    assert ledger.add(3, [*tokens[:8], 77, 78], ledger.chain(None)) == 0, (
        "page 0 and 1 of the window are needed after 8 tokens"
    )
    assert ledger.add(4, [*tokens, 5], ledger.chain(None)) == 16, "what the next token sees is all held"
