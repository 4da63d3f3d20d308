"""`jaxengine generate` for somebody who watches."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from jaxengine.cli import main
from jaxengine.cli.generate import shapes_of_one
from tests.bench.test_commands import SMALL  # whose programs are kept when these tests begin


@pytest.mark.slow
@pytest.mark.usefixtures("quick_engines")
def test_generate_streams_to_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["generate", "Once upon", "--max-tokens", "8", "--quiet", "--temperature", "0", *SMALL]
    assert main(words) == 0
    whole = capsys.readouterr().out
    pieces: list[str] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write = sys.stdout.write
    monkeypatch.setattr(sys.stdout, "write", lambda text: pieces.append(text) or write(text))
    assert main(words) == 0
    assert "".join(pieces) == whole
    assert len(pieces) > 5, "in pieces, as they come"


def test_a_short_prompt_alone_has_one_shape_or_two() -> None:
    assert shapes_of_one("Once upon a time", {"max_num_seqs": 1}) == {
        "bucket_planner": "explicit",
        "buckets": ("1x1",),
        "max_num_batched_tokens": 1,
    }
    assert shapes_of_one("ö" * 32, {"max_num_seqs": 1})["buckets"] == ("1x1",)
    assert shapes_of_one("ö" * 33, {"max_num_seqs": 1})["buckets"] == ("1x1", "1x128")
    assert shapes_of_one("a" * 256, {"max_num_seqs": 1})["buckets"] == ("1x1", "1x256")
    assert shapes_of_one("ö" * 256, {"max_num_seqs": 1})["max_num_batched_tokens"] == 512


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("a" * 600, {}),
        ("a", {"max_num_seqs": 4}),
        ("a", {"max_num_batched_tokens": 64}),
        ("a", {"buckets": ("1x8",)}),
        ("a", {"deterministic": True}),
        ("a", {"bundle": "here"}),
        ("a", {"model": "google/gemma-3-4b-it"}),
    ],
)
def test_a_long_prompt_and_somebody_who_decides_on_shapes_have_others(prompt: str, options: dict[str, Any]) -> None:
    assert shapes_of_one(prompt, {"max_num_seqs": 1} | options) == {}
