"""From scheduler updates to what a caller reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.contract.batch import RowLogprobs
from jaxengine.contract.messages import Abort
from jaxengine.contract.outputs import CompletionOutput, RequestOutput
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.front.postprocess import Postprocessor, Progress
from jaxengine.text.tokenizer import Tokenizer
from tests.text import tiny

TOKENIZER = tiny.byte_level()
EOS = 1
PROMPT = tuple(TOKENIZER.encode("Once upon"))
CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
NOTHING = (None, None)


def request(request_id: str = "r", **sampling: Any) -> Request:
    params = SamplingParams(max_tokens=100, **sampling)
    return Request(
        request_id=request_id, prompt_token_ids=PROMPT, sampling=params, max_tokens=100, eos_token_id=EOS, arrival=1.0
    )


def row(token: int, logprob: float = -0.5, rank: int = 1, top: Sequence[tuple[int, float]] = ()) -> RowLogprobs:
    ids, values = [token for token, _ in top], [value for _, value in top]
    return RowLogprobs(logprob, rank, np.array(ids, np.int32), np.array(values, np.float32))


def update(
    *tokens: int,
    request_id: str = "r",
    index: int = 0,
    finish: str | None = None,
    reason: int | str | None = None,
    rows: Sequence[RowLogprobs | None] | None = None,
    prompt_rows: Sequence[RowLogprobs] = (),
    cached: int = 0,
    preemptions: int = 0,
) -> SequenceUpdate:
    return SequenceUpdate(
        request_id=request_id,
        index=index,
        token_ids=tokens,
        logprobs=tuple(rows) if rows is not None else (None,) * len(tokens),
        prompt_logprobs=tuple(prompt_rows),
        finish_reason=finish,
        stop_reason=reason,
        admission=Admission(cached, preemptions, 2.0),
    )


def feed(
    ids: Sequence[int],
    *,
    finish: str = "length",
    reason: int | str | None = None,
    tokenizer: Any = TOKENIZER,
    **sampling: Any,
) -> tuple[list[RequestOutput], list[tuple[str, int]]]:
    """One token a step, the last one with the finish reason."""
    post = Postprocessor(tokenizer, clock=lambda: 5.0).begin(request(**sampling))
    outputs, stopped = [], []
    for position, token in enumerate(ids):
        last = position == len(ids) - 1
        news = update(token, finish=finish if last else None, reason=reason if last else None)
        output, ended = post.process([news])
        outputs += [] if output is None else [output]
        stopped += [] if ended is None else ended.stopped
    return outputs, stopped


def told(post: Progress, *updates: SequenceUpdate) -> RequestOutput:
    """The output after these updates came at once."""
    output, _ = post.process(updates)
    assert output is not None
    return output


def final(ids: Sequence[int], **options: Any) -> CompletionOutput:
    outputs, _ = feed(ids, **options)
    assert outputs[-1].finished
    [completion] = outputs[-1].outputs
    return completion


IDS = TOKENIZER.encode(" a time é there was", add_special_tokens=False)
TEXT = " a time é there was"


def test_the_three_kinds_of_output_tell_the_same() -> None:
    cumulative, _ = feed(IDS)
    assert [output.finished for output in cumulative] == [False] * (len(IDS) - 1) + [True]
    assert cumulative[-1].outputs[0].text == TEXT
    assert cumulative[-1].outputs[0].token_ids == tuple(IDS)
    assert all(TEXT.startswith(output.outputs[0].text) for output in cumulative)
    deltas, _ = feed(IDS, output_kind=DELTA)
    assert "".join(output.outputs[0].text for output in deltas) == TEXT
    assert [token for output in deltas for token in output.outputs[0].token_ids] == IDS
    [only], _ = feed(IDS, output_kind=FINAL_ONLY)
    assert only == cumulative[-1]
    assert only.outputs[0].finish_reason == "length"


TEXTS = st.text(st.sampled_from("ab é😀\n"), max_size=20)


@settings(deadline=None)
@given(TEXTS, st.lists(st.text("ab é", min_size=1, max_size=3), max_size=3), st.booleans(), st.integers(0, 6))
def test_deltas_join_to_the_final_text(text: str, stops: list[str], include: bool, min_tokens: int) -> None:
    ids = [*TOKENIZER.encode(text, add_special_tokens=False), EOS]
    options: dict[str, Any] = {"stop": stops, "include_stop_str_in_output": include, "min_tokens": min_tokens}
    whole = final(ids, finish="stop", output_kind=FINAL_ONLY, **options)
    deltas, stopped = feed(ids, finish="stop", output_kind=DELTA, **options)
    assert "".join(output.outputs[0].text for output in deltas) == whole.text
    assert tuple(token for output in deltas for token in output.outputs[0].token_ids) == whole.token_ids
    last = deltas[-1].outputs[0]
    assert (
        (last.finish_reason, last.stop_reason)
        == (whole.finish_reason, whole.stop_reason)
        == ("stop", whole.stop_reason)
    )
    if isinstance(whole.stop_reason, str):
        assert whole.text.endswith(whole.stop_reason) or not include
        assert stopped == [("r", 0)] or len(whole.token_ids) == len(ids)
    elif min_tokens == 0:
        assert not any(stop in text for stop in stops)
        assert whole.text == text


def test_a_stop_string_cuts_the_text_and_names_itself() -> None:
    outputs, stopped = feed(IDS, stop=["time", "there"])
    completion = outputs[-1].outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (" a ", "stop", "time")
    assert outputs[-1].finished
    assert stopped == [("r", 0)]
    assert tuple(IDS[: len(completion.token_ids)]) == completion.token_ids, "the tokens of the stop string are kept"
    assert final(IDS, stop="time", include_stop_str_in_output=True).text == " a time"


def test_a_stop_string_that_the_last_token_completes_wins_over_length() -> None:
    ids = TOKENIZER.encode(" a time", add_special_tokens=False)
    outputs, stopped = feed(ids, stop="me", finish="length")
    assert (outputs[-1].outputs[0].finish_reason, outputs[-1].outputs[0].stop_reason) == ("stop", "me")
    assert stopped == [("r", 0)], "the scheduler has ended it already, but not for this reason"


def test_stop_strings_wait_for_min_tokens() -> None:
    ids = TOKENIZER.encode("abab", add_special_tokens=False)
    assert len(ids) == 4
    assert final(ids, stop="b").text == "a"
    assert final(ids, stop="b", min_tokens=2).text == "aba"


def test_tokens_after_a_stop_string_are_ignored() -> None:
    post = Postprocessor(TOKENIZER).begin(request(stop="b", n=2, temperature=1.0))
    [letter_a, letter_b] = TOKENIZER.encode("ab", add_special_tokens=False)
    _, ended = post.process([update(letter_b), update(letter_a, index=1)])
    assert ended == Abort(stopped=(("r", 0),))
    assert post.process([update(letter_a)]) == NOTHING
    output = told(post, update(letter_a, index=1, finish="length"))
    assert output.finished
    assert [completion.text for completion in output.outputs] == ["", "aa"]
    assert post.finished


@pytest.mark.parametrize(
    ("reason", "options", "text"),
    [
        (None, {}, "Tom"),
        (None, {"include_stop_str_in_output": True}, "Tom"),
        (None, {"include_stop_str_in_output": True, "skip_special_tokens": False}, "Tom</s>"),
    ],
)
def test_the_end_of_sequence_token_is_not_text(reason: int | None, options: dict[str, Any], text: str) -> None:
    ids = [*TOKENIZER.encode("Tom"), EOS]
    completion = final(ids, finish="stop", reason=reason, **options)
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (text, "stop", None)
    assert completion.token_ids == tuple(ids)


@pytest.mark.parametrize(("include", "text"), [(False, "To"), (True, "Tom")])
def test_the_text_of_a_stop_token_is_left_out(include: bool, text: str) -> None:
    ids = TOKENIZER.encode("Tom", add_special_tokens=False)
    ids = ids if len(ids) == 3 else [TOKENIZER.encode(letter)[0] for letter in "Tom"]
    completion = final(ids, finish="stop", reason=ids[-1], include_stop_str_in_output=include)
    assert (completion.text, completion.stop_reason, completion.token_ids) == (text, ids[-1], tuple(ids))


def test_half_a_character_is_flushed_at_the_end() -> None:
    first = TOKENIZER.encode("é", add_special_tokens=False)[0]
    assert final([first]).text == "\ufffd"
    assert final([first, EOS], finish="stop").text == "\ufffd"


@pytest.mark.parametrize(("tokenizer", "options"), [(TOKENIZER, {"detokenize": False}), (None, {})])
def test_without_detokenization_there_is_no_text(tokenizer: Tokenizer | None, options: dict[str, Any]) -> None:
    completion = final(IDS, tokenizer=tokenizer, **options)
    assert (completion.text, completion.token_ids) == ("", tuple(IDS))


def test_logprobs_have_the_sampled_token_first() -> None:
    a, b, c = TOKENIZER.encode("abc", add_special_tokens=False)
    post = Postprocessor(TOKENIZER).begin(request(logprobs=2))
    rows = [
        row(a, -0.5, 1, [(a, -0.5), (b, -1.0), (c, -2.0)]),
        row(c, -3.0, 7, [(a, -0.5), (b, float("-inf"))]),
    ]
    post.process([update(a, rows=rows[:1])])
    output = told(post, update(c, rows=rows[1:], finish="length"))
    [completion] = output.outputs
    assert completion.logprobs is not None
    first, second = completion.logprobs
    assert [(token, entry.rank, entry.decoded_token) for token, entry in first.items()] == [(a, 1, "a"), (b, 2, "b")]
    assert [(token, entry.rank) for token, entry in second.items()] == [(c, 7), (a, 1), (b, 2)]
    assert second[b].logprob == -9999.0
    assert completion.cumulative_logprob == pytest.approx(-3.5)


def test_logprobs_zero_is_the_sampled_token_and_minus_one_is_everything() -> None:
    a, b = TOKENIZER.encode("ab", add_special_tokens=False)
    for count, expected in ((0, [a]), (-1, [a, b, 0])):
        post = Postprocessor(TOKENIZER).begin(request(logprobs=count))
        output = told(post, update(a, rows=[row(a, top=[(a, -0.5), (b, -1.0), (0, -2.0)])], finish="length"))
        assert output.outputs[0].logprobs is not None
        assert list(output.outputs[0].logprobs[0]) == expected


def test_deltas_carry_their_own_logprobs_and_prompt_logprobs_once() -> None:
    a, b = TOKENIZER.encode("ab", add_special_tokens=False)
    post = Postprocessor(TOKENIZER).begin(request(logprobs=0, prompt_logprobs=1, output_kind=DELTA))
    prompt_rows = [row(token, -0.1 * at, top=[(a, -0.1)]) for at, token in enumerate(PROMPT) if at]
    assert post.process([update(prompt_rows=prompt_rows[:1])]) == NOTHING
    first = told(post, update(a, rows=[row(a)], prompt_rows=prompt_rows[1:], cached=4))
    second = told(post, update(b, rows=[row(b)], finish="length", cached=4))
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert [list(position) for position in first.prompt_logprobs[1:] if position] == [
        [token, a] for token in PROMPT[1:]
    ]
    assert second.prompt_logprobs is None
    for output, token in ((first, a), (second, b)):
        assert output.outputs[0].logprobs is not None
        assert [list(position) for position in output.outputs[0].logprobs] == [[token]]
    assert second.num_cached_tokens == 4


def test_positions_of_a_prompt_are_the_same_whenever_they_are_made() -> None:
    a, _ = TOKENIZER.encode("ab", add_special_tokens=False)
    prompt_rows = [row(token, -0.1 * at, top=[(a, -0.1)]) for at, token in enumerate(PROMPT) if at]
    made = []
    for lazy in (False, True):
        post = Postprocessor(TOKENIZER, lazy=lazy).begin(request(prompt_logprobs=1, output_kind=DELTA))
        post.process([update(prompt_rows=prompt_rows[:1])])
        found = told(post, update(a, prompt_rows=prompt_rows[1:], finish="length")).prompt_logprobs
        assert found is not None
        made.append((list(found), found[-2:], found[1], found[-1], len(found)))
    assert made[0] == made[1]
    assert len(made[0][0]) == len(PROMPT)


def test_bytes_of_a_character_are_decoded_with_their_context() -> None:
    ids = TOKENIZER.encode("é", add_special_tokens=False)
    post = Postprocessor(TOKENIZER).begin(request(logprobs=0))
    outputs = []
    for position, token in enumerate(ids):
        finish = "length" if position == len(ids) - 1 else None
        outputs.append(told(post, update(token, rows=[row(token)], finish=finish)))
    assert outputs[-1].outputs[0].logprobs is not None
    texts = [entry[token].decoded_token for entry, token in zip(outputs[-1].outputs[0].logprobs, ids, strict=True)]
    assert texts == ["", "é"]


def test_n_sequences_come_in_one_output_by_index() -> None:
    [a] = TOKENIZER.encode("a", add_special_tokens=False)
    post = Postprocessor(TOKENIZER).begin(request(n=3, temperature=1.0))
    output = told(post, update(a, index=0, finish="length", cached=4), update(a, index=2, cached=8))
    assert [completion.index for completion in output.outputs] == [0, 2]
    assert not output.finished
    assert output.num_cached_tokens == 4, "the others share the first one's prompt, which is no hit of the cache"
    post.process([update(a, index=1, finish="length", preemptions=1)])
    output = told(post, update(a, index=2, finish="length", preemptions=2))
    assert output.finished
    assert [completion.text for completion in output.outputs] == ["a", "a", "aa"]
    assert output.metrics is not None
    assert (output.metrics.arrival_time, output.metrics.first_scheduled_time, output.metrics.num_preemptions) == (
        1.0,
        2.0,
        3,
    )


def test_an_output_that_cannot_be_built_ends_its_request(caplog: pytest.LogCaptureFixture) -> None:
    post = Postprocessor(TOKENIZER).begin(request(logprobs=1, n=2, temperature=1.0))
    output, ended = post.process([update(IDS[0])])  # without the log probabilities that were asked for
    assert output is not None
    assert output.finished
    assert [completion.finish_reason for completion in output.outputs] == ["abort", "abort"]
    assert ended == Abort(("r",))
    assert "request r is aborted" in caplog.text
    assert post.process([update(IDS[1])]) == NOTHING


def test_nothing_is_due_before_there_is_something_to_tell() -> None:
    final = Postprocessor(TOKENIZER).begin(request(output_kind=FINAL_ONLY, n=2, temperature=1.0))
    assert not final.take(update(IDS[0]))
    assert not final.take(update(IDS[0], index=1, finish="length"))
    assert final.take(update(IDS[1], finish="length"))
    delta = Postprocessor(TOKENIZER).begin(request(output_kind=DELTA))
    assert delta.take(update(IDS[0]))


def test_several_updates_come_in_one_output() -> None:
    post = Postprocessor(TOKENIZER, clock=lambda: 5.0).begin(request(output_kind=DELTA))
    first = told(post, *(update(token) for token in IDS[:3]))
    last = told(post, *(update(token) for token in IDS[3:-1]), update(IDS[-1], finish="length"))
    assert [output.finished for output in (first, last)] == [False, True]
    assert first.outputs[0].text + last.outputs[0].text == TEXT
    assert (first.outputs[0].token_ids, last.outputs[0].token_ids) == (tuple(IDS[:3]), tuple(IDS[3:]))
    assert (first.outputs[0].finish_reason, last.outputs[0].finish_reason) == (None, "length")


def test_a_stop_string_in_the_middle_of_several_updates() -> None:
    a, b, c = TOKENIZER.encode("abc", add_special_tokens=False)
    post = Postprocessor(TOKENIZER).begin(request(stop="bc", logprobs=0, output_kind=DELTA))
    output, ended = post.process([update(token, rows=[row(token)]) for token in (a, b, c, a, b)])
    assert output is not None
    [completion] = output.outputs
    assert output.finished
    assert (completion.text, completion.token_ids) == ("a", (a, b, c))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "bc")
    assert completion.logprobs is not None
    assert [list(position) for position in completion.logprobs] == [[a], [b], [c]]
    assert completion.cumulative_logprob == pytest.approx(-1.5)
    assert ended == Abort(stopped=(("r", 0),))
    assert post.finished


def test_of_n_sequences_one_is_stopped_by_several_updates_and_the_other_goes_on() -> None:
    a, b = TOKENIZER.encode("ab", add_special_tokens=False)
    post = Postprocessor(TOKENIZER).begin(request(stop="b", n=2, temperature=1.0))
    updates = [update(a), update(a, index=1), update(a), update(b, index=1), update(a), update(a, index=1)]
    output, ended = post.process(updates)
    assert ended == Abort(stopped=(("r", 1),))
    assert output is not None
    assert not output.finished
    assert [(completion.text, completion.finish_reason) for completion in output.outputs] == [
        ("aaa", None),
        ("a", "stop"),
    ]


def everything(post: Progress, updates: Sequence[SequenceUpdate], cuts: Sequence[int]) -> list[Any]:
    """What a reader of deltas has in the end, of each sequence, when the updates come cut into lots."""
    whole: list[Any] = [["", (), [], None, None] for _ in range(2)]
    for begin, end in pairwise([0, *sorted(cuts), len(updates)]):
        output, _ = post.process(updates[begin:end]) if end > begin else NOTHING
        for completion in () if output is None else output.outputs:
            sequence = whole[completion.index]
            sequence[0] += completion.text
            sequence[1] += completion.token_ids
            sequence[2] += completion.logprobs or []
            sequence[3], sequence[4] = completion.finish_reason, completion.stop_reason
    return whole


@settings(deadline=None)
@given(
    st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=30),
    TEXTS,
    st.lists(st.integers(0, 60), max_size=6),
    st.lists(st.text("ab é", min_size=1, max_size=3), max_size=2),
    st.booleans(),
)
def test_how_many_updates_come_at_once_changes_nothing(
    noise: list[int], text: str, cuts: list[int], stops: list[str], logprobs: bool
) -> None:
    ids = [*TOKENIZER.encode(text, add_special_tokens=False), *noise]
    updates = []
    for index in range(2):
        for position, token in enumerate(ids[index:]):
            last = position == len(ids[index:]) - 1
            rows = [row(token)] if logprobs else None
            updates.append(update(token, index=index, rows=rows, finish="length" if last else None))
    options: dict[str, Any] = {"stop": stops, "n": 2, "temperature": 1.0, "logprobs": 0 if logprobs else None}
    found = []
    for lots in (range(1, len(updates)), [cut for cut in cuts if cut < len(updates)]):
        post = Postprocessor(TOKENIZER).begin(request(output_kind=DELTA, **options))
        found.append(everything(post, updates, lots))
    assert found[0] == found[1]
