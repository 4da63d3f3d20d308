"""A form of a server's own keeps what was asked, is checked like it, and is no option of users."""

from __future__ import annotations

import pickle

import pytest

from jaxengine.contract.answer_form import AnswerForm, Thinking
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import RequestError


def test_what_was_asked_is_kept_with_what_stands_around_it() -> None:
    asked = StructuredOutputsParams(json={"type": "object"}, whitespace_pattern=" ")
    form = AnswerForm.of(AnswerForm.of(asked, instead="start: /a/"), thinking=Thinking("<t>", "</t>", opened=True))
    assert (form.json, form.whitespace_pattern, form.kind) == (asked.json, " ", "json")
    assert (form.instead, form.thinking) == ("start: /a/", Thinking("<t>", "</t>", opened=True))
    assert pickle.loads(pickle.dumps(form)) == form
    assert SamplingParams(structured_outputs=form).structured_outputs is form


def test_it_needs_a_constraint_as_well() -> None:
    with pytest.raises(RequestError, match="exactly one"):
        AnswerForm(instead="start: /a/")


@pytest.mark.parametrize("name", ["thinking", "instead", "markers", "triggered"])
def test_users_have_no_such_options(name: str) -> None:
    with pytest.raises(RequestError, match="unknown structured output option"):
        StructuredOutputsParams(**{"regex": "a", name: None})
