"""The one table of sampling options: the numbers by which the tokens of a request are chosen.

Whatever knows such options reads it: requests and their checks, HTTP bodies, the command line, generation_config.json, the slots
of the device and its programs. To add one takes a row here, its arithmetic in `device/sampling`, and its test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from enum import IntFlag
from typing import Any

from jaxengine.contract.checks import check_integer, check_real, integers, reals

GREEDY_BELOW = 1e-5
"""A temperature below this takes the most likely token."""


class Needs(IntFlag):
    """What a row needs beside its most likely token. A sampling program looks at nothing else of its slot."""

    RANDOM = 1
    MASK = 2
    BIAS = 4
    PENALTIES = 8
    LOGPROBS = 16


NOTHING = Needs(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A row of the table.

    `default`, an int or a float, is what a request has that does not say. `about` is for help texts. `low` and `high` are the
    least and the largest value, `low_open` leaves `low` itself out. `off` is another way to write the default. A greedy request
    has `greedy` instead of what it says, unless that is None. `needs` is what a row with another value than the default needs.

    On the device an option is a column of `Slots.settings`, in the order of the table: an int32, or the bits of a float32.
    """

    default: float
    about: str
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    off: float | None = None
    greedy: float | None = None
    needs: Needs = NOTHING
    name: str = ""

    @property
    def kind(self) -> type[int] | type[float]:
        """`int` or `float`."""
        return type(self.default)

    @property
    def allowed(self) -> str:
        """The range, in words."""
        return integers(self.low, self.high) if self.kind is int else reals(self.low, self.high, low_open=self.low_open)

    def check(self, value: object) -> None:
        """Accept a value of a request.

        Raises:
            RequestError: it is of another type or out of range.
        """
        if self.kind is int:
            check_integer(self.name, value, low=self.low, high=self.high)
        else:
            check_real(self.name, value, low=self.low, high=self.high, low_open=self.low_open)


def _option(default: float, about: str, **rest: Any) -> Any:
    return field(default=default, metadata={"option": Option(default=default, about=about, **rest)})


@dataclass(kw_only=True)
class SamplingOptions:
    """The table, in the order in which options are applied, and one value for each of its rows."""

    repetition_penalty: float = _option(
        1.0, "above 1 makes tokens of prompt and output less likely", low=0.0, low_open=True, needs=Needs.PENALTIES
    )
    frequency_penalty: float = _option(
        0.0, "taken off the logit of a token, as often as the output has it", low=-2.0, high=2.0, needs=Needs.PENALTIES
    )
    presence_penalty: float = _option(
        0.0, "taken off the logit of each token that the output has", low=-2.0, high=2.0, needs=Needs.PENALTIES
    )
    temperature: float = _option(
        1.0, "divides the logits; below 1e-5 the most likely token is taken", low=0.0, high=2.0, greedy=0.0
    )
    top_n_sigma: float = _option(
        0.0,
        "keep logits within so many standard deviations of the largest; 0 or -1: all",
        low=0.0,
        off=-1.0,
        greedy=0.0,
    )
    min_p: float = _option(
        0.0, "keep tokens at least so likely, beside the most likely one; 0: all", low=0.0, high=1.0, greedy=0.0
    )
    top_k: int = _option(0, "keep so many of the most likely tokens; 0 or -1: all", low=-1, off=-1, greedy=0)
    top_p: float = _option(
        1.0, "keep the most likely tokens that together reach it; 1: all", low=0.0, high=1.0, low_open=True, greedy=1.0
    )
    xtc_probability: float = _option(
        0.0,
        "how often the tokens above xtc_threshold, but the least likely of them, are left out",
        low=0.0,
        high=1.0,
        greedy=0.0,
    )
    xtc_threshold: float = _option(
        0.1, "the probability from which on xtc_probability leaves tokens out", low=0.0, high=0.5, greedy=0.1
    )


OPTIONS = tuple(replace(row.metadata["option"], name=row.name) for row in fields(SamplingOptions))
"""The rows, in order."""
