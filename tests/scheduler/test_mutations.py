"""The fake runner notices: each bug put in on purpose makes outputs differ from the oracle's, or a read fail."""

from __future__ import annotations

import pytest

from jaxengine.kvcache.holding import GroupPages
from jaxengine.kvcache.ledger import Ledger
from jaxengine.kvcache.pages import Pages
from jaxengine.kvcache.prefix import Chain, Digest, Entry, PrefixIndex
from jaxengine.scheduler import assembly
from jaxengine.scheduler.placement import Placement
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.scheduler.sequence import Sequence
from tests.harness import EOS, Rig, make_request

STEM = tuple((3 + i * 5) % EOS for i in range(40))
POOL = {"num_pages": 40, "page_size": 4}
WINDOWS = (None, 7)


def play(ledger: Ledger, keeps: tuple[int | None, ...] = (None,)) -> Rig:
    """Forks, prefix hits, reused pages: a workload in which every page account matters."""
    rig = Rig(**POOL, ledger=ledger, keeps=keeps)
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


def is_noticed(ledger: Ledger, *, by: str, keeps: tuple[int | None, ...] = (None,)) -> bool:
    """Whether a request's output is wrong, or a position is read that nobody wrote (what a reused page hides)."""
    try:
        rig = play(ledger, keeps)
    except AssertionError as error:
        return "never written" in str(error) or "the sink is read" in str(error)
    return by in wrong_answers(rig)


def test_without_a_bug_every_answer_is_right() -> None:
    assert wrong_answers(play(Ledger(**POOL))) == set()


def test_a_page_that_is_freed_while_a_fork_still_reads_it() -> None:
    class ForgetsHolders(Ledger):
        def fork(self, parent_id: int, child_id: int, num_tokens: int) -> None:
            super().fork(parent_id, child_id, num_tokens)
            for page in self.pages(child_id)[0].tolist():
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
        def _make_tail_private(self, group: object) -> bool:
            return False

    assert "forked" in wrong_answers(play(WritesShared(**POOL)))


def test_without_a_bug_windows_change_no_answer() -> None:
    assert wrong_answers(play(Ledger(**POOL, keeps=WINDOWS), WINDOWS)) == set()


def test_a_page_that_goes_back_while_a_window_still_sees_it() -> None:
    class GivesBackEarly(Ledger):
        def _drop_unseen(self, group: GroupPages, position: int) -> None:
            super()._drop_unseen(group, position + self.page_size)

    assert is_noticed(GivesBackEarly(**POOL, keeps=WINDOWS), by="other", keeps=WINDOWS)


def test_a_prefix_whose_window_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_last_page(pages: GroupPages, position: int, page_size: int) -> int:
        return 0 if pages.keep is None else max(0, position - 1) // page_size

    monkeypatch.setattr(GroupPages, "first_seen", only_the_last_page)
    assert is_noticed(Ledger(**POOL, keeps=WINDOWS), by="hit", keeps=WINDOWS)


def test_groups_that_find_each_other_s_pages() -> None:
    class OneGroup(PrefixIndex):
        def find(self, entry: Entry, group: int = 0) -> int | None:
            return super().find(entry, 0)

        def insert(self, entry: Entry, group: int, page: int) -> None:
            super().insert(entry, 0, page)

    assert is_noticed(Ledger(**POOL, keeps=WINDOWS, index=OneGroup()), by="hit", keeps=WINDOWS)


def test_a_copy_that_is_queued_and_never_made() -> None:
    class DropsCopies(Ledger):
        def take_copies(self) -> tuple[tuple[int, int], ...]:
            super().take_copies()
            return ()

    assert is_noticed(DropsCopies(**POOL), by="forked")


def test_a_prefix_match_that_ignores_the_last_token_of_a_page() -> None:
    class OffByOne(PrefixIndex):
        def entry(self, parent: Digest, tokens: list[int]) -> Entry:
            return super().entry(parent, tokens[:-1])

    assert "near miss" in wrong_answers(play(Ledger(**POOL, index=OffByOne())))


def test_a_prefix_match_that_counts_one_token_too_many() -> None:
    class CountsOneMore(Ledger):
        def add(self, sequence_id: int, tokens: list[int], chain: Chain, *, max_cached: int | None = None) -> int:
            cached = super().add(sequence_id, tokens, chain, max_cached=max_cached)
            return cached + 1 if cached else 0

    assert is_noticed(CountsOneMore(**POOL), by="hit")


def test_a_chunk_of_a_prompt_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    add = assembly._add_known

    def lose_tokens(step: object, sequence: Sequence, take: int, *, page_size: int) -> None:
        if sequence.num_computed:
            sequence.num_computed += 1
            take -= 1
        add(step, sequence, take, page_size=page_size)

    monkeypatch.setattr(assembly, "_add_known", lose_tokens)
    assert is_noticed(Ledger(**POOL, enable_prefix_caching=False), by="other")


def test_an_answer_from_the_wrong_order_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    note = assembly._ask

    def swap(step: assembly.Assembly, *arguments: object, **options: object) -> None:
        note(step, *arguments, **options)
        step.kept.reverse()

    monkeypatch.setattr(assembly, "_ask", swap)
    assert wrong_answers(play(Ledger(**POOL)))


def test_pages_that_are_found_before_the_step_that_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Scheduler._publish

    def too_early(scheduler: Scheduler, sequence: Sequence) -> None:
        computed, sequence.num_computed = sequence.num_computed, sequence.covered_end
        publish(scheduler, sequence)
        sequence.num_computed = computed

    def play_chunks() -> None:
        rig = Rig(max_num_batched_tokens=8, threshold=4)
        rig.add(make_request("chunked", STEM[:30]))
        rig.step()
        rig.add(make_request("alike", STEM[:30]))
        rig.run()
        rig.assert_oracle()

    play_chunks()
    monkeypatch.setattr(Scheduler, "_publish", too_early)
    with pytest.raises(AssertionError, match="never written"):
        play_chunks()


def test_a_slot_that_two_sequences_have_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Placement._run

    def share_slot(placement: Placement, sequence: Sequence) -> None:
        run(placement, sequence)
        sequence.slot = 1

    monkeypatch.setattr(Placement, "_run", share_slot)
    with pytest.raises(AssertionError, match="in a slot that has sampled nothing"):
        play(Ledger(**POOL))


def test_a_sequence_that_goes_on_in_another_slot_without_beginning_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sequence, "begins", property(lambda _: False, lambda *_: None))
    with pytest.raises(AssertionError, match="in which nothing began"):
        play(Ledger(**POOL))
