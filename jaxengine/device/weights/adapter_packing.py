"""What an adapter's file says of a checkpoint's modules, as slots hold it (`device/runtime/adapter_slots.py`).

An adapter changes a matrix by `b @ a`. What a rule of the weight table does to a matrix it does to its outputs alone, so the same
is done to `b`; a fused module's `a` goes to each of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxengine.device.layers.schemes import EMBEDDING, HEAD, is_weight
from jaxengine.device.weights.matching import filled, source_pattern
from jaxengine.device.weights.peft import LowRank, PeftAdapter
from jaxengine.device.weights.rules import Ignore, KvHeads, Rule
from jaxengine.errors import CheckpointError, ConfigError, RequestError, UnsupportedError

EXPERTS = "experts"
OF_VOCABULARY = {EMBEDDING: ("embed.looking",), HEAD: ("head.scoring", "embed.scoring")}
"""Where embedding and head have slots, one of these: they have their own where they are one table, too, as PEFT has it."""


def has_slots(rules: Iterable[Rule | Ignore], targets: Collection[str] | None) -> Callable[[str, bool], bool]:
    """Which matrices have slots, by the paths of their numbers, and whether they are those of experts.

    They are those of modules whose last name is one of `targets`; `experts` are all experts'. None: all matrices of layers but
    those of experts, which would take many times what the others do. `rules` are the family's.

    Raises:
        ConfigError: one of `targets` is no matrix that can have slots.
    """
    matrices = [rule for rule in rules if isinstance(rule, Rule) and _can_have_slots(rule)]
    known = {_last_name(rule) for rule in matrices} | {EXPERTS for rule in matrices if rule.stacked}
    if unknown := sorted({*(targets or ())} - known):
        raise ConfigError(
            f"lora_target_modules: {', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} no matrix of this model "
            f"beside which adapters can be: {', '.join(sorted(known))}"
        )
    patterns = [(source_pattern(rule.target), rule.stacked) for rule in matrices if _wanted(rule, targets)]
    return lambda path, experts: any(
        stacked == experts and pattern.fullmatch(path) is not None for pattern, stacked in patterns
    )


def _can_have_slots(rule: Rule) -> bool:
    """Whether it makes a matrix of a layer, the embedding or the head: not what a layer keeps otherwise."""
    return rule.target in OF_VOCABULARY or (is_weight(rule.target) and rule.target.startswith("layers."))


def _wanted(rule: Rule, targets: Collection[str] | None) -> bool:
    if targets is None:
        return not rule.stacked and rule.target not in OF_VOCABULARY
    return _last_name(rule) in targets or (rule.stacked and EXPERTS in targets)


def _last_name(rule: Rule) -> str:
    return rule.source.removesuffix(".weight").rpartition(".")[2].lstrip("]")  # what may be left out ends before it


@dataclass(frozen=True, kw_only=True)
class Packer:
    """Of one model: its family's `rules`, its `config`, and what one slot of `structs` (`ModelGraph.adapters`) holds.

    `by_rank` is `AdapterSpec.by_rank`. `base` gives the base model's tensor of a name, None where it has none or is unknown.
    """

    rules: Sequence[Rule | Ignore]
    config: KvHeads
    structs: Mapping[str, Any]
    by_rank: bool
    base: Callable[[str], NDArray[Any] | None] = lambda name: None

    def __call__(self, adapter: PeftAdapter) -> list[NDArray[Any]]:
        """One slot's part of each of the structs: zeros where the adapter trains nothing.

        Raises:
            CheckpointError: it is of another model.
            RequestError: its rank is larger than the slots'.
            UnsupportedError: it trains what has no slots.
        """
        values = {path: np.zeros(struct.shape[1:], struct.dtype) for path, struct in self.structs.items()}
        for name, tensor in adapter.saved.items():
            self._check_copy(name, tensor)
        for module, low_rank in adapter.modules.items():
            found = list(self._targets(module))
            if not found:
                raise CheckpointError(
                    f"the adapter trains {module}, and the model has no such module; is it of another model?"
                )
            for rule, path, expert in found:
                self._write(values, module, low_rank, rule, path, expert)
        return list(values.values())

    def _check_copy(self, name: str, tensor: NDArray[Any]) -> None:
        """Accept a whole tensor that says what the base model has, in whatever type: PEFT writes such beside what was trained."""
        base = self.base(name)
        if base is not None and base.shape == tensor.shape and (base.astype(tensor.dtype) == tensor).all():
            return
        raise UnsupportedError(
            f"the adapter brings the whole of {name}, {list(tensor.shape)} (modules_to_save), which is not known to be what its "
            "base model has, bit for bit; slots hold low-rank adapters: merge it into a checkpoint of its own"
        )

    def _targets(self, module: str) -> Iterator[tuple[Rule, str, int | None]]:
        """The rules that make parameters of a module, which these are, and which expert's."""
        for rule in self.rules:
            match = source_pattern(rule.source).fullmatch(f"{module}.weight") if isinstance(rule, Rule) else None
            if match is None or not isinstance(rule, Rule):
                continue
            index = match.groupdict().get("index")
            place = None if index is None else match.re.groupindex["index"]
            path = filled(rule.target, [number for group, number in enumerate(match.groups(), 1) if group != place])
            layers = None if rule.layers is None else getattr(self.config, rule.layers)
            if layers is None or int(match.group(1)) in layers:
                yield rule, path, None if index is None else int(index)

    def _write(
        self,
        values: Mapping[str, NDArray[Any]],
        module: str,
        low_rank: LowRank,
        rule: Rule,
        path: str,
        expert: int | None,
    ) -> None:
        """Write to `values` what an adapter does to one parameter."""
        places = OF_VOCABULARY.get(path, (f"{path.rpartition('.')[0]}.adapters",))
        slots = next((place for place in places if f"{place}.inward" in values), None)
        if slots is None:
            name = EXPERTS if rule.stacked else module.rpartition(".")[2]
            remedy = (
                f"name {name} in lora_target_modules"
                if _can_have_slots(rule)
                else "merge it into a checkpoint of its own"
            )
            raise UnsupportedError(f"the adapter trains {module}, which has no slots for adapters; {remedy}")
        inward, outward = values[f"{slots}.inward"], values[f"{slots}.outward"]
        if expert is not None:
            if expert >= len(inward):
                raise CheckpointError(f"the adapter trains {module}, and the model has {len(inward)} experts")
            inward, outward = inward[expert], outward[expert]
        if self.by_rank and not (rule.stacked or low_rank.embedding):
            inward = inward.T
        rank, inputs, (room, outputs) = low_rank.a.shape[0], low_rank.a.shape[1], outward.shape
        if rank > room:
            raise RequestError(
                f"the adapter has a rank of {rank} at {module}, and slots have {room}; start with max_lora_rank={rank} or more"
            )
        if inputs != inward.shape[0] or low_rank.b.shape[1] != rank:
            raise CheckpointError(
                f"the adapter has matrices {list(low_rank.a.shape)} and {list(low_rank.b.shape)} at {module}, and the "
                f"model's has {inward.shape[0]} inputs; is it of another model?"
            )
        scaled = low_rank.b.astype(np.float32) * np.float32(low_rank.scale)
        if not (np.isfinite(scaled).all() and np.isfinite(low_rank.a.astype(np.float32)).all()):
            raise CheckpointError(f"the adapter has numbers that are not finite at {module}")
        inward[:, :rank] = low_rank.a.T
        outward[:rank] = self._outputs(scaled, rule, module, outputs).T

    def _outputs(self, b: NDArray[Any], rule: Rule, module: str, outputs: int) -> NDArray[Any]:
        """`b` with the outputs that the parameter has, as a rule makes them of the checkpoint's matrix."""
        shape = outputs, b.shape[1]
        for matrix in (b, b.T):  # the matrix of a Conv1D lies the other way round
            with suppress(ValueError, IndexError):
                rows = rule.rows(matrix, self.config, shape)
                if rows.shape == shape:
                    return rows
        raise CheckpointError(
            f"the adapter has {b.shape[0]} outputs at {module}, of which the model does not make the {outputs} of "
            f"{rule.target}; is it of another model?"
        )
