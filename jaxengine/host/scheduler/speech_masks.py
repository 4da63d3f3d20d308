"""Which tokens may follow a text of a sound, by the rules of its times."""

from __future__ import annotations

from jaxengine.contract.arrays import Bitmask, Int32s
from jaxengine.contract.speech import SpeechRules
from jaxengine.host.scheduler.bits import cleared, mask_of


class SpeechMasks:
    """The rules of one request as masks over `vocab_size` ids."""

    def __init__(self, rules: SpeechRules, vocab_size: int) -> None:
        self._rules, self._vocab_size = rules, vocab_size
        everything = mask_of(range(vocab_size), vocab_size)
        self._allowed = cleared(everything, rules.suppressed)
        self._first = cleared(self._allowed, rules.not_first)
        if rules.first_time is not None:
            self._no_time = cleared(self._allowed, range(rules.first_time, vocab_size))
            self._no_text = cleared(self._allowed, range(min(rules.end, rules.first_time)))
            last = vocab_size if rules.latest_first is None else rules.first_time + rules.latest_first + 1
            self._first &= mask_of(range(rules.first_time, min(last, vocab_size)), vocab_size)

    def allowed(self, output: Int32s) -> Bitmask:
        """What may follow `output`."""
        if not len(output):
            return self._first
        first_time = self._rules.first_time
        if first_time is None:
            return self._allowed
        times = output[output >= first_time]
        ended = bool(output[-1] >= first_time)
        begun = ended and (len(output) < 2 or bool(output[-2] >= first_time))
        mask = self._allowed
        if begun:
            mask = self._no_time
        elif ended:
            mask = self._no_text
        if not len(times):
            return mask
        earliest = int(times[-1]) + (0 if ended and not begun else 1)
        return cleared(mask, range(first_time, earliest))
