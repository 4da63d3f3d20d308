"""Random operations on a ledger: hypothesis for short counterexamples, long seeded walks for rare states."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.host.kvcache.walk import Walk, prompt

KEEPS = (
    ((None,),),
    ((None,),),
    ((None, 6),),
    ((3,),),
    ((None, 4, 9),),
    ((1, 5),),
    ((None,), (6,)),
    ((None, 6), (None, 4, 4)),
)
"""What the groups of each pool of a ledger keep; most models have one that keeps everything."""


class LedgerMachine(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    @initialize(num_pages=st.integers(2, 14), keeps=st.sampled_from(KEEPS))
    def start(self, num_pages, keeps):
        self.walk = Walk(num_pages, keeps)

    @rule(
        target=sequences,
        length=st.integers(1, 14),
        odd=st.none() | st.integers(0, 13),
        salt=st.sampled_from([None, ""]),
        max_cached=st.sampled_from([None, 5]),
        admit=st.booleans(),
    )
    def add(self, length, odd, salt, max_cached, admit):
        sequence_id = self.walk.add(prompt(length, odd), salt=salt, max_cached=max_cached)
        if admit and self.walk.finish_prompt(sequence_id):
            self.walk.step(order=random.Random(0))
        return sequence_id

    @rule(sequence_id=sequences, more=st.integers(1, 6), token=st.integers(0, 1))
    def grow(self, sequence_id, more, token):
        self.walk.grow(sequence_id, more, token=token)

    @rule(order=st.integers(0, 5))
    def step(self, order):
        self.walk.step(order=random.Random(order))

    @rule(sequence_id=consumes(sequences))
    def release(self, sequence_id):
        self.walk.release(sequence_id)

    @rule()
    def reset(self):
        self.walk.reset()

    @invariant()
    def accounts_are_right(self):
        self.walk.check()


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(60))
def test_long_walk(seed):
    rng = random.Random(seed)
    keeps = KEEPS[seed % len(KEEPS)]
    walk = Walk(rng.randint(6, 16), keeps)
    for _ in range(400):
        operate(walk, rng)
        walk.check()
    for sequence_id in list(walk.live):
        walk.release(sequence_id)
    walk.reset()
    assert walk.ledger.pools.usage == 0
    assert walk.ledger.pools.num_available == tuple(pool.num_pages - 1 for pool in walk.pools)
    assert walk.ledger.stats.hits > 0, "a walk that shares nothing tests little"


def operate(walk, rng):
    names = ["add"] if not walk.live else ["add", "grow", "grow", "grow", "release", "step", "step", "reset"]
    sequence_id = rng.choice(list(walk.live)) if walk.live else None
    match rng.choice(names):
        case "add" if len(walk.live) < 6:
            tokens = prompt(rng.randint(1, 14), rng.choice([None, None, rng.randrange(14)]))
            max_cached = rng.choice([None, None, 5])
            walk.finish_prompt(walk.add(tokens, salt=rng.choice([None, None, ""]), max_cached=max_cached))
        case "grow":
            if not walk.grow(sequence_id, rng.choice([1, 1, 1, 2, 5]), token=rng.randint(0, 1)):
                walk.release(rng.choice(list(walk.live)))
        case "release":
            walk.release(sequence_id)
        case "step":
            walk.step(order=rng)
        case "reset":
            walk.reset()
