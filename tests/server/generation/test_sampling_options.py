"""Every row of the table of sampling options is a field of every endpoint that generates."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.contract.batch import SamplingSpec
from jaxengine.contract.sampling_options import OPTIONS, Option
from tests.server.rig import Live

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Tom", "max_tokens": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2, "model": "tiny"},
}


@pytest.fixture
def begun(server: Live, monkeypatch: pytest.MonkeyPatch) -> list[SamplingSpec]:
    """How the sequences that begin from now on are sampled."""
    specs: list[SamplingSpec] = []
    launch = server.runner.launch

    def watched(batch: Any) -> Any:
        specs.extend(state.spec for state in batch.begin)
        return launch(batch)

    monkeypatch.setattr(server.runner, "launch", watched)
    return specs


@pytest.mark.parametrize("path", BODIES)
def test_options_reach_the_device(server: Live, begun: list[SamplingSpec], path: str) -> None:
    given = {option.name: 3 if option.kind is int else 0.25 for option in OPTIONS}
    answer = server.post(path, **BODIES[path], **given)
    assert answer.status_code == 200, answer.text
    [spec] = begun
    assert {option.name: getattr(spec, option.name) for option in OPTIONS} == given


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_value_out_of_range_is_refused_by_name(server: Live, option: Option, path: str) -> None:
    answer = server.post(path, **BODIES[path], **{option.name: option.low - 2})
    assert answer.status_code == 400
    assert option.name in answer.text
    assert str(option.low - 2) in answer.text
