"""Where the time of a step goes, from traces."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from jaxengine.bench.account import OTHER, edges, shared
from jaxengine.cli import main
from tests.tools.pages import read_page

PARTS = {"step": {"a": "matmul", "b": "rotate", "loop": "write_kv"}}


def event(name: str, start: float, duration: float, program: str = "step") -> Any:
    stats = [("hlo_op", name), ("hlo_module", program)]
    return SimpleNamespace(start_ns=start, duration_ns=duration, stats=stats)


def seconds(*lines: list[Any]) -> dict[str, float]:
    found = shared(edge for line in lines for edge in edges(line, PARTS))
    return {part: round(value * 1e9, 6) for part, value in found.items()}


def test_an_instruction_has_its_own_time_without_that_of_those_it_calls():
    assert seconds([event("loop", 0, 10), event("a", 2, 3), event("b", 6, 4)]) == {
        "write_kv": 3,
        "matmul": 3,
        "rotate": 4,
    }


def test_a_moment_is_shared_by_those_who_are_busy():
    assert seconds([event("a", 0, 10)], [event("a", 0, 4), event("b", 4, 2)]) == {"matmul": 9, "rotate": 1}


def test_instructions_that_are_in_no_op_are_the_rest():
    assert seconds([event("unknown", 0, 1), event("a", 1, 1, "another program")]) == {OTHER: 2}
    host = SimpleNamespace(start_ns=0, duration_ns=5, stats=[])
    assert seconds([host]) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_engines")
def test_the_parts_of_a_real_step_are_its_time(tmp_path, capsys):
    small = ["--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--max-model-len", "128", "--num-pages", "33"]
    file = tmp_path / "r.json"
    words = ["bench", "account", *small, "--batch-size", "3", "--input-len", "20", "--output-len", "4"]
    assert main([*words, "--output-json", str(file), "--html", str(tmp_path / "r.html")]) == 0
    page = read_page(tmp_path / "r.html")
    assert page.charts == 2
    assert page.row("step") == ["step", "prefill", "decode"]
    prefill, decode = json.loads(file.read_text())["steps"]
    assert [prefill["step"], decode["step"]] == ["prefill", "decode"]
    for row in (prefill, decode):
        parts = {name.removesuffix(" ms"): value for name, value in row.items() if name.endswith(" ms")}
        assert {"matmul", "paged_attention", "write_kv", "sampling", "host"} <= set(parts)
        # the host has what is left; a step that is under way in the end may come on top
        assert 0.98 * row["traced_ms"] - 0.2 < sum(parts.values()) < 2 * row["traced_ms"] + 0.2
        assert 0 < row["share"] < 1
    assert "paged_attention ms" in capsys.readouterr().out


@pytest.mark.rare
@pytest.mark.usefixtures("quick_engines")
def test_drafts_that_were_right_are_told_by_position(tmp_path):
    small = ["--max-num-seqs", "2", "--max-num-batched-tokens", "32", "--max-model-len", "128", "--num-pages", "33"]
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    file = tmp_path / "r.json"
    words = ["bench", "account", *small, "--speculative-config", json.dumps(drafts), "--output-json", str(file)]
    assert main([*words, "--batch-size", "2", "--input-len", "20", "--output-len", "30"]) == 0
    prefill, decode = json.loads(file.read_text())["steps"]
    assert "accepted_a_step" not in prefill
    first, second = decode["accepted_a_step"]
    assert 2 >= first >= second >= 0
    assert first > 0
