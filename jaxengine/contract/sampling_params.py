"""What a user may ask of sampling: vLLM's fields, defaults and rules, validated when constructed."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from jaxengine.contract.checks import check_boolean, check_integer, check_names, check_real, is_finite
from jaxengine.contract.sampling_options import GREEDY_BELOW, OPTIONS, SamplingOptions
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.contract.transfer import NAME as TRANSFER_PARAMS
from jaxengine.contract.transfer import TransferParams, read_transfer_params
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.options.names import reasons

__all__ = ["BeamSearchParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]

WHAT, GROUPS = "sampling option", ("sampling", "beam_search")
MIN_TEMPERATURE = 0.01
MAX_SEQUENCES_PER_REQUEST = 16_384
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 128


class RequestOutputKind(Enum):
    """Which outputs a stream of results carries."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(kw_only=True)
class SamplingParams(SamplingOptions):
    """How the tokens of one request are chosen and when it ends.

    Names, defaults and limits are vLLM's. The numbers by which tokens are chosen are those of `SamplingOptions`. A field may be
    assigned, which checks everything again; requests that were made keep what they began with. `seed` makes a request
    repeatable whatever runs beside it. `max_tokens=None` generates to the end of the context. `thinking_token_budget` ends a
    block of thoughts after so many tokens, those of it that the prompt has among them, -1 is no limit; only a server with a
    `reasoning_parser` knows such blocks. `extra_args` may have `kv_transfer_params`, for engines that share prompts.

    Raises:
        RequestError: a value out of range; the message names the field, the value and what is allowed.
        UnsupportedError: a field that is known and not implemented.
    """

    n: int = 1
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    thinking_token_budget: int | None = None
    extra_args: Mapping[str, Any] | None = None
    structured_outputs: StructuredOutputsParams | None = None

    if not TYPE_CHECKING:  # a type checker knows the names from the fields

        def __new__(cls, **fields: Any) -> SamplingParams:
            check_names(cls, fields, WHAT, *GROUPS)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        self._normalise()
        self._settle_options()
        self._check_flags()
        self._check_counts()
        self._check_stops()
        self._check_bias()
        self._check_tokens()
        self._check_extra()

    @classmethod
    def from_optional(cls, **fields: Any) -> SamplingParams:
        """Build from loosely typed fields: `None` means the default, an unknown name raises with the nearest known one."""
        own = {field.name for field in dataclasses.fields(cls)}
        dropped = {name for name in fields if name not in own and not fields[name] and name in reasons("sampling")}
        nullable = {"seed", "max_tokens", "logprobs", "prompt_logprobs"}
        given = {name: value for name, value in fields.items() if name not in dropped}
        check_names(cls, given, WHAT, *GROUPS)
        return cls(**{name: value for name, value in given.items() if value is not None or name in nullable})

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def transfer(self) -> TransferParams | None:
        """What `kv_transfer_params` ask for."""
        return read_transfer_params((self.extra_args or {}).get(TRANSFER_PARAMS))

    def __setattr__(self, name: str, value: object) -> None:
        if "structured_outputs" not in self.__dict__:  # the last field: until it is there the object is being made
            self._set(name, value)
            return
        for field, checked in vars(self.replace(**{name: value})).items():
            self._set(field, checked)

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def clone(self) -> SamplingParams:
        """A copy, as vLLM's callers make one before they change it."""
        return self.replace()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # without checking anything

    def _normalise(self) -> None:
        self._set("stop", (self.stop,) if isinstance(self.stop, str) else _listed("stop", self.stop, "strings"))
        self._set("stop_token_ids", _listed("stop_token_ids", self.stop_token_ids, "token ids"))
        self._set("bad_words", _listed("bad_words", self.bad_words, "strings"))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _listed("allowed_token_ids", self.allowed_token_ids, "token ids"))
        if isinstance(self.structured_outputs, Mapping):
            self._set("structured_outputs", StructuredOutputsParams(**self.structured_outputs))
        if self.seed == -1:
            self._set("seed", None)
        if self.thinking_token_budget == -1 and not isinstance(self.thinking_token_budget, float):
            self._set("thinking_token_budget", None)

    def _settle_options(self) -> None:
        """Each option checked, and in one form; what a greedy request says of others has no effect, and may be anything."""
        if is_finite(self.temperature) and GREEDY_BELOW <= self.temperature < MIN_TEMPERATURE:
            warnings.warn(
                f"temperature {self.temperature} is raised to {MIN_TEMPERATURE}: smaller values overflow; 0 is greedy",
                stacklevel=4,
            )
            self._set("temperature", MIN_TEMPERATURE)
        greedy = is_finite(self.temperature) and self.temperature >= 0 and self.greedy
        for option in OPTIONS:
            if greedy and option.greedy is not None:
                self._set(option.name, option.greedy)
            elif option.off is not None and getattr(self, option.name) == option.off:
                self._set(option.name, option.default)
            option.check(getattr(self, option.name))

    def _check_flags(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(field.default, bool):
                check_boolean(field.name, getattr(self, field.name))
        if not isinstance(self.output_kind, RequestOutputKind):
            kinds = ", ".join(str(kind) for kind in RequestOutputKind)
            raise RequestError.of("output_kind", f"must be one of {kinds}, got {self.output_kind!r}")
        if self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise RequestError.of(
                "structured_outputs", f"must be StructuredOutputsParams, got {type(self.structured_outputs).__name__}"
            )

    def _check_counts(self) -> None:
        check_integer("n", self.n, low=1, high=MAX_SEQUENCES_PER_REQUEST)
        if self.greedy and self.n > 1:
            raise RequestError.of("n", f"must be 1 with greedy sampling (temperature 0), got n={self.n}")
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, low=1)
        check_integer("min_tokens", self.min_tokens, low=0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError.of("min_tokens", f"({self.min_tokens}) must be at most max_tokens ({self.max_tokens})")
        if self.seed is not None:
            check_integer("seed", self.seed, low=-(2**63), high=2**63 - 1)
        for name in ("logprobs", "prompt_logprobs", "thinking_token_budget"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), low=-1)

    def _check_stops(self) -> None:
        assert isinstance(self.stop, tuple)
        if not all(isinstance(text, str) and text for text in self.stop):
            raise RequestError.of("stop", f"must hold non-empty strings, got {self.stop!r}")
        if self.stop and not self.detokenize:
            raise RequestError.of(
                "stop", f"strings need detokenize=True, got stop={self.stop!r}; use stop_token_ids instead"
            )
        for token in self.stop_token_ids or ():
            check_integer("stop_token_ids", token, low=0)

    def _check_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError.of("logit_bias", f"must map token ids to numbers, got {self.logit_bias!r}")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise RequestError.of(
                "logit_bias", f"has {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS} are allowed"
            )
        # JSON has no integer keys, so digits will do. Python makes no number of very many.
        tokens = [
            int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key for key in self.logit_bias
        ]
        if wrong := [key for key in tokens if not isinstance(key, int) or isinstance(key, bool) or key < 0]:
            shown = ", ".join(repr(key)[:40] for key in wrong[:5])
            raise RequestError.of("logit_bias", f"keys must be integers of at least 0, got {shown}")
        bias: dict[int, float] = {}
        for token, amount in zip(tokens, self.logit_bias.values(), strict=True):
            if not is_finite(amount) and amount not in (math.inf, -math.inf):
                raise RequestError.of(
                    "logit_bias", f"of token {token} must be a number (cut to [-100, 100]), got {amount!r}"
                )
            bias[token] = min(100.0, max(-100.0, float(amount)))
        self._set("logit_bias", bias)

    def _check_tokens(self) -> None:
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise RequestError.of("allowed_token_ids", "must not be empty; leave it out to allow all")
            for token in self.allowed_token_ids:
                check_integer("allowed_token_ids", token, low=0)
        assert isinstance(self.bad_words, tuple)
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise RequestError.of(
                "bad_words", f"has {len(self.bad_words)} entries; at most {MAX_BAD_WORDS} are allowed"
            )
        if not all(isinstance(word, str) and word for word in self.bad_words):
            raise RequestError.of("bad_words", f"must hold non-empty strings, got {self.bad_words!r}")

    def _check_extra(self) -> None:
        if self.extra_args is None:
            return
        if not isinstance(self.extra_args, Mapping):
            raise RequestError.of("extra_args", f"must be a mapping, got {self.extra_args!r}")
        for name, value in self.extra_args.items():
            if name != TRANSFER_PARAMS and value is not None:
                raise UnsupportedError(
                    f"extra_args may have {TRANSFER_PARAMS}, got {name!r}: there are no custom processors to take it",
                    param="extra_args",
                )
        _ = self.transfer


@dataclass(frozen=True)
class BeamSearchParams:
    """How `LLM.beam_search` widens, ranks and ends the beams of a prompt: vLLM's fields and defaults.

    Each step keeps the `beam_width` most likely of all continuations, for at most `max_tokens` steps. Beams are ranked by
    `cumulative_logprob / length ** length_penalty`, the prompt's length included, so that larger penalties favour longer texts.

    Raises:
        RequestError: a value out of range; the message names the field, the value and what is allowed.
    """

    beam_width: int
    max_tokens: int
    _: KW_ONLY
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    allowed_token_ids: Sequence[int] | None = None

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **fields: Any) -> BeamSearchParams:
            check_names(cls, fields, WHAT, *GROUPS)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        check_integer("beam_width", self.beam_width, low=1)
        check_integer("max_tokens", self.max_tokens, low=1)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            check_boolean(name, getattr(self, name))
        check_real("temperature", self.temperature, low=0.0, high=2.0)
        check_real("length_penalty", self.length_penalty)
        # The rules for allowed tokens are those of a request.
        object.__setattr__(
            self, "allowed_token_ids", SamplingParams(allowed_token_ids=self.allowed_token_ids).allowed_token_ids
        )


def _listed(name: str, value: object, content: str) -> tuple[Any, ...]:
    """A list as a tuple, None as an empty one. A string is no list, though Python would take it for one."""
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise RequestError(f"{name} must be a list of {content}, got {value!r}", param=name)
    return tuple(value)
