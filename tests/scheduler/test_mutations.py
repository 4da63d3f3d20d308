"""The fake runner notices: each bug put in on purpose makes outputs differ from the oracle's, or a read fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jaxengine.kvcache.ledger import Ledger
from jaxengine.kvcache.pages import Pages
from jaxengine.kvcache.prefix import Digest, Entry, PrefixIndex
from jaxengine.scheduler import assembly
from tests.harness import EOS, Rig, make_request

STEM = tuple((3 + i * 5) % EOS for i in range(40))
POOL = {"num_pages": 40, "page_size": 4}


def play(ledger: Ledger) -> Rig:
    """Forks, prefix hits, reused pages: a workload in which every page account matters."""
    rig = Rig(**POOL, ledger=ledger)
    rig.check = False  # the ledger's own check would speak first; here the outputs must
    rig.add(
        make_request("forked", STEM[:18], n=3, max_tokens=7),
        make_request("early", STEM[:30], max_tokens=3),
    )
    for _ in range(6):
        rig.step()
    rig.add(
        make_request("hit", [*STEM[:19], 90, 91], max_tokens=5),
        make_request("near miss", [*STEM[:15], 92, 93], max_tokens=5),
        make_request("other", [94, *STEM[:30]], max_tokens=9),
    )
    for _ in range(300):
        rig.step()
    return rig


def wrong_answers(rig: Rig) -> set[str]:
    """Requests with an output that is not the oracle's."""
    return {
        request.request_id
        for request in rig.requests.values()
        for key, answer in rig.expected(request).items()
        if tuple(rig.collected[key].tokens) != answer.tokens
    }


def is_noticed(ledger: Ledger, *, by: str) -> bool:
    """Whether a request's output is wrong, or a position is read that nobody wrote (what a reused page hides)."""
    try:
        rig = play(ledger)
    except AssertionError as error:
        return "never written" in str(error)
    return by in wrong_answers(rig)


def test_without_a_bug_every_answer_is_right() -> None:
    assert wrong_answers(play(Ledger(**POOL))) == set()


def test_a_page_that_is_freed_while_a_fork_still_reads_it() -> None:
    class ForgetsHolders(Ledger):
        def fork(self, parent_id: int, child_id: int, num_tokens: int) -> None:
            super().fork(parent_id, child_id, num_tokens)
            for page in self.pages(child_id).tolist():
                self._pages.references[page] -= 1

    assert "forked" in wrong_answers(play(ForgetsHolders(**POOL, enable_prefix_caching=False)))


def test_a_page_that_is_freed_while_its_sequence_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = Pages.take

    def take_and_free_the_one_before(self: Pages) -> int:
        page = take(self)
        taken.append(page)
        if len(taken) == 12:
            self.free(taken[2])
        return page

    monkeypatch.setattr(Pages, "take", take_and_free_the_one_before)
    assert wrong_answers(play(Ledger(**POOL)))


def test_a_shared_page_that_is_written_without_a_copy() -> None:
    class WritesShared(Ledger):
        def _make_tail_private(self, holding: object) -> None:
            pass

    assert "forked" in wrong_answers(play(WritesShared(**POOL)))


def test_a_copy_that_is_queued_and_never_made() -> None:
    class DropsCopies(Ledger):
        def take_copies(self) -> tuple[tuple[int, int], ...]:
            super().take_copies()
            return ()

    assert is_noticed(DropsCopies(**POOL), by="forked")


def test_a_prefix_match_that_ignores_the_last_token_of_a_page() -> None:
    class OffByOne(PrefixIndex):
        def entry(self, parent: Digest, tokens: Sequence[int]) -> Entry:
            return super().entry(parent, tokens[:-1])

    assert "near miss" in wrong_answers(play(Ledger(**POOL, index=OffByOne())))


def test_a_prefix_match_that_counts_one_token_too_many() -> None:
    class CountsOneMore(Ledger):
        def add(
            self,
            sequence_id: int,
            tokens: Sequence[int],
            *,
            salt: str | None,
            use_prefix: bool = True,
            max_cached: int | None = None,
            align: int = 1,
        ) -> int:
            cached = super().add(
                sequence_id, tokens, salt=salt, use_prefix=use_prefix, max_cached=max_cached, align=align
            )
            return cached + 1 if cached else 0

    assert is_noticed(CountsOneMore(**POOL), by="hit")


def test_a_chunk_of_a_prompt_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = assembly.cut_rows

    def lose_the_second_row(start: int, length: int, seq: int, *, aligned: bool = False) -> list[tuple[int, int]]:
        rows = cut(start, length, seq, aligned=aligned)
        return rows[:1] + rows[2:]

    monkeypatch.setattr(assembly, "cut_rows", lose_the_second_row)
    with pytest.raises(AssertionError, match="never written"):
        play(Ledger(**POOL))


def test_an_answer_from_the_wrong_order_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly.Assembly, "sampled", property(lambda step: step.sampled_decode + step.sampled_prefill))
    assert wrong_answers(play(Ledger(**POOL)))
