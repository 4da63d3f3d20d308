"""The runner of the first of several hosts: the others do the same to theirs, in the same order."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from buckets import Bucket
from jaxengine.contract.arrays import Masks
from jaxengine.contract.batch import Batch, Move, StepResult
from jaxengine.contract.media import Encoding
from jaxengine.contract.runner import Pending, Runner, UnfitWeightsError, Weights
from jaxengine.contract.tiers import Ended, Tiers, TierTraffic, Transfer
from jaxengine.errors import EngineDeadError, JaxEngineError


class Followers(Protocol):
    """The other hosts, as `LeadingGroup` has them."""

    def tell(self, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> int: ...

    def finish(self, number: int, *, failed: bool) -> None: ...

    def compare(self, step: int, result: int) -> None: ...

    def blame(self) -> EngineDeadError | None: ...

    def close(self) -> None: ...


def digest_of(result: StepResult) -> int:
    """A number that is the same where the tokens of a step are."""
    return zlib.crc32(result.tokens.tobytes())


class LeadingRunner:
    """A `Runner` that tells the `followers` each call before it makes it on its `own` runner, and waits for none of them."""

    def __init__(self, own: Runner, followers: Followers) -> None:
        self._own = own
        self._followers = followers

    @property
    def max_in_flight(self) -> int:
        return self._own.max_in_flight

    @property
    def tiers(self) -> Tiers:
        return _LeadingTiers(self._own.tiers, self._lead)

    def prepare(self) -> Mapping[Bucket, float]:
        return self._lead("prepare", self._own.prepare)  # type: ignore[no-any-return]

    def launch(self, batch: Batch) -> Pending:
        return _LeadingPending(batch.number, self._lead("launch", self._own.launch, batch), self._followers)

    def move(self, moves: Sequence[Move]) -> None:
        self._lead("move", self._own.move, moves)

    def encode(self, encoding: Encoding) -> None:
        self._lead("encode", self._own.encode, encoding)

    def masks(self, number: int, masks: Mapping[int, Masks]) -> None:
        self._lead("masks", self._own.masks, number, masks)

    def write(self, what: Weights) -> None:
        """As in `Runner`. Weights of a checkpoint are read by every host; others are sent, from this host's memory.

        Raises:
            UnfitWeightsError: they do not.
        """
        try:
            sent = Weights({} if what.of else what.values, what.of)
            pickle.dumps(sent, 5)
        except Exception as error:
            raise UnfitWeightsError(
                f"weights that other hosts are to have too must be arrays of NumPy, or a directory that all hosts see: {error}"
            ) from error
        self._lead("write", lambda _: self._own.write(what), sent)

    def load_adapter(self, path: str) -> str:
        """As in `Runner`; every host reads the directory."""
        return self._lead("load_adapter", self._own.load_adapter, path)  # type: ignore[no-any-return]

    def place_adapter(self, digest: str, slot: int) -> None:
        self._lead("place_adapter", self._own.place_adapter, digest, slot)

    def drop_adapter(self, digest: str) -> None:
        self._lead("drop_adapter", self._own.drop_adapter, digest)

    def release(self, *, drop_weights: bool = False) -> None:
        self._lead("release", self._own.release, drop_weights=drop_weights)

    def restore_weights(self) -> None:
        self._lead("restore_weights", self._own.restore_weights)

    def restore_state(self) -> None:
        self._lead("restore_state", self._own.restore_state)

    def close(self) -> None:
        """Free the devices of all hosts, and let the others end."""
        self._followers.close()
        self._own.close()

    def _lead(self, name: str, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        number = self._followers.tell(name, arguments, keywords)
        try:
            result = call(*arguments, **keywords)
        except Exception as error:
            self._followers.finish(number, failed=True)
            refused = isinstance(error, (ValueError, JaxEngineError))  # which has nothing to do with other hosts
            if not refused and (lost := self._followers.blame()) is not None:
                raise lost from error
            raise
        self._followers.finish(number, failed=False)
        return result


@dataclass(frozen=True)
class _LeadingPending:
    """A step under way on all hosts; this one's result is the answer."""

    number: int
    own: Pending
    followers: Followers

    def wait(self) -> StepResult:
        try:
            result = self.own.wait()
        except Exception as error:
            if (lost := self.followers.blame()) is not None:
                raise lost from error
            raise
        self.followers.compare(self.number, digest_of(result))
        return result


@dataclass(frozen=True)
class _LeadingTiers:
    """The host's memory behind the pages, of which each host keeps its part."""

    own: Tiers
    lead: Callable[..., Any]

    def begin(self, transfers: Sequence[Transfer]) -> None:
        if transfers:
            self.lead("tiers.begin", self.own.begin, transfers)

    def ended(self) -> Sequence[Ended]:
        return self.own.ended()

    def wait(self, timeout_s: float) -> None:
        self.own.wait(timeout_s)

    @property
    def block_s(self) -> Sequence[float]:
        return self.own.block_s

    @property
    def traffic(self) -> dict[str, TierTraffic]:
        return self.own.traffic
