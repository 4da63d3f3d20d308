"""A file of requests becomes a file of answers, in its order, whatever is wrong with some of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from jaxengine.cli.batch_run import check_files, run_batch
from jaxengine.errors import ConfigError, EngineDeadError
from jaxengine.server.options import ServerConfig
from tests.fakes import FakePending, FakeRunner
from tests.fronts import make_engine

HI = [{"role": "user", "content": "Hi"}]


def line(custom_id: Any, url: str = "/v1/completions", method: str = "POST", **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body})


def run(tmp_path: Path, lines: list[str], **front: Any) -> tuple[int, list[dict[str, Any]]]:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    check_files(source, target)
    engine = make_engine(**front)
    try:
        failed = asyncio.run(run_batch(engine.front, ServerConfig.from_options(), source, target))
    finally:
        engine.close()
    return failed, [json.loads(text) for text in target.read_text().splitlines()]


def test_every_line_is_answered_in_its_place(tmp_path: Path) -> None:
    lines = [line(f"r{number}", prompt="Tom", max_tokens=1 + number % 7, ignore_eos=True) for number in range(40)]
    failed, answers = run(
        tmp_path, [*lines, "", line("chat", "/v1/chat/completions", messages=HI, max_tokens=3)], max_num_seqs=2
    )
    assert failed == 0
    assert [answer["custom_id"] for answer in answers] == [*(f"r{number}" for number in range(40)), "chat"]
    for number, answer in enumerate(answers[:-1]):
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["body"]["usage"]["completion_tokens"] == 1 + number % 7
    assert answers[-1]["response"]["body"]["object"] == "chat.completion"
    assert len({answer["id"] for answer in answers}) == 41


def test_embeddings_are_numbers(tmp_path: Path) -> None:
    _, [answer] = run(tmp_path, [line("e", "/v1/embeddings", input="Tom")])
    assert all(isinstance(number, float) for number in answer["response"]["body"]["data"][0]["embedding"])


@pytest.mark.parametrize(
    ("text", "custom_id", "message"),
    [
        ("{", None, "not valid JSON"),
        ("[]", None, "a line must be an object"),
        (line(3, prompt="a"), 3, "custom_id, a text"),
        (line("a", method="GET", prompt="a"), "a", "method must be POST"),
        (line("a", "/v1/models"), "a", "url must be one of /v1/chat/completions"),
        (line("a", prompt="a", stream=True), "a", "cannot be streamed"),
        (line("a", prompt="a", max_tokens="many"), "a", "max_tokens"),
        (line("a", prompt="a", temperature=9), "a", "temperature must be"),
        (line("a", "/v1/chat/completions"), "a", "messages"),
        (
            json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions"}),
            "a",
            "JSON object|Input should be",
        ),
    ],
)
def test_a_line_that_is_wrong_fails_alone(tmp_path: Path, text: str, custom_id: Any, message: str) -> None:
    failed, [wrong, right] = run(tmp_path, [text, line("right", prompt="Tom", max_tokens=2)])
    assert failed == 1
    assert wrong["custom_id"] == custom_id
    assert (wrong["response"]["status_code"], wrong["response"]["body"]) == (400, None)
    assert any(part in wrong["error"]["error"]["message"] for part in message.split("|"))
    assert right["error"] is None


class FailingRunner(FakeRunner):
    """Fails in its third step."""

    steps = 0

    def launch(self, batch: Any) -> FakePending:
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("the device is gone")
        return super().launch(batch)


def test_an_engine_that_fails_ends_the_batch(tmp_path: Path) -> None:
    with pytest.raises(EngineDeadError):
        run(tmp_path, [line("a", prompt="Tom", max_tokens=9, ignore_eos=True)] * 3, runner=FailingRunner)
    assert (tmp_path / "out.jsonl").read_text() == ""


def test_files_are_checked_before_anything_is_started(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    with pytest.raises(ConfigError, match="there is no file"):
        check_files(source, tmp_path / "out.jsonl")
    source.touch()
    check_files(source, tmp_path / "out.jsonl")
    for target in (source, tmp_path / "none" / "out.jsonl"):
        with pytest.raises(ConfigError, match="cannot write"):
            check_files(source, target)
    with pytest.raises(ConfigError, match="is an address"):
        check_files(Path("https://example.org/in.jsonl"), source)
