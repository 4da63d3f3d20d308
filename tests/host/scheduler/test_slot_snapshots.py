"""Prefixes of sequences that have states: where rows end for snapshots, what is found, and that every answer is right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from buckets import Bucket, Grid
from jaxengine.contract.batch import Batch
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Hash, Prefixes, keyed_hash
from jaxengine.host.kvcache.snapshots import Snapshots
from tests.harness import EOS, Rig, make_request
from tests.host.scheduler.test_deterministic import alone
from tests.host.scheduler.test_random_workloads import play, rig_options

STEM = tuple((3 + i * 5) % EOS for i in range(60))


@st.composite
def recurrent_rigs(draw: st.DrawFn) -> Rig:
    options = draw(rig_options(caching=True, speculation=None))
    block = options["page_size"] * draw(st.sampled_from([1, 1, 2]))
    every = block * draw(st.sampled_from([0, 1, 2]))
    kept, on_host = draw(st.sampled_from([1, 3, 20])), draw(st.sampled_from([1, 2, 30]))
    return Rig(**options, chunk=1, snapshots=kept, host_snapshots=on_host, block=block, every=every)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rig=recurrent_rigs(), data=st.data())
def test_any_workload_gives_the_oracles_answers(rig: Rig, data: st.DataObject) -> None:
    play(rig, data, operations=30)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_in_deterministic_mode_bits_do_not_depend_on_what_was_found(data: st.DataObject) -> None:
    rig = recurrent(
        num_pages=data.draw(st.integers(20, 60), label="pages"),
        max_num_batched_tokens=data.draw(st.integers(4, 40), label="budget"),
        deterministic=True,
        tag_programs=True,
        chunk=data.draw(st.sampled_from([4, 8]), label="chunk"),
        cut=8,
        block=8,
        every=data.draw(st.sampled_from([0, 8, 16]), label="every"),
        snapshots=data.draw(st.sampled_from([1, 4, 20]), label="snapshots"),
    )
    for number in range(data.draw(st.integers(2, 6), label="requests")):
        cut = data.draw(st.integers(1, 40), label="shared")
        tail = data.draw(st.lists(st.integers(0, EOS), max_size=3), label="tail")
        n, scored = data.draw(st.sampled_from([(1, None), (1, None), (3, None), (1, 1)]), label="n, scored")
        rig.add(make_request(f"r{number}", [*STEM[:cut], *tail], max_tokens=5, n=n, prompt_logprobs=scored))
        for _ in range(data.draw(st.integers(0, 3), label="steps")):
            rig.step()
    rig.run()
    for request in rig.requests.values():
        for index, expected in alone(request, page_size=4, chunk=rig.runner.chunk, cut=8).items():
            assert rig.collected[request.request_id, index] == expected, (request.request_id, index)


def recurrent(**options: Any) -> Rig:
    return Rig(**{"num_pages": 100, "chunk": 1, "snapshots": 8, "block": 8, **options})


def finish(rig: Rig, *requests: Any) -> list[Batch]:
    rig.add(*requests)
    batches = []
    while rig.scheduler.has_unfinished:
        batch = rig.step()
        batches += [] if batch is None else [batch]
    return batches


def starts(batches: list[Batch]) -> list[int]:
    return [batch.rows[0].start for batch in batches]


def test_a_prompt_ends_a_row_with_its_last_whole_block_and_the_next_goes_on_there() -> None:
    rig = recurrent()
    first = finish(rig, make_request("first", STEM[:21], max_tokens=1))
    assert [batch.rows.counts for batch in first] == [[16], [5]]
    assert [len(batch.kept) for batch in first] == [1, 0]
    same = finish(rig, make_request("same", STEM[:21], max_tokens=1))
    assert [(batch.rows[0].start, len(batch.restored)) for batch in same] == [(16, 1)]
    longer = finish(rig, make_request("longer", STEM[:40], max_tokens=1))
    assert [batch.rows[0].start for batch in longer] == [16, 32]
    assert rig.scheduler.stats.prefix_cache_hits == 32
    rig.assert_oracle()


def test_where_prompts_part_the_third_one_goes_on() -> None:
    rig = recurrent()
    prompts = [[*STEM[:30], 80 + number, *STEM[:20]] for number in range(3)]
    found = []
    for number, prompt in enumerate(prompts):
        batches = finish(rig, make_request(f"r{number}", prompt, max_tokens=1))
        found.append((batches[0].rows[0].start, [batch.rows[0].start + batch.rows[0].num_tokens for batch in batches]))
    assert found == [(0, [32, 48, 51]), (0, [24, 48, 51]), (24, [48, 51])]
    rig.assert_oracle()


def test_snapshots_at_intervals_are_found_by_all_who_have_so_much_in_common() -> None:
    rig = recurrent(every=16, max_num_batched_tokens=64)
    assert starts(finish(rig, make_request("a", STEM[:50], max_tokens=20)))[:4] == [0, 16, 32, 48]
    assert starts(finish(rig, make_request("b", [*STEM[:40], 1], max_tokens=1))) == [32, 40]
    answer = rig.collected["a", 0].tokens
    assert starts(finish(rig, make_request("c", [*STEM[:50], *answer[:18], 7], max_tokens=1))) == [64]
    rig.assert_oracle()


def test_an_equal_prompt_waits_for_the_snapshot_and_one_that_has_nothing_to_wait_for_does_not() -> None:
    rig = recurrent(max_num_batched_tokens=64, max_num_seqs=3)
    rig.add(make_request("a", STEM[:40]), make_request("same", STEM[:40]), make_request("parts", [*STEM[:24], 1, 2]))
    rig.step()
    assert rig.scheduler.stats.num_running == 2
    rig.run()
    rig.assert_oracle()
    assert rig.scheduler.stats.prefix_cache_hits == 32


def test_sequences_of_a_request_share_its_prompt() -> None:
    rig = recurrent(max_num_seqs=4)
    finish(rig, make_request("four", STEM[:35], n=4))
    assert rig.scheduler.stats.prefix_cache_hits == 3 * 32
    rig.assert_oracle()


def test_a_sequence_that_was_preempted_goes_on_from_its_last_snapshot() -> None:
    rig = recurrent(num_pages=20, every=8, max_num_seqs=3)
    rig.add(*(make_request(f"r{number}", [number, *STEM[:15]], max_tokens=24) for number in range(3)))
    resumed = []
    while rig.scheduler.has_unfinished:
        batch = rig.step()
        resumed += [] if batch is None else [row.start for row in batch.rows if row.slot in dict(batch.restored)]
    assert rig.scheduler.stats.num_preemptions
    assert max(resumed) > 16
    rig.assert_oracle()


def test_no_snapshot_is_taken_where_all_are_about_to_be_restored() -> None:
    """Two begin from the only one, in steps that are too small for both."""
    rig = recurrent(snapshots=1, max_num_batched_tokens=4, max_num_seqs=3, grid=Grid([Bucket(4, 1)]))
    finish(rig, make_request("first", STEM[:18], max_tokens=1))
    rig.add(*(make_request(f"r{number}", [*STEM[:16], number, *STEM[:20]], max_tokens=2) for number in range(3)))
    rig.run()
    rig.assert_oracle()


def test_prefixes_of_a_device_that_lost_its_memory_are_forgotten() -> None:
    rig = recurrent()
    finish(rig, make_request("first", STEM[:21], max_tokens=1))
    assert rig.scheduler.reset_prefix_cache()
    assert starts(finish(rig, make_request("again", STEM[:21], max_tokens=1))) == [0, 16]
    rig.assert_oracle()


@pytest.mark.parametrize(("block", "every"), [(6, 0), (8, 12)])
def test_snapshots_are_of_whole_pages(block: int, every: int) -> None:
    with pytest.raises(ValueError, match="are not at ends of pages of 4"):
        recurrent(block=block, every=every)


def test_outer_stores_are_asked_for_what_lies_before_the_last_place_of_a_snapshot() -> None:
    rig = recurrent()
    finish(rig, make_request("first", STEM[:30], max_tokens=1))

    def asked(tokens: list[int]) -> list[tuple[int, int]]:
        chain = rig.ledger.chain(None)
        names = rig.ledger.absent(tokens, chain, len(tokens) - 1)
        digests = [chain.entry(number, tokens).digest for number in range(len(tokens) // 4)]
        return sorted((name.group, digests.index(name.digest)) for name in names)

    assert asked(list(STEM[:30])) == []
    assert asked([*STEM[:30], 1, 2, 3]) == [(0, 7), (1, 7)]
    assert asked([8, *STEM[:14]]) == [(0, 0), (0, 1), (1, 1)]
    assert asked([8, *STEM[:6]]) == []


def test_a_prefix_comes_back_from_the_host_with_its_snapshot() -> None:
    rig = recurrent(num_pages=30, snapshots=1, host_blocks=60, delay_of=lambda: 2)
    finish(rig, make_request("first", STEM[:21], max_tokens=1))
    finish(rig, make_request("other", [7, *STEM[:20]], max_tokens=1))
    assert starts(finish(rig, make_request("again", STEM[:21], max_tokens=1))) == [16]
    assert rig.scheduler.stats.external_prefix_cache_hits == 16
    rig.run()
    rig.assert_oracle()


def test_who_comes_while_a_snapshot_does_waits_for_it() -> None:
    rig = recurrent(snapshots=2, host_blocks=60, delay_of=lambda: 4, max_num_seqs=3)
    for number, prompt in enumerate((STEM[:21], [7, *STEM[:20]], [8, *STEM[:20]])):
        finish(rig, make_request(f"r{number}", prompt, max_tokens=1))
    rig.add(*(make_request(f"again {number}", [*STEM[:16], number], max_tokens=1) for number in range(3)))
    rig.step()
    assert rig.scheduler.stats.num_running == 1
    rig.run()
    assert rig.scheduler.stats.prefix_cache_hits + rig.scheduler.stats.external_prefix_cache_hits == 3 * 16
    rig.assert_oracle()


@pytest.mark.parametrize("failing", [False, True])
def test_another_engine_finds_the_prefix_in_a_store_that_both_have(failing: bool) -> None:
    outer: dict[Any, Any] = {}
    prefixes = keyed_hash(b"secret")
    first, second = (shared(outer, prefixes) for _ in range(2))
    finish(first, make_request("first", STEM[:21], max_tokens=1))
    first.run()
    assert {name.group for name in outer} == {0, 1}
    second.runner.tiers.failing = failing
    batches = finish(second, make_request("again", STEM[:21], max_tokens=1))
    assert starts(batches) == ([0, 16] if failing else [16])
    second.run()
    second.assert_oracle()


def test_without_its_snapshot_nothing_comes_from_a_store() -> None:
    outer: dict[Any, Any] = {}
    prefixes = keyed_hash(b"secret")
    first, second = (shared(outer, prefixes) for _ in range(2))
    finish(first, make_request("first", STEM[:21], max_tokens=1))
    first.run()
    for name in [name for name in outer if name.group == 1]:
        del outer[name]
    assert starts(finish(second, make_request("again", STEM[:21], max_tokens=1))) == [0, 16]
    assert not second.runner.tiers.loading
    second.run()
    second.assert_oracle()


def shared(outer: dict[Any, Any], prefixes: Hash) -> Rig:
    ledger = Ledger(
        [PagePool(100)],
        4,
        prefixes=Prefixes(hash=prefixes),
        tier=HostTier([60], outer=True, snapshots=4),
        snapshots=Snapshots(8, page_size=4, block=8),
    )
    return recurrent(ledger=ledger, outer=outer)
