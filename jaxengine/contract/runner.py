"""What the host half may ask of the device half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from buckets import Bucket
from jaxengine.contract.arrays import Masks
from jaxengine.contract.batch import Batch, Move, StepResult

if TYPE_CHECKING:
    from jaxengine.contract.media import Encoding
    from jaxengine.contract.tiers import Tiers


class Pending(Protocol):
    """A step that is under way on the device."""

    def wait(self) -> StepResult:
        """Block until the step is done and copy its result to the host: the only such copy of the loop."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory of the file system that all hosts of an engine see; None is that of the start."""

    directory: str | None


@dataclass(frozen=True, slots=True)
class Weights:
    """Other numbers for some of a model's parameters, by their paths: arrays of the host or of devices, or what makes them.

    Where they are all `of` a checkpoint, other hosts can read them there themselves.
    """

    values: Mapping[str, Any]
    of: Checkpoint | None = None


class UnfitWeightsError(ValueError):
    """Weights that cannot be written: the model has no such parameters, they have other shapes, or some are missing."""


class Runner(Protocol):
    """The device half, and all that a start, a loop or an operator does to it. Steps run in the order in which they are launched.

    Whoever does the same things in the same order to runners on several hosts has one model on all of them.
    """

    @property
    def max_in_flight(self) -> int:
        """Steps that may be launched and not waited for: 2 keep a device busy that computes one after the other."""
        ...

    def prepare(self) -> Mapping[Bucket, float]:
        """Do what is left to do before the first step: run every program once, find out scales that have to be measured.

        Returns:
            The seconds that a step of each bucket took, where that was measured.
        """
        ...

    def launch(self, batch: Batch) -> Pending:
        """Launch moves of pages, the slots that begin, the forward pass and the sampling of one step; return without waiting.

        If `batch.masked` the sampling is launched by `masks`, which the loop calls before it launches or waits for another step.
        """
        ...

    def encode(self, encoding: Encoding) -> None:
        """Launch an encoder, whose embeddings go to the pool for steps that are launched later; return without waiting."""
        ...

    @property
    def tiers(self) -> Tiers:
        """What lies behind the device's pages."""
        ...

    def move(self, moves: Sequence[Move]) -> None:
        """Launch moves of pages where no step follows that would bring them; return without waiting."""
        ...

    def masks(self, number: int, masks: Mapping[int, Masks]) -> None:
        """Bring step `number`, the last that was launched, the masks it has waited for, by slot; they stay until others come.

        A slot has one for each place of its row that is sampled, of which the later ones hold if the drafts before are right.

        To make them is work for the host while the device computes the forward pass.
        """
        ...

    def write(self, what: Weights) -> None:
        """Replace weights, for the steps that are launched from now on. Of weights that were dropped all have to be written.

        Raises:
            UnfitWeightsError: nothing was changed.
        """
        ...

    def load_adapter(self, path: str) -> str:
        """Read the adapter in a directory, check it against the model and keep it in the host's memory.

        Another thread than the loop's may do so, beside steps.

        Returns:
            The digest of its files, by which it is known from then on.

        Raises:
            CheckpointError: its files are missing, damaged, or of another model; nothing is kept.
            UnsupportedError: something of it is not built.
            RequestError: its rank is larger than the slots'.
        """
        ...

    def place_adapter(self, digest: str, slot: int) -> None:
        """Write an adapter that was loaded to an adapter slot, for steps that are launched from now on; return without waiting.

        Raises:
            KeyError: none of this digest is kept.
        """
        ...

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter in the host's memory; slots that hold it stay as they are.

        Raises:
            KeyError: none of this digest is kept.
        """
        ...

    def release(self, *, drop_weights: bool = False) -> None:
        """Give the device's memory back while nothing runs; cache and slots are lost, those of adapters too.

        Weights come back with `restore_weights`, or where they are dropped with `write`.
        """
        ...

    def restore_weights(self) -> None:
        """Take the memory of the weights again: they are the same."""
        ...

    def restore_state(self) -> None:
        """Take the memory of cache and slots again: they are empty. Nothing compiles."""
        ...

    def close(self) -> None:
        """Free the device. Closing twice is fine."""
        ...
