"""The weight table against names: a bijection up to what is ignored, and every disagreement in one message."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.device.weights.matching import Assignment, Write, match
from jaxengine.device.weights.rules import Ignore, Rule, part, transpose
from jaxengine.errors import CheckpointError

CUT_Q, CUT_K = part(0, 2), part(1, 2)
RULES = (
    Rule("embed.table", "model.embed.weight"),
    Rule("layers.*.q", "model.layers.*.qk.weight", CUT_Q),
    Rule("layers.*.k", "model.layers.*.qk.weight", CUT_K),
    Rule("layers.*.up.*", "model.layers.*.experts.*.up", transpose),
    Rule("layers.*.down", "model.layers.*.experts.{expert}.down", transpose),
    Rule("layers.*.down_sum", "model.layers.*.experts.{expert}.down", CUT_Q),
    Rule("head.table", "lm_head.weight", absent_if="tied"),
    Ignore("model.layers.*.inv_freq", "computed"),
)
UNTIED, TIED = SimpleNamespace(tied=False), SimpleNamespace(tied=True)


def names(layers: int, *, experts: int = 0, tied: bool = False) -> tuple[list[str], list[str]]:
    """Tensors and parameters of a model of `RULES`."""
    tensors = ["model.embed.weight"] + ["lm_head.weight"] * (not tied)
    parameters = ["embed.table"] + ["head.table"] * (not tied)
    for layer in range(layers):
        tensors += [f"model.layers.{layer}.qk.weight", f"model.layers.{layer}.inv_freq"]
        tensors += [
            f"model.layers.{layer}.experts.{expert}.{name}" for expert in range(experts) for name in ("up", "down")
        ]
        parameters += [f"layers.{layer}.q", f"layers.{layer}.k"]
        parameters += [f"layers.{layer}.up.{expert}" for expert in range(experts)]
        parameters += [f"layers.{layer}.down", f"layers.{layer}.down_sum"] if experts else []
    return tensors, parameters


def test_a_tensor_of_several_rules_is_one_assignment() -> None:
    tensors, parameters = names(2)
    assert match(tensors, RULES, parameters, UNTIED) == (
        Assignment(("model.embed.weight",), (Write("embed.table", None),)),
        Assignment(("lm_head.weight",), (Write("head.table", None),)),
        Assignment(("model.layers.0.qk.weight",), (Write("layers.0.q", CUT_Q), Write("layers.0.k", CUT_K))),
        Assignment(("model.layers.1.qk.weight",), (Write("layers.1.q", CUT_Q), Write("layers.1.k", CUT_K))),
    )


@given(layers=st.integers(0, 12), experts=st.integers(0, 3), tied=st.booleans(), data=st.data())
def test_every_parameter_is_written_exactly_once(layers: int, experts: int, tied: bool, data: st.DataObject) -> None:
    tensors, parameters = names(layers, experts=experts, tied=tied)
    shuffled = data.draw(st.permutations(tensors))
    assignments = match(shuffled, RULES, data.draw(st.permutations(parameters)), TIED if tied else UNTIED)
    written = [write.target for assignment in assignments for write in assignment.writes]
    assert sorted(written) == sorted(parameters)
    read = [name for assignment in assignments for name in assignment.sources]
    assert sorted(read) == sorted(name for name in tensors if "inv_freq" not in name)
    firsts = [shuffled.index(assignment.sources[0]) for assignment in assignments]
    assert firsts == sorted(firsts)  # as the files have them
    for assignment in assignments:  # numbers go where they came from
        for place, source in enumerate(assignment.sources):
            numbers = [token for token in source.split(".") if token.isdigit()]
            if assignment.stacked:
                assert numbers.pop() == str(place)
            for write in assignment.writes:
                assert [token for token in write.target.split(".") if token.isdigit()] == numbers


@given(layers=st.integers(1, 6), data=st.data())
def test_anything_removed_or_added_is_named(layers: int, data: st.DataObject) -> None:
    tensors, parameters = names(layers)
    ignored = [name for name in tensors if "inv_freq" in name]
    lost = data.draw(st.sets(st.sampled_from([name for name in tensors if name not in ignored])))
    added = data.draw(
        st.sets(st.sampled_from(["model.extra", "vision.tower", "model.layers.0.qk.bias", "xmodel.embed.weight"]))
    )
    surplus = data.draw(st.sets(st.sampled_from(["layers.q", "other.table"])))
    remaining = [name for name in tensors if name not in lost] + sorted(added)
    if not (lost or added or surplus):
        return
    with pytest.raises(CheckpointError) as caught:
        match(remaining, RULES, [*parameters, *surplus], UNTIED)
    message = str(caught.value)
    for name in added | surplus:
        assert name in message
    unfilled = sum(2 if "qk" in name else 1 for name in lost) + len(surplus)
    assert f"parameters that no tensor of the checkpoint fills ({unfilled})" in message or not unfilled
    assert f"tensors that no rule maps ({len(added)})" in message or not added


def test_layers_are_condensed_and_the_expected_tensor_is_named() -> None:
    tensors, parameters = names(30)
    remaining = [name for name in tensors if not name.endswith(("7.qk.weight", "8.qk.weight", "lm_head.weight"))]
    with pytest.raises(CheckpointError) as caught:
        match([*remaining, "model.layers.3.bias"], RULES, parameters, UNTIED)
    assert str(caught.value).splitlines() == [
        "the checkpoint does not match the model:",
        "  the checkpoint has tensors that no rule maps (1):",
        "    model.layers.3.bias",
        "  parameters that no tensor of the checkpoint fills (13):",
        "    head.table: expected lm_head.weight",
        "    layers.{7-8,17-18,27-28}.k: expected model.layers.*.qk.weight",
        "    layers.{7-8,17-18,27-28}.q: expected model.layers.*.qk.weight",
    ]


def test_tensors_of_layers_that_the_model_has_not() -> None:
    tensors, _ = names(4)
    _, parameters = names(2)
    with pytest.raises(CheckpointError, match=r"has not \(4\):\n    model.layers.\{2-3\}.qk.weight: for layers.\*.q\n"):
        match(tensors, RULES, parameters, UNTIED)


def test_numbered_tensors_are_one_parameter_in_the_order_of_their_numbers() -> None:
    tensors = [f"layers.0.experts.{expert}.down" for expert in (10, 2, 0, *range(3, 10), 1)]
    (assignment,) = match(
        tensors, (Rule("layers.*.down", "layers.*.experts.{expert}.down"),), ["layers.0.down"], UNTIED
    )
    assert assignment.sources == tuple(f"layers.0.experts.{expert}.down" for expert in range(11))
    assert assignment.stacked


def test_a_missing_number_is_named() -> None:
    tensors = [f"layers.3.experts.{expert}.down" for expert in (0, 1, 4)]
    with pytest.raises(CheckpointError) as caught:
        match(tensors, (Rule("layers.*.down", "layers.*.experts.{expert}.down"),), ["layers.3.down"], UNTIED)
    assert "parameters of whose tensors some are missing (2):" in str(caught.value)
    assert "layers.3.down: number 2 of layers.*.experts.{expert}.down" in str(caught.value)
    assert "layers.3.down: number 3 of layers.*.experts.{expert}.down" in str(caught.value)


def test_none_of_the_numbers() -> None:
    with pytest.raises(CheckpointError, match=r"layers.0.down: expected layers.0.experts.\{expert\}.down"):
        match([], (Rule("layers.*.down", "layers.*.experts.{expert}.down"),), ["layers.0.down"], UNTIED)


def test_two_rows_that_claim_one_tensor() -> None:
    rules = (Rule("x.*", "a.*.w"), Rule("y", "a.[b.]0.w"))
    with pytest.raises(CheckpointError, match=r"a.0.w: claimed by a.\*.w, a.\[b.\]0.w"):
        match(["a.0.w"], rules, ["x.0"], UNTIED)


def test_two_tensors_that_write_one_parameter() -> None:
    rules = (Rule("w", "[transformer.]w"),)
    with pytest.raises(
        CheckpointError, match=r"several tensors write one parameter \(1\):\n    w: from transformer.w, w"
    ):
        match(["transformer.w", "w"], rules, ["w"], UNTIED)


@pytest.mark.parametrize("tensor", ["h.3.w", "transformer.h.3.w"])
def test_a_bracketed_part_may_be_missing(tensor: str) -> None:
    rules = (Rule("layers.*.w", "[transformer.]h.*.w"),)
    assert match([tensor], rules, ["layers.3.w"], UNTIED) == (Assignment((tensor,), (Write("layers.3.w", None),)),)


@pytest.mark.parametrize(
    "name", ["model.layers.x.inv_freq", "model.layers.01.inv_freq", "modelXlayers.1.inv_freq", "model.layers..inv_freq"]
)
def test_a_star_is_a_number_and_a_dot_is_a_dot(name: str) -> None:
    tensors, parameters = names(1)
    with pytest.raises(CheckpointError, match="no rule maps"):
        match([*tensors, name], RULES, parameters, UNTIED)


def test_tied_tensors_that_are_stored_all_the_same_are_left_unread(caplog: pytest.LogCaptureFixture) -> None:
    tensors, _ = names(1)
    _, parameters = names(1, tied=True)
    with caplog.at_level(logging.WARNING, logger="jaxengine"):
        assignments = match(tensors, RULES, parameters, TIED)
    assert ("lm_head.weight",) not in [assignment.sources for assignment in assignments]
    assert caplog.messages == ["left unread, since the config says tied: lm_head.weight"]


def test_a_rule_with_unequal_stars_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="as many"):
        match(["a.1"], (Rule("b", "a.*"),), ["b"], UNTIED)


SPLIT = (Rule("layers.*.up", "h.*.[mlp.]up_v", transpose, also=("h.*.[mlp.]up_g",)), Rule("table", "wte"))


def test_a_parameter_may_be_made_of_several_tensors() -> None:
    """They are read together, and those of other layers apart."""
    tensors = ["h.0.mlp.up_g", "wte", "h.1.mlp.up_v", "h.1.mlp.up_g", "h.0.mlp.up_v"]
    assert match(tensors, SPLIT, ["layers.0.up", "layers.1.up", "table"], UNTIED) == (
        Assignment(("wte",), (Write("table", None),)),
        Assignment(("h.1.mlp.up_v", "h.1.mlp.up_g"), (Write("layers.1.up", transpose),)),
        Assignment(("h.0.mlp.up_v", "h.0.mlp.up_g"), (Write("layers.0.up", transpose),)),
    )


def test_each_of_several_tensors_must_be_there() -> None:
    parameters = ["layers.0.up", "layers.1.up", "table"]
    with pytest.raises(CheckpointError, match=r"some are missing \(1\):\n +layers.0.up: expected h.\*.\[mlp.\]up_g"):
        match(["h.0.up_v", "h.1.up_v", "h.1.up_g", "wte"], SPLIT, parameters, UNTIED)
    with pytest.raises(CheckpointError, match=r"no tensor of the checkpoint fills \(1\):\n +layers.0.up"):
        match(["h.0.up_g", "h.1.up_v", "h.1.up_g", "wte"], SPLIT, parameters, UNTIED)
