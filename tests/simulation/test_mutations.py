"""The simulation finds faults: each of these, put in on purpose, makes one of the first seeds fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from jaxengine.contract.adapters import Adapter
from jaxengine.contract.batch import FromHost, Move, ToHost
from jaxengine.contract.media import Encoding
from jaxengine.contract.media_content import MediaContent
from jaxengine.contract.messages import Abort, StepOutputs
from jaxengine.contract.page_name import PageName
from jaxengine.contract.request import Request, SequenceHistory
from jaxengine.contract.step_updates import Gained
from jaxengine.contract.tiers import Load
from jaxengine.front import dispatcher
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.book import Entry
from jaxengine.front.dispatcher import Dispatcher
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.supervisor import Supervisor
from jaxengine.front.suspects import Suspects
from jaxengine.front.token_sinks import TokenSinks
from jaxengine.front.ward import Ward
from jaxengine.host.adapters.slots import AdapterSlots
from jaxengine.host.kvcache.holding import GroupPages
from jaxengine.host.kvcache.host_blocks import HostBlocks
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.snapshots import Snapshots
from jaxengine.host.media.pool import EmbeddingPool
from jaxengine.host.media.shown import NEVER, Shown
from jaxengine.host.scheduler import assembly
from jaxengine.host.scheduler import changing_masks as masks_of_a_step
from jaxengine.host.scheduler.arrivals import Arrivals
from jaxengine.host.scheduler.changing_masks import changing_masks
from jaxengine.host.scheduler.placement import Placement
from jaxengine.host.scheduler.scheduler import Scheduler
from jaxengine.host.scheduler.sequence_pages import SequencePages
from tests.fakes import FakeRunner
from tests.simulation.focus import behind, drafting_on_the_device, operated, stopped_while_resumed
from tests.simulation.network import Pipe
from tests.simulation.scenario import Scenario, draw_scenario
from tests.simulation.world import run

Patch = pytest.MonkeyPatch

MOST_SEEDS = 2000


def a_page_that_is_freed_twice(patch: Patch) -> None:
    drop, count = PagePool.drop, itertools.count(1)

    def drop_again(pool: PagePool, page: int) -> None:
        drop(pool, page)
        if next(count) % 50 == 0 and page not in pool.index and not pool.pages.references[page]:
            pool.pages.free(page)

    patch.setattr(PagePool, "drop", drop_again)


def a_page_that_is_never_freed(patch: Patch) -> None:
    drop, count = PagePool.drop, itertools.count(1)
    patch.setattr(PagePool, "drop", lambda pool, page: drop(pool, page) if next(count) % 50 else None)


def a_page_that_is_found_before_it_is_written(patch: Patch) -> None:
    publish = SequencePages.publish

    def too_early(pages: SequencePages, sequence: Any) -> None:
        computed, sequence.num_computed = sequence.num_computed, sequence.covered_end
        publish(pages, sequence)
        sequence.num_computed = computed

    patch.setattr(SequencePages, "publish", too_early)


def answers_in_the_order_of_other_rows(patch: Patch) -> None:
    add = assembly._add_row

    def swap(step: assembly.Assembly, *arguments: Any, **options: Any) -> None:
        add(step, *arguments, **options)
        step.asked.reverse()

    patch.setattr(assembly, "_add_row", swap)


def a_message_that_is_lost(patch: Patch) -> None:
    send, count = Pipe.send, itertools.count(1)
    patch.setattr(Pipe, "send", lambda pipe, value: send(pipe, value) if next(count) % 100 else None)


def messages_that_change_places(patch: Patch) -> None:
    def send(pipe: Pipe, value: Any, send: Callable[[Pipe, Any], None] = Pipe.send) -> None:
        send(pipe, value)
        if len(pipe._under_way) > 1:
            last = pipe._under_way.pop()
            pipe._under_way.insert(len(pipe._under_way) - 1, last)

    patch.setattr(Pipe, "send", send)


def an_update_that_is_applied_twice(patch: Patch) -> None:
    take, count = AsyncClient._take_outputs, itertools.count(1)

    def twice(client: AsyncClient, outputs: StepOutputs) -> None:
        again = next(count) % 50 == 0
        take(client, replace(outputs, updates=outputs.updates * 2) if again else outputs)

    patch.setattr(AsyncClient, "_take_outputs", twice)


def a_request_that_goes_on_one_token_late(patch: Patch) -> None:
    history_of = Request.history_of

    def longer(request: Request, index: int) -> SequenceHistory:
        history = history_of(request, index)
        if not history.token_ids or history.ended:
            return history
        return replace(history, token_ids=(*history.token_ids, history.token_ids[-1]))

    patch.setattr(Request, "history_of", longer)


def a_seed_that_is_drawn_again(patch: Patch) -> None:
    resumed = Entry.resumed

    def other(entry: Entry) -> Request:
        request = resumed(entry)
        return replace(request, seed=request.seed + 1) if request.history else request

    patch.setattr(Entry, "resumed", other)


def a_history_that_is_forgotten(patch: Patch) -> None:
    patch.setattr(Entry, "resumed", lambda entry: entry.request)


def a_sequence_that_ended_and_is_made_again(patch: Patch) -> None:
    resumed = Entry.resumed

    def unended(entry: Entry) -> Request:
        request = resumed(entry)
        return replace(request, history=tuple(replace(each, ended=False) for each in request.history))

    patch.setattr(Entry, "resumed", unended)


def scores_of_a_prompt_that_are_told_again(patch: Patch) -> None:
    resumed = Entry.resumed

    def unscored(entry: Entry) -> Request:
        request = resumed(entry)
        return replace(request, history=tuple(replace(each, num_prompt_logprobs=0) for each in request.history))

    patch.setattr(Entry, "resumed", unscored)


def an_event_of_a_dead_engine_that_is_heard(patch: Patch) -> None:
    def hear_all(supervisor: Supervisor) -> None:
        assert supervisor._mailbox is not None
        for ward, _, event in supervisor._mailbox.take_all():
            if not supervisor._client.ended:
                supervisor._take(ward, event)

    patch.setattr(Supervisor, "_take_all", hear_all)


def a_request_that_is_lost_with_its_engine(patch: Patch) -> None:
    lose = Dispatcher.lose

    def forget_one(dispatcher: Dispatcher, ward: Ward, *arguments: Any) -> Any:
        ward.entries = dict(list(ward.entries.items())[1:])
        return lose(dispatcher, ward, *arguments)

    patch.setattr(Dispatcher, "lose", forget_one)


def a_poison_that_is_tried_for_ever(patch: Patch) -> None:
    patch.setattr(Suspects, "note_death", lambda *_, **__: None)


def a_poison_that_is_tried_once_more(patch: Patch) -> None:
    patch.setattr("jaxengine.front.suspects.EVIDENCE_FOR_TRIAL", 3.0)


def a_neighbour_that_is_blamed(patch: Patch) -> None:
    patch.setattr(Suspects, "note_death", lambda suspects, running, cause, on_trial: next(iter(running), None))


def a_client_that_leaves_unheard(patch: Patch) -> None:
    send = Supervisor.send
    patch.setattr(
        Supervisor, "send", lambda channel, message: None if isinstance(message, Abort) else send(channel, message)
    )


def a_paused_request_that_never_goes_on(patch: Patch) -> None:
    pause = AsyncClient._pause

    def never(client: AsyncClient, request_ids: Any, paused: bool) -> None:
        if paused:
            pause(client, request_ids, paused)

    patch.setattr(AsyncClient, "_pause", never)


def a_timer_that_is_left(patch: Patch) -> None:
    patch.setattr(OutputStream, "_stop_timer", lambda stream: None)


def a_suspect_that_leaves_no_room_for_the_next(patch: Patch) -> None:
    """A fault that this code had."""
    close = Dispatcher._close

    def close_quietly(dispatcher: Dispatcher, entry: Entry) -> None:
        with pytest.MonkeyPatch.context() as quiet:
            quiet.setattr(dispatcher, "place", lambda: None)
            close(dispatcher, entry)

    patch.setattr(Dispatcher, "_close", close_quietly)


def an_answer_that_is_taken_for_a_later_one(patch: Patch) -> None:
    """A fault that this code had."""

    def accept(ward: Ward, entry: Entry, number: int) -> bool:
        ward.unanswered.pop(entry.request_id, None)
        return ward.entries.get(entry.request_id) is entry

    patch.setattr(Ward, "accept", accept)


def sequences_that_wait_for_one_that_was_stopped(patch: Patch) -> None:
    """A fault that this code had."""

    def stop(scheduler: Scheduler, request_id: str, index: int) -> None:
        group = scheduler._groups.get(request_id)
        sequence = None if group is None else group.live.get(index)
        if sequence is not None:
            scheduler._finish(sequence)
            scheduler._placement.sweep()

    patch.setattr(Scheduler, "stop", stop)


def a_grammar_that_is_asked_twice_at_once(patch: Patch) -> None:
    """A fault that this code had."""

    def masks(scheduler: Scheduler, batch: Any) -> Any:
        asked = [sequence for sequence, _ in scheduler._in_flight[0][1].asked]
        return changing_masks(sequence for sequence in asked if sequence.sampling.mask_changes)

    patch.setattr(Scheduler, "masks", masks)


def a_block_that_is_brought_to_anothers_page(patch: Patch) -> None:
    extend = GroupPages.extend

    def mixed(pages: GroupPages, num_pages: int) -> list[FromHost]:
        moves = extend(pages, num_pages)
        blocks = [move.block for move in moves]
        return [replace(move, block=block) for move, block in zip(moves, reversed(blocks), strict=True)]

    patch.setattr(GroupPages, "extend", mixed)


def a_move_that_is_lost(patch: Patch) -> None:
    take, count = HostTier.take_moves, itertools.count(1)

    def lossy(tier: HostTier) -> tuple[Move, ...]:
        return tuple(move for move in take(tier) if next(count) % 20)

    patch.setattr(HostTier, "take_moves", lossy)


def a_page_that_is_written_before_it_has_left(patch: Patch) -> None:
    take, late = HostTier.take_moves, list[Move]()

    def later(tier: HostTier) -> tuple[Move, ...]:
        moves = take(tier)
        leaving = [move for move in moves if isinstance(move, ToHost)]
        made = (*late, *(move for move in moves if move not in leaving))
        late[:] = leaving
        return made

    patch.setattr(HostTier, "take_moves", later)


def a_block_that_is_given_up_while_it_is_read(patch: Patch) -> None:
    patch.setattr(HostBlocks, "hold", lambda blocks, block: blocks.readers.update([block]))
    patch.setattr(HostBlocks, "let_go", lambda blocks, block: blocks.readers.subtract([block]))
    patch.setattr(HostBlocks, "check", lambda blocks, holders: None)


def a_sequence_that_does_not_wait_for_its_pages(patch: Patch) -> None:
    take = Arrivals.take

    def hasty(arrivals: Arrivals, moves: Any) -> Any:
        wanted, complete = take(arrivals, moves)
        waiting = list(arrivals._left) if wanted else []
        for sequence in waiting:
            arrivals.give_up(sequence)
        return wanted, complete + waiting

    patch.setattr(Arrivals, "take", hasty)


def a_page_of_another_name_that_is_taken(patch: Patch) -> None:
    load = HostBlocks.load

    def other(blocks: HostBlocks, name: PageName) -> bool:
        told = load(blocks, name)
        loads = [transfer for transfer in blocks._underway.later if isinstance(transfer, Load)]
        if len(loads) > 1:
            blocks._underway.later[:] = [replace(loads[-1], name=loads[0].name), *loads[:-1]]
        return told

    patch.setattr(HostBlocks, "load", other)


def states_that_are_not_restored(patch: Patch) -> None:
    begin = Snapshots.begin

    def forget(snapshots: Snapshots, sequence_id: int) -> None:
        begin(snapshots, sequence_id)

    patch.setattr(Snapshots, "begin", forget)


def states_that_are_read_before_they_have_come(patch: Patch) -> None:
    coming = Ledger.coming
    patch.setattr(
        Ledger,
        "coming",
        lambda ledger, of: tuple(move for move in coming(ledger, of) if move.pool < len(ledger.pools.num_available)),
    )


def a_snapshot_that_is_found_by_a_shorter_prefix(patch: Patch) -> None:
    keep = Snapshots.keep
    patch.setattr(
        Snapshots, "keep", lambda snapshots, of, end: keep(snapshots, of, max(end - snapshots.block, snapshots.block))
    )


def an_adapter_that_lies_in_anothers_slot(patch: Patch) -> None:
    take = AdapterSlots.take

    def wrong(slots: AdapterSlots, adapter: Adapter) -> int:
        return take(slots, adapter) % slots.count + 1

    patch.setattr(AdapterSlots, "take", wrong)


def a_slot_in_use_that_is_given_away(patch: Patch) -> None:
    take, give_back = AdapterSlots.take, AdapterSlots.give_back

    def taken(slots: AdapterSlots, adapter: Adapter) -> int:
        slot = take(slots, adapter)
        give_back(slots, adapter)
        return slot

    patch.setattr(AdapterSlots, "take", taken)
    patch.setattr(AdapterSlots, "give_back", lambda slots, adapter: None)


def a_prefix_of_another_adapter(patch: Patch) -> None:
    chain = Ledger.chain
    patch.setattr(Ledger, "chain", lambda ledger, salt, *, adapter=None, media=None: chain(ledger, salt, media=media))


def a_request_that_goes_on_without_its_adapter(patch: Patch) -> None:
    resumed = Entry.resumed

    def forgotten(entry: Entry) -> Request:
        request = resumed(entry)
        return replace(request, adapter=None) if request.history else request

    patch.setattr(Entry, "resumed", forgotten)


def a_page_of_drafts_that_is_taken_back_too_soon(patch: Patch) -> None:
    def take_back(placement: Placement) -> bool:
        drafting = [sequence for sequence in placement.running if sequence.ahead]
        given_back = [placement.pages.shrink(sequence, sequence.num_tokens) for sequence in drafting]
        return any(given_back)

    patch.setattr(Placement, "_take_back", take_back)


def a_mask_that_drafts_do_not_move(patch: Patch) -> None:
    def unmoved(sequence: Any, state: Any, first: Any) -> list[Any]:
        return [first] * sequence.ahead

    patch.setattr(masks_of_a_step, "_behind_drafts", unmoved)


def a_prefix_of_another_picture(patch: Patch) -> None:
    patch.setattr(MediaContent, "between", lambda content, start, end: b"")


def a_prefix_of_another_sound(patch: Patch) -> None:
    patch.setattr(MediaContent, "read", b"")


def a_row_that_does_not_wait_for_its_picture(patch: Patch) -> None:
    patch.setattr(Shown, "ready_end", NEVER)


def a_row_that_ends_within_a_picture(patch: Patch) -> None:
    patch.setattr(Shown, "whole_end", lambda shown, end: end)


def a_picture_that_is_given_up_while_it_is_needed(patch: Patch) -> None:
    take_passed = Shown.take_passed
    patch.setattr(Shown, "take_passed", lambda shown, computed: take_passed(shown, computed + 2))


def a_picture_that_is_held_for_ever(patch: Patch) -> None:
    drop, count = EmbeddingPool.drop, itertools.count(1)
    patch.setattr(EmbeddingPool, "drop", lambda pool, pooled: bool(next(count) % 50) and drop(pool, pooled))


def a_launch_of_an_encoder_that_is_lost(patch: Patch) -> None:
    encode, count = FakeRunner.encode, itertools.count(1)

    def lost(runner: FakeRunner, encoding: Encoding) -> None:
        if next(count) % 20:
            encode(runner, encoding)
        else:
            runner.encodings += 1

    patch.setattr(FakeRunner, "encode", lost)


def a_request_that_goes_on_without_its_picture(patch: Patch) -> None:
    resumed = Entry.resumed

    def forgotten(entry: Entry) -> Request:
        request = resumed(entry)
        return replace(request, media=None) if request.history else request

    patch.setattr(Entry, "resumed", forgotten)


def tokens_that_overtake_others(patch: Patch) -> None:
    take = TokenSinks.take
    patch.setattr(TokenSinks, "take", lambda sinks, part: take(sinks, part) if isinstance(part, Gained) else ([], part))


def a_request_that_is_refused_because_its_next_engine_sleeps(patch: Patch) -> None:
    patch.setattr(Ward, "asleep", False)
    patch.setattr(dispatcher, "OverloadedError", ())


PLANTED = (
    a_page_that_is_freed_twice,
    a_page_that_is_never_freed,
    a_page_that_is_found_before_it_is_written,
    answers_in_the_order_of_other_rows,
    a_message_that_is_lost,
    messages_that_change_places,
    an_update_that_is_applied_twice,
    a_request_that_goes_on_one_token_late,
    a_seed_that_is_drawn_again,
    a_history_that_is_forgotten,
    a_sequence_that_ended_and_is_made_again,
    scores_of_a_prompt_that_are_told_again,
    an_event_of_a_dead_engine_that_is_heard,
    a_request_that_is_lost_with_its_engine,
    a_poison_that_is_tried_for_ever,
    a_poison_that_is_tried_once_more,
    a_neighbour_that_is_blamed,
    a_client_that_leaves_unheard,
    a_paused_request_that_never_goes_on,
    a_timer_that_is_left,
    a_suspect_that_leaves_no_room_for_the_next,
    an_answer_that_is_taken_for_a_later_one,
    sequences_that_wait_for_one_that_was_stopped,
    a_grammar_that_is_asked_twice_at_once,
    a_block_that_is_brought_to_anothers_page,
    a_move_that_is_lost,
    a_page_that_is_written_before_it_has_left,
    a_block_that_is_given_up_while_it_is_read,
    a_sequence_that_does_not_wait_for_its_pages,
    a_page_of_another_name_that_is_taken,
    states_that_are_not_restored,
    states_that_are_read_before_they_have_come,
    a_snapshot_that_is_found_by_a_shorter_prefix,
    an_adapter_that_lies_in_anothers_slot,
    a_slot_in_use_that_is_given_away,
    a_prefix_of_another_adapter,
    a_request_that_goes_on_without_its_adapter,
    a_page_of_drafts_that_is_taken_back_too_soon,
    a_mask_that_drafts_do_not_move,
    a_prefix_of_another_picture,
    a_prefix_of_another_sound,
    a_row_that_does_not_wait_for_its_picture,
    a_row_that_ends_within_a_picture,
    a_picture_that_is_given_up_while_it_is_needed,
    a_picture_that_is_held_for_ever,
    a_launch_of_an_encoder_that_is_lost,
    a_request_that_goes_on_without_its_picture,
    tokens_that_overtake_others,
    a_request_that_is_refused_because_its_next_engine_sleeps,
)

FOCUSED: Mapping[Callable[[Patch], None], Callable[[Scenario], Scenario]] = {
    sequences_that_wait_for_one_that_was_stopped: stopped_while_resumed,
    a_page_of_drafts_that_is_taken_back_too_soon: drafting_on_the_device,
    a_mask_that_drafts_do_not_move: drafting_on_the_device,
    tokens_that_overtake_others: behind,
    a_request_that_is_refused_because_its_next_engine_sleeps: operated,
}
"""What makes the situation likely in which a fault does harm, where it is rare among all scenarios."""


def seeds_until_found(plant: Callable[[Patch], None], most: int = MOST_SEEDS) -> int | None:
    """How many seeds are run until one fails with this fault in place; None when none of so many does."""
    focus = FOCUSED.get(plant, lambda scenario: scenario)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        return next((seed + 1 for seed in range(most) if run(focus(draw_scenario(seed))).errors), None)


@pytest.mark.slow
@pytest.mark.parametrize("focus", dict.fromkeys(FOCUSED.values()), ids=lambda focus: focus.__name__)
def test_all_is_well_where_a_focus_is(focus: Callable[[Scenario], Scenario]) -> None:
    for seed in range(25):
        assert not run(focus(draw_scenario(seed))).errors, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None]) -> None:
    assert seeds_until_found(plant) is not None
