"""Which of the running sequences a step is of, where a model's stages work on several steps at once."""

from __future__ import annotations

from collections.abc import Sequence as Items

from jaxengine.host.scheduler.sequence import Sequence

MOST_PENDING = 2
"""Steps in flight that sample for one sequence: that which the device computes, and the next."""


def take_turns(running: Items[Sequence], count: int, *, number: int) -> Items[Sequence]:
    """The sequences of the step of this number, in the order of `running`, where `count` steps are computed at once.

    A sequence's next token needs its last one, which comes out of the last stage: were it in every step, stages would wait for
    each other. So a step has one part in `count` of the sequences that have something to compute: those that were in none for
    longest, and only where there are no others those that are in a step which is computed beside this one. (vLLM has a scheduler
    for each stage instead, and a sequence stays with one.) What is known of a prompt waits for nothing. Without stages it is all.
    """
    if count == 1:
        return running
    ready = [sequence for sequence in running if sequence.pending < MOST_PENDING and not sequence.waits]
    free = [sequence for sequence in ready if not sequence.pending or sequence.last_step <= number - count]
    quota = -(-len(ready) // count)
    chosen = set(map(id, sorted(free or ready, key=lambda sequence: sequence.last_step)[:quota]))
    return [sequence for sequence in ready if id(sequence) in chosen]
