"""Steps through the compiled programs: what a sequence yields depends on itself alone, and costs are paid by who asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from buckets import Bucket
from jaxengine.contract.batch import Batch, FromHost, SamplingSpec, SlotState, StepResult, ToHost
from jaxengine.contract.rows import Pool, Row, Rows, Sample, Score, Want
from jaxengine.contract.runner import Weights
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.held_weights import HeldWeights
from jaxengine.device.runtime.launcher import Launcher, allocate_state
from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.runtime.runner import ModelRunner
from jaxengine.device.weights.placement import shares_memory
from tests.device.runtime.test_forward import space
from xla_cache import CompileCounter

LARGE, SMALL = Bucket(4, 16), Bucket(4, 1)
GREEDY = SamplingSpec(temperature=0.0, seed=0)
RANDOM = SamplingSpec(temperature=1.3, seed=5, top_k=40, top_p=0.95)
PENALISED = SamplingSpec(temperature=0.9, seed=6, presence_penalty=0.5, frequency_penalty=0.7, repetition_penalty=1.4)
REPORTED = SamplingSpec(temperature=0.7, seed=7, num_logprobs=3)
BIASED = SamplingSpec(temperature=0.7, seed=8, bias_ids=(3, 9), bias_values=(4.0, -100.0))
MASKED = SamplingSpec(temperature=1.0, seed=9, masked=True)
PROMPT = (5, 6, 7, 8, 200, 9)


@pytest.fixture(scope="module")
def runner(tmp_path_factory) -> ModelRunner:
    """Three drafts a sequence, so that there are two row counts: 8 and 16."""
    planned = dataclasses.replace(
        space(tmp_path_factory.mktemp("model"), {"num_hidden_layers": 2}), num_drafts=3, host_blocks=(9,)
    )
    executables, _ = Executables.compile(all_programs(planned), threads=2)
    numbers = np.random.default_rng(0)
    parameters = tuple(
        jax.device_put(numbers.normal(scale=0.3, size=struct.shape).astype(struct.dtype))
        for struct in planned.parameters.values()
    )
    made = ModelRunner(planned, executables, HeldWeights(planned, parameters), *allocate_state(planned))
    made.prepare()
    return made


def bits(*tokens: int) -> np.ndarray:
    words = np.zeros(8, np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words


def pages_of(slot: int) -> np.ndarray:
    return np.arange(1, 7, dtype=np.int32)[None] + 6 * slot


TABLES = tuple((slot, pages_of(slot)) for slot in range(1, 5))


def launch(runner: ModelRunner, rows: Sequence[Row], bucket: Bucket = LARGE, **fields: Any) -> StepResult:
    masks: Mapping[int, np.ndarray] = fields.pop("masks", {})  # of one place each
    batch = Batch(1, bucket, Rows(rows), tables=TABLES, masked=bool(masks), **fields)
    pending = runner.launch(batch)
    if masks:
        runner.masks(1, {slot: (mask,) for slot, mask in masks.items()})
    return pending.wait()


def row(slot: int, tokens: Sequence[int], start: int, want: Want) -> Row:
    return Row(slot, tuple(tokens), len(tokens), start, want)


@dataclasses.dataclass
class Running:
    """A sequence in a slot, with pages of its own."""

    slot: int
    spec: SamplingSpec
    tokens: tuple[int, ...] = PROMPT
    allowed: np.ndarray | None = None
    num_prompt: int = len(PROMPT)

    @property
    def state(self) -> SlotState:
        history = np.array(self.tokens, np.int32) if self.spec.has_penalties else None
        return SlotState(self.slot, self.spec, self.allowed, history, self.num_prompt)

    def prompt_row(self) -> Row:
        return row(self.slot, self.tokens, 0, Sample())

    def next_row(self, *, known: bool = False) -> Row:
        tokens = self.tokens[-1:] if known else None
        return Row(self.slot, tokens, 1, len(self.tokens) - 1, Sample())


def generate(runner: ModelRunner, sequences: Sequence[Running], count: int, *, known: bool = False) -> list[Any]:
    """`count` tokens and reports of each sequence, all in the same steps; the device's last token, or the one the host knows."""
    sequences = [dataclasses.replace(sequence) for sequence in sequences]
    yielded: list[list[Any]] = [[] for _ in sequences]
    for step in range(count):
        rows = [one.next_row(known=known) if step else one.prompt_row() for one in sequences]
        begin = () if step else tuple(one.state for one in sequences)
        result = launch(runner, rows, SMALL if step else LARGE, begin=begin)
        for one, token, report, out in zip(sequences, result.tokens.tolist(), result.logprobs, yielded, strict=True):
            one.tokens += (token,)
            described = report and (report.logprob, report.rank, report.top_ids.tolist(), report.top_logprobs.tolist())
            out.append((token, described))
    return yielded


ALL = [GREEDY, RANDOM, PENALISED, REPORTED, BIASED, MASKED]


@pytest.mark.parametrize("spec", ALL)
def test_a_sequence_yields_the_same_alone_and_in_any_company_and_slot(runner, spec):
    allowed = bits(*range(0, 256, 3)) if spec.masked else None
    [alone] = generate(runner, [Running(1, spec, allowed=allowed)], 6)
    assert len({token for token, _ in alone}) > 1
    for others in ([GREEDY, PENALISED, REPORTED], [MASKED, RANDOM, BIASED]):
        company = [Running(slot, other, allowed=bits(4, 5)) for slot, other in enumerate(others, 1)]
        together = generate(runner, [*company, Running(4, spec, allowed=allowed)], 6)
        assert together[3] == alone
    assert generate(runner, [Running(2, spec, allowed=allowed)], 6, known=True) == [alone]


def test_options_do_what_they_say(runner):
    [masked] = generate(runner, [Running(1, MASKED, allowed=bits(17, 70, 255))], 8)
    assert {token for token, _ in masked} <= {17, 70, 255}
    [unmasked] = generate(runner, [Running(1, MASKED)], 8)
    assert len({token for token, _ in unmasked} - {17, 70, 255}) > 0
    strong = dataclasses.replace(GREEDY, bias_ids=(99,), bias_values=(100.0,))
    assert [token for token, _ in generate(runner, [Running(1, strong)], 3)[0]] == [99] * 3
    once = dataclasses.replace(strong, frequency_penalty=2.0, bias_values=(20.0,), presence_penalty=2.0)
    [tokens] = generate(runner, [Running(1, once)], 16)
    assert 1 < sum(token == 99 for token, _ in tokens) < 16


def test_a_sequence_that_was_preempted_goes_on(runner):
    """In another slot, its tokens so far as its prompt, its counts from its history."""
    [whole] = generate(runner, [Running(1, PENALISED)], 10)
    tokens = PROMPT + tuple(token for token, _ in whole[:4])
    generate(runner, [Running(3, BIASED)], 2)
    [rest] = generate(runner, [Running(3, PENALISED, tokens=tokens)], 6)
    assert rest == whole[4:]


def test_masks_come_late_and_stay(runner):
    one, other = Running(1, MASKED), Running(2, MASKED)
    rows, states = [one.prompt_row(), other.prompt_row()], (one.state, other.state)
    result = launch(runner, rows, begin=states, masks={1: bits(40), 2: bits(50)})
    assert result.tokens.tolist() == [40, 50]
    one.tokens += (40,)
    other.tokens += (50,)
    result = launch(runner, [one.next_row(), other.next_row()], SMALL, masks={2: bits(51)})
    assert result.tokens.tolist() == [40, 51]


def test_a_step_that_waits_for_masks_is_given_them_before_anything_else(runner):
    one = Running(1, MASKED)
    batch = Batch(7, LARGE, Rows([one.prompt_row()]), begin=(one.state,), tables=TABLES, masked=True)
    pending = runner.launch(batch)
    with pytest.raises(RuntimeError, match="before it was given its masks"):
        pending.wait()
    with pytest.raises(RuntimeError, match="step 7 was launched before step 7 was given its masks"):
        runner.launch(batch)
    with pytest.raises(ValueError, match="step 8 waits for no masks"):
        runner.masks(8, {})
    runner.masks(7, {1: (bits(40),)})
    assert pending.wait().tokens.tolist() == [40]
    with pytest.raises(ValueError, match="step 7 waits for no masks"):
        runner.masks(7, {1: (bits(40),)})


def test_drafts_that_the_device_should_have_are_refused(runner):
    with pytest.raises(ValueError, match="at most the 0 drafts that the device keeps"):
        launch(runner, [Row(1, None, 3, 0, Sample(last=3))])


def test_drafts_are_sampled_as_if_they_were_the_sequences_own(runner):
    for spec in (GREEDY, RANDOM, REPORTED):
        [expected] = generate(runner, [Running(1, spec)], 5)
        tokens = [token for token, _ in expected]
        one = Running(2, spec)
        launch(runner, [one.prompt_row()], begin=(one.state,))
        drafted = row(2, tokens[:4], len(PROMPT), Sample(last=4))
        beside = Running(3, RANDOM)
        result = launch(runner, [beside.prompt_row(), drafted], begin=(beside.state,))
        assert result.tokens.tolist()[1:] == tokens[1:]
        follows = Row(2, None, 1, len(PROMPT) + 4, Sample())
        again = launch(runner, [follows], SMALL).tokens
        assert again == generate(runner, [Running(4, spec)], 6)[0][5][0]


def test_more_kept_places_than_the_small_program_has(runner):
    """Sixteen places of one row: the program of 16 rows; the first three of them alone: the program of 8."""
    tokens = tuple(range(20, 36))
    scored = row(1, tokens, 0, Score((*tokens[1:],), sample=True))
    whole = launch(runner, [scored], begin=(SlotState(1, REPORTED),))
    few = launch(runner, [scored._replace(want=Score(tokens[1:4], sample=False))])
    assert len(whole.logprobs) == 16
    assert len(few.logprobs) == 3
    for one, other in zip(whole.logprobs[:3], few.logprobs, strict=True):
        assert (one.logprob, one.rank, one.top_ids.tolist()) == (other.logprob, other.rank, other.top_ids.tolist())


def test_results_come_in_the_order_of_rows(runner):
    """Rows of every kind, in an order in which nothing is sampled."""
    specs = {1: GREEDY, 2: REPORTED, 3: RANDOM, 4: GREEDY}
    alone = {slot: generate(runner, [Running(slot, spec)], 1)[0][0] for slot, spec in specs.items()}
    begin = tuple(SlotState(slot, spec) for slot, spec in specs.items())
    pooled = launch(runner, [row(4, PROMPT, 0, Pool())], begin=begin)
    rows = [
        row(4, PROMPT, 0, Pool()),
        row(1, PROMPT, 0, Sample()),
        row(3, PROMPT, 0, Score(PROMPT[1:], sample=True)),
        row(2, PROMPT, 0, Sample()),
    ]
    result = launch(runner, rows)
    assert [result.tokens[place] for place in (1, 7, 8)] == [alone[slot][0] for slot in (1, 3, 2)]
    assert [report is not None for report in result.logprobs] == [False, False, *[True] * 5, False, True]
    assert result.logprobs[8].logprob == alone[2][1][0]
    [embedding] = result.pooled
    assert embedding.dtype == np.float32
    assert embedding.shape == (32,)
    np.testing.assert_array_equal(embedding, pooled.pooled[0])
    assert pooled.logprobs == (None,)


def test_a_prompt_in_pieces(runner):
    [expected] = generate(runner, [Running(1, GREEDY)], 2)
    pieces = [row(2, PROMPT[:2], 0, None), row(2, PROMPT[2:5], 2, None)]
    nothing = launch(runner, pieces, begin=(SlotState(2, GREEDY),))
    assert nothing == StepResult(nothing.tokens, ())
    assert nothing.tokens.shape == (0,)
    assert launch(runner, [row(2, PROMPT[5:], 5, Sample())], SMALL).tokens.tolist() == [expected[0][0]]


def test_a_sequence_goes_on_in_pages_that_were_on_the_host(runner):
    """They leave with the step that gives them to another, and come back to other pages as a move of the step that needs them."""
    one = Running(1, RANDOM)
    [expected] = generate(runner, [one], 6)
    launch(runner, [one.prompt_row()], begin=(one.state,))
    leave = tuple(ToHost(0, page, block) for block, page in enumerate(pages_of(1)[0].tolist()))
    other = Running(2, GREEDY)
    tables = tuple((slot, pages_of(1)) for slot in (2, 3))
    batch = Batch(1, LARGE, Rows([other.prompt_row()]), begin=(other.state,), tables=tables, moves=leave)
    runner.launch(batch)
    back = tuple(FromHost(0, block, page) for block, page in enumerate(pages_of(4)[0].tolist()))
    one.tokens += (expected[0][0],)
    pending = runner.launch(Batch(2, SMALL, Rows([one.next_row()]), tables=((1, pages_of(4)),), moves=back))
    assert pending.wait().tokens.tolist() == [expected[1][0]]


def test_steps_may_be_launched_before_the_one_before_is_read(runner):
    [expected] = generate(runner, [Running(1, RANDOM)], 4)
    one = Running(2, RANDOM)
    pending = [runner.launch(Batch(1, LARGE, Rows([one.prompt_row()]), begin=(one.state,), tables=TABLES))]
    for number in range(2, 5):
        one.tokens += (0,)  # not known yet
        pending.append(runner.launch(Batch(number, SMALL, Rows([one.next_row()]))))
    assert [step.wait().tokens.tolist() for step in pending] == [[token] for token, _ in expected]


def test_a_steady_step_is_one_transfer_and_one_call_of_each_program(runner, monkeypatch):
    sequences = [Running(slot, spec) for slot, spec in enumerate((PENALISED, MASKED, REPORTED, BIASED), 1)]
    launch(runner, [one.prompt_row() for one in sequences], begin=tuple(one.state for one in sequences))
    puts, calls = [], []
    put, call = Launcher.put, Launcher.call
    monkeypatch.setattr(Launcher, "put", lambda self, array: puts.append(array.shape) or put(self, array))
    monkeypatch.setattr(Launcher, "call", lambda self, name, *args: calls.append(name) or call(self, name, *args))
    launch(runner, [one.next_row() for one in sequences], SMALL)
    assert puts == [(runner.space.layout(SMALL).size,)]
    forward = [f"forward {SMALL} {part}" for part in ("begin", "layer 0", "layer 0", "end")]
    assert calls == [*forward, "logits 8", "sample full"]


def test_warming_up_times_every_bucket_and_leaves_nothing_behind(runner):
    before = generate(runner, [Running(1, PENALISED)], 4)
    seconds = runner.prepare()
    assert set(seconds) == set(runner.space.grid.buckets)
    assert all(value > 0 for value in seconds.values())
    assert not np.asarray(runner.slots.settings[0]).any()
    assert not np.asarray(runner.slots.last_token[0])
    assert generate(runner, [Running(1, PENALISED)], 4) == before


def copied(runner: ModelRunner) -> ModelRunner:
    """The same model beside the others' runner, which its tests may ruin."""
    parameters, state = jax.tree.map(lambda array: array.copy(), (runner.parameters, (runner.cache, runner.slots)))
    return ModelRunner(runner.space, runner.executables, HeldWeights(runner.space, parameters), *state)


def test_memory_that_is_released_comes_back_with_the_same_weights_and_compiles_nothing(runner):
    expected = generate(runner, [Running(1, PENALISED)], 4)
    other = copied(runner)
    held = jax.tree.leaves((other.parameters, other.cache, other.slots))
    allocate_state(runner.space)
    with CompileCounter() as counter:
        other.release()
        assert all(array.is_deleted() for array in held)
        with pytest.raises(RuntimeError, match="restore it before the next step"):
            launch(other, [Running(1, GREEDY).prompt_row()])
        with pytest.raises(RuntimeError, match="on the host"):
            other.write(Weights({}))
        other.release()
        other.restore_weights()
        with pytest.raises(RuntimeError, match="restore it before the next step"):
            launch(other, [Running(1, GREEDY).prompt_row()])
        with pytest.raises(RuntimeError, match="keeps no weights"):
            other.restore_weights()
        other.restore_state()
        with pytest.raises(RuntimeError, match="was not released"):
            other.restore_state()
        assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves((other.cache, other.slots)))
        with pytest.raises(ValueError, match="beyond its pages"):
            other.launch(Batch(1, LARGE, Rows([Running(1, GREEDY).prompt_row()]), begin=(Running(1, GREEDY).state,)))
        for before, after in zip(runner.parameters, other.parameters, strict=True):
            assert after.sharding == before.sharding
            np.testing.assert_array_equal(np.asarray(before), np.asarray(after))
        assert generate(other, [Running(1, PENALISED)], 4) == expected
    assert counter.count == 0
    other.close()


def test_weights_are_replaced_by_path_for_the_steps_that_follow(runner):
    expected = generate(runner, [Running(1, GREEDY)], 4)
    other = copied(runner)
    path = next(path for path in runner.space.parameters if "embed" in path)
    number = list(runner.space.parameters).index(path)
    before = np.asarray(other.parameters[number])
    other.write(Weights({path: before[::-1]}))
    np.testing.assert_array_equal(np.asarray(other.parameters[number]), before[::-1])
    assert generate(other, [Running(1, GREEDY)], 4) != expected
    with pytest.raises(ValueError, match=r"elsewhere of shape .* not among the model's"):
        other.write(Weights({path: before, "elsewhere": before}))
    with pytest.raises(ValueError, match="the parameter is of shape"):
        other.write(Weights({path: before[1:]}))
    np.testing.assert_array_equal(np.asarray(other.parameters[number]), before[::-1])
    other.write(Weights({path: before}))
    assert generate(other, [Running(1, GREEDY)], 4) == expected
    other.close()


def test_weights_that_were_dropped_are_written_all_or_none(runner):
    expected = generate(runner, [Running(1, GREEDY)], 4)
    other = copied(runner)
    values = {path: np.asarray(array) for path, array in zip(runner.space.parameters, runner.parameters, strict=True)}
    allocate_state(runner.space)
    with CompileCounter() as counter:
        other.release()
        other.release(drop_weights=True)
        with pytest.raises(ValueError, match=r"were dropped, and .* not among those to write"):
            other.write(Weights(dict(list(values.items())[1:])))
        other.write(Weights(values))
        other.restore_state()
        assert generate(other, [Running(1, GREEDY)], 4) == expected
    assert counter.count == 0
    other.close()


def test_arrays_that_lie_right_are_used_as_they_are_and_stay_their_owners(runner):
    other = copied(runner)
    own = dict(zip(runner.space.parameters, other.parameters, strict=True))
    given = {path: array.copy() for path, array in own.items()}
    other.write(Weights(given))
    assert all(array.is_deleted() for array in own.values())
    for path, array in zip(given, other.parameters, strict=True):
        assert shares_memory(array, given[path])
    other.write(Weights({path: np.asarray(array) for path, array in given.items()}))
    assert not any(array.is_deleted() for array in given.values())
    other.write(Weights(given))
    other.close()
    assert not any(array.is_deleted() for array in given.values())


def test_closing_frees_the_device(runner):
    other = copied(runner)
    held = jax.tree.leaves((other.parameters, other.cache, other.slots))
    other.close()
    assert all(array.is_deleted() for array in held)
    other.close()
    assert not runner.cache.pages[0].is_deleted()
