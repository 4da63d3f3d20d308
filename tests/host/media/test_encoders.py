"""Prompts that show something, through the scheduler: encoded in order and once, waited for by those who need them alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from buckets import Bucket
from jaxengine.contract.media import Encoding, PromptMedia
from jaxengine.errors import ConfigError, RequestError
from jaxengine.host.media.encoders import Encoders
from tests.harness import Rig, make_request
from tests.media_items import hearing, make_facts, make_item, showing

TEXT = range(1, 9)


def encoded(rig: Rig) -> list[Encoding]:
    """What the rig's device encodes from now on."""
    launches: list[Encoding] = []
    encode = rig.runner.encode

    def note(encoding: Encoding) -> None:
        launches.append(encoding)
        encode(encoding)

    rig.runner.encode = note
    return launches


def test_every_place_has_its_own_items_embedding() -> None:
    rig = Rig(media=make_facts(), distant=True)
    rig.add(showing(make_request("a", ()), *TEXT, ("cat", 5), 3, ("dog", 4), 7, ("cat", 5)))
    rig.add(showing(make_request("b", ()), *TEXT, ("dog", 5), 3, ("cat", 4), 7, ("cat", 5)))
    rig.add(make_request("text", TEXT))
    rig.run()
    rig.assert_oracle()


def test_an_item_is_encoded_once_whoever_shows_it() -> None:
    rig = Rig(media=make_facts())
    launches = encoded(rig)
    for number in range(3):
        rig.add(showing(make_request(f"r{number}", ()), number, ("cat", 5), *TEXT))
        rig.run()
    assert [len(launch.items) for launch in launches] == [1]
    stats = rig.scheduler.stats.encoders
    assert (stats.queries, stats.hits) == (3, 2)
    rig.assert_oracle()


def test_another_salt_encodes_again() -> None:
    rig = Rig(media=make_facts())
    launches = encoded(rig)
    for salt in (None, "tenant"):
        rig.add(showing(make_request(f"r{salt}", (), salt=salt), 1, ("cat", 5), *TEXT))
        rig.run()
    assert len(launches) == 2
    rig.assert_oracle()


def test_a_prefix_with_the_same_picture_is_found_and_one_with_another_is_not() -> None:
    rig = Rig(media=make_facts())
    launches = encoded(rig)
    for name, cached in (("cat", 0), ("cat", 16), ("dog", 4)):
        rig.add(showing(make_request(name + str(len(rig.requests)), ()), 1, 2, 3, 4, 5, (name, 6), *TEXT))
        rig.run()
        assert rig.heard[-1].admission.num_cached_tokens == cached
    assert len(launches) == 2
    rig.assert_oracle()


def test_the_same_picture_elsewhere_in_a_page_is_another_prefix() -> None:
    rig = Rig(media=make_facts())
    for rows in ((("cat", 4), 94, 1), (94, ("cat", 4), 1)):
        rig.add(showing(make_request(f"r{len(rig.requests)}", ()), *rows, *TEXT))
        rig.run()
        assert rig.heard[-1].admission.num_cached_tokens == 0
    rig.assert_oracle()


def test_others_do_not_wait_for_a_prompt_that_waits_for_its_picture() -> None:
    """Each step encodes one picture; text goes on in all of them."""
    rig = Rig(media=make_facts(), encoder_budget=1, max_num_seqs=4)
    launches = encoded(rig)
    rig.add(make_request("text", TEXT, max_tokens=12))
    rig.step()
    rig.add(showing(make_request("a", ()), *[(f"picture {number}", 3) for number in range(4)], 5))
    for number in range(1, 5):
        batch = rig.step()
        assert batch is not None
        assert len(launches) == number
        starts = [(row.start, row.num_tokens) for row in batch.rows]
        assert starts == [(7 + number, 1), (3 * number - 3, 3 + (number == 4))]
    rig.run()
    rig.assert_oracle()


def test_a_step_encodes_no_more_than_its_budget() -> None:
    rig = Rig(media=make_facts(60), encoder_budget=10, max_num_batched_tokens=64)
    launches = encoded(rig)
    rig.add(showing(make_request("a", ()), *[(f"picture {number}", 4) for number in range(5)], 5))
    most = 0
    while rig.scheduler.has_unfinished:
        before = len(launches)
        rig.step()
        most = max(most, sum(launch.num_patches for launch in launches[before:]))
    assert most == 8
    rig.assert_oracle()


def test_items_of_one_step_share_a_launch() -> None:
    rig = Rig(media=make_facts())
    launches = encoded(rig)
    rig.add(showing(make_request("a", ()), ("cat", 3), ("dog", 5), 5))
    rig.run()
    assert [(launch.bucket, len(launch.items)) for launch in launches] == [(Bucket(2, 4), 2)]
    assert rig.scheduler.stats.encoders.shapes[Bucket(2, 4)].padded_tokens == 8


def test_embeddings_that_are_given_are_written_and_not_encoded() -> None:
    encoders = Encoders(make_facts(80), budget=100)
    media = PromptMedia(items=(make_item("cat", range(3)), replace(make_item("dog", range(3, 90)), given=True)))
    encoders.check_fits(media, longest_run=8)
    assert encoders.take(encoders.shown(media, "a", None), 0)
    (seen, given), ids = encoders.launch()
    assert (seen.bucket, given.bucket, given.number, ids) == (Bucket(2, 4), None, 2, ("a",))
    assert [one.item.given for one in given.items] == [True]
    assert sum(count.steps for count in encoders.stats.shapes.values()) == 1


def test_a_full_pool_lets_text_pass_and_no_other_picture() -> None:
    rig = Rig(media=make_facts(1 + 5), max_num_batched_tokens=8)
    rig.add(showing(make_request("first", ()), ("cat", 10), 1))
    rig.step()
    rig.add(showing(make_request("second", ()), ("dog", 10), 1))
    rig.add(showing(make_request("third", ()), ("house", 2), 1))
    rig.add(make_request("text", TEXT))
    rig.step()
    running = {sequence.request_id for sequence in rig.scheduler._placement.running}
    assert running == {"first", "text"}
    rig.run()
    rig.assert_oracle()
    order = [update.request_id for update in rig.heard if update.finish_reason]
    assert order.index("second") < order.index("third")


def test_an_item_is_given_back_once_the_prompt_is_computed_past_it() -> None:
    rig = Rig(media=make_facts(1 + 4))
    rig.add(showing(make_request("first", (), max_tokens=20), ("cat", 8), *TEXT))
    rig.step()
    assert rig.scheduler.stats.encoders.pool_usage == 0.0
    rig.add(showing(make_request("second", ()), ("dog", 8), 1))
    rig.step()
    assert len(rig.scheduler._placement.running) == 2
    rig.run()
    rig.assert_oracle()


def test_cross_attention_holds_its_sound_to_the_end() -> None:
    rig = Rig(media=make_facts(1 + 4, crosses=True))
    for number in range(3):
        rig.add(hearing(make_request(f"r{number}", TEXT, max_tokens=5), f"sound {number % 2}", 7))
    rig.step()
    rig.step()
    assert rig.scheduler.stats.encoders.pool_usage == 1.0
    rig.run()
    rig.assert_oracle()


def test_a_preempted_sequence_takes_its_items_again() -> None:
    rig = Rig(media=make_facts(1 + 16), num_pages=12, caching=False, max_num_batched_tokens=32)
    for number in range(3):
        rig.add(showing(make_request(f"r{number}", (), max_tokens=20), ("cat", 5), number, (f"dog {number}", 5), 4))
    rig.run()
    assert rig.scheduler.stats.num_preemptions
    rig.assert_oracle()


def test_several_sequences_of_a_request_share_its_items() -> None:
    rig = Rig(media=make_facts())
    launches = encoded(rig)
    rig.add(showing(make_request("a", (), n=4, seed=7), 1, ("cat", 5), ("dog", 4)))
    rig.run()
    assert sum(len(launch.items) for launch in launches) == 2
    rig.assert_oracle()


def test_an_abort_before_its_picture_is_encoded_leaves_nothing() -> None:
    rig = Rig(media=make_facts(), encoder_budget=1)
    rig.add(showing(make_request("a", ()), ("cat", 5), ("dog", 4), 1))
    rig.step()
    assert rig.scheduler.stats.encoders.num_queued == 1
    rig.abort("a")
    assert rig.scheduler.stats.encoders.num_queued == 0
    rig.add(showing(make_request("b", ()), ("dog", 4), ("cat", 5), 1))
    rig.run()
    rig.assert_oracle()


def test_other_weights_encode_again() -> None:
    rig = Rig(media=make_facts())
    launches = encoded(rig)
    for _ in range(2):
        rig.add(showing(make_request(f"r{len(rig.requests)}", ()), 1, ("cat", 5), *TEXT))
        rig.run()
        assert rig.scheduler.reset_prefix_cache()
    assert len(launches) == 2


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_have_whole_items_where_these_see_themselves(deterministic: bool) -> None:
    rig = Rig(media=make_facts(60, sight=True), max_num_batched_tokens=10, deterministic=deterministic)
    rig.add(make_request("text", TEXT, max_tokens=20), make_request("more", TEXT, max_tokens=20))
    rig.step()
    rig.add(showing(make_request("a", ()), 1, 2, 3, ("cat", 8), 4, ("dog", 3), 5))
    rig.add(showing(make_request("b", ()), ("dog", 7), ("cat", 8), 9))
    rig.run()
    rig.assert_oracle()


def test_a_last_token_whose_picture_is_encoded_just_now_waits_for_its_page() -> None:
    """A windowed pool gives pages as rows go on, and who waited when they were handed out has none yet."""
    rig = Rig(media=make_facts(), encoder_budget=1, keeps=((None,), (6,)), max_num_batched_tokens=8)
    rig.add(showing(make_request("a", ()), ("cat", 4), ("dog", 4), ("house", 1)))
    rig.run()
    rig.assert_oracle()


def test_in_deterministic_mode_no_row_ends_where_an_encoder_has_come_to() -> None:
    """Else rows of one token, which another program computes, would be made of a prompt."""
    answers = []
    for budget in (None, 1):
        rig = Rig(media=make_facts(), encoder_budget=budget, deterministic=True, tag_programs=True)
        rig.add(showing(make_request("a", ()), ("cat", 1), ("dog", 4), ("house", 2), 5))
        rig.run()
        answers.append(rig.collected["a", 0].tokens)
    assert answers[0] == answers[1]


def test_in_deterministic_mode_a_prompt_that_is_scored_waits_for_its_pictures() -> None:
    rig = Rig(media=make_facts(), encoder_budget=1, deterministic=True)
    rig.add(showing(make_request("a", (), prompt_logprobs=1), 1, ("cat", 2), ("dog", 3), 5))
    rig.run()
    rig.assert_oracle()


def test_in_deterministic_mode_small_steps_have_room_for_a_run_of_one() -> None:
    """A prompt gets three tokens of each step there, however few a step has."""
    rig = Rig(media=make_facts(sight=True, crosses=True), max_num_seqs=1, max_num_batched_tokens=1, deterministic=True)
    rig.add(hearing(make_request("sound", TEXT), "bark", 5))
    rig.add(showing(make_request("a", ()), 1, ("cat", 1), 2, 3))
    with pytest.raises(RequestError, match="2 tokens that see each other, and a step has 1"):
        rig.add(showing(make_request("b", ()), 1, ("cat", 2), 2, 3))
    rig.run()
    rig.assert_oracle()


def test_an_item_as_long_as_a_step_gets_one_alone() -> None:
    """Rows that decode leave a step out: there is never room beside them."""
    rig = Rig(media=make_facts(60, sight=True), max_num_batched_tokens=8)
    rig.add(*(make_request(f"text {number}", TEXT, max_tokens=30) for number in range(3)))
    for _ in range(4):
        rig.step()
    rig.add(showing(make_request("a", (), max_tokens=2), 1, ("cat", 8), 2))
    for _ in range(10):
        rig.step()
    assert rig.collected["a", 0].finish_reason == "length"
    rig.run()
    rig.assert_oracle()


def test_a_windowed_pool_without_room_gives_an_item_its_pages_again() -> None:
    rig = Rig(
        media=make_facts(60, sight=True), keeps=((None, 6),), num_pages=26, max_num_batched_tokens=8, max_model_len=40
    )
    for number in range(4):
        rig.add(
            showing(make_request(f"r{number}", (), max_tokens=9), number, ("cat", 8), 1, 2, (f"dog {number}", 7), 5)
        )
    rig.run()
    rig.assert_oracle()


def test_what_can_never_be_encoded_is_refused() -> None:
    rig = Rig(media=make_facts(1 + 4, sight=True), max_num_batched_tokens=10)
    request = make_request("a", ())
    with pytest.raises(RequestError, match="65 patches in 1 frames, and the encoder takes 64 patches of 4 frames"):
        rig.add(replace(request, prompt_token_ids=(1,), media=media_of(patches=65)))
    with pytest.raises(RequestError, match="10 patches in 5 frames"):
        rig.add(replace(request, prompt_token_ids=(1,), media=media_of(patches=10, rows=5)))
    with pytest.raises(RequestError, match="11 tokens that see each other, and a step has 10"):
        rig.add(showing(request, ("cat", 11)))
    with pytest.raises(RequestError, match="2 items take 5 pages of embeddings, and the engine has 4 of 2"):
        rig.add(showing(request, ("cat", 5), ("dog", 3)))
    with pytest.raises(RequestError, match="prompt_logprobs"):
        rig.add(showing(make_request("a", (), prompt_logprobs=1), ("cat", 5)))
    with pytest.raises(RequestError, match="takes no pictures"):
        Rig().add(showing(request, ("cat", 5)))
    rig.add(showing(request, ("cat", 8)))
    rig.run()


def test_an_item_shown_twice_counts_once() -> None:
    rig = Rig(media=make_facts(1 + 4))
    rig.add(showing(make_request("a", ()), ("cat", 8), ("cat", 8), 1))
    rig.run()
    rig.assert_oracle()


def test_sight_and_states_are_refused() -> None:
    with pytest.raises(ConfigError, match="keeps states"):
        Rig(media=make_facts(sight=True), chunk=1)


def media_of(*, patches: int, rows: int = 1) -> object:
    from jaxengine.contract.media import PromptMedia

    return PromptMedia(items=(make_item("cat", [0], patches=patches, rows=rows),))
