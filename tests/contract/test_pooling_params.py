"""Pooling parameters: vLLM's names, and a refusal by name of what is not built."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jaxengine.contract.pooling_params import TASKS, PoolingParams, check_task
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.options.names import reasons


def test_nothing_has_to_be_said() -> None:
    params = PoolingParams()
    assert [getattr(params, field.name) for field in dataclasses.fields(params)] == [None] * 9
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.dimensions = 3  # type: ignore[misc]


def test_the_model_decides_unless_one_of_the_names_does() -> None:
    assert PoolingParams().activates is None
    for name in ("normalize", "use_activation", "activation", "softmax"):
        for value in (True, False):
            assert PoolingParams(**{name: value}).activates is value
    assert PoolingParams(normalize=False, use_activation=False).activates is False


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dimensions": 0}, "dimensions must be an integer of at least 1, got 0"),
        ({"dimensions": 2.0}, "got 2.0"),
        ({"dimensions": True}, "got True"),
        ({"normalize": 1}, "normalize must be True or False, got 1"),
        ({"use_activation": "yes"}, "use_activation must be True or False"),
        ({"normalize": True, "use_activation": False}, "are the same setting; give one"),
        ({"truncate_prompt_tokens": 0}, "at least 1, or -1, got 0"),
        ({"truncate_prompt_tokens": -2}, "at least 1, or -1, got -2"),
        ({"task": "dance"}, "unknown pooling task 'dance'; there are embed, embedding, classify"),
        ({"task": 3}, "unknown pooling task 3"),
        ({"step_tag_id": -1}, "step_tag_id must be an integer of at least 0"),
        ({"returned_token_ids": [0, True]}, "returned_token_ids must be an integer"),
        ({"dimension": 3}, "unknown pooling option 'dimension'. Did you mean 'dimensions'"),
    ],
)
def test_wrong_values_say_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        PoolingParams(**fields)
    assert caught.value.param in fields


@pytest.mark.parametrize("name", reasons("pooling"))
def test_fields_that_are_not_built_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        PoolingParams(**{name: None})


def test_tasks_by_name() -> None:
    for task in (None, *TASKS):
        check_task(task)
    for task in reasons("pooling_tasks"):
        with pytest.raises(UnsupportedError, match=task):
            check_task(task)
