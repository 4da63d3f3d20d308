"""`jaxengine report`: what is in it is measured, and none of it tells where and by whom it was run."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.bench.report import run as report_run
from jaxengine.bench.report.page import report_page
from jaxengine.bench.report.parts import PROMPTS
from jaxengine.bench.report.privacy import cleaned, own_names
from jaxengine.cli import main
from pallas_kernels.testing.conformance import SUITES, Trial, judge, trials
from tests.tools.pages import read_page


def assert_private(text: str) -> None:
    """No path, address, name of host or user, or text of a prompt."""
    assert not re.search(r"(?:^|[\s\"'=(])(?:~?/|[A-Za-z]:\\)[\w.-]+[/\\]?", text), "a path"
    assert not re.search(r"\w+://", text), "an address"
    assert not re.search(r"\b\d+\.\d+\.\d+\.\d+\b", text.replace("0.0.42.1", "")), "an address"
    for name in (str(Path.home()), os.getcwd(), socket.gethostname(), sys.prefix, *PROMPTS[:5]):
        assert name not in text
    assert not re.search(rf"(?<![\w]){re.escape(getpass.getuser())}(?![\w])", text)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("no such file: /home/ada/models/x.safetensors", "no such file: PATH"),
        ("at C:\\Users\\ada\\x.py line 3", "at PATH line 3"),
        ("~/.cache/huggingface is full", "PATH is full"),
        ("asked https://host.example/v1?key=1 twice", "asked PATH twice"),
        ("10.1.2.3 refused", "ADDRESS refused"),
        ("libtpu 0.0.42.1", "libtpu 0.0.42.1"),
        ("12.5 tokens/s of float32", "12.5 tokens/s of float32"),
        ("inverse_root 1/2", "inverse_root 1/2"),
    ],
)
def test_texts_lose_what_tells_where(said: str, kept: str) -> None:
    assert cleaned({"a": [said]}) == {"a": [kept]}


def test_texts_lose_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "rack7.example.org")
    assert own_names() == {"ada", "rack7.example.org", "rack7"}
    assert cleaned("Ada on rack7 saw adaptive rack70") == "NAME on NAME saw adaptive rack70"
    assert len(cleaned("x" * 5000)) == 300


def test_the_devices_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--quick", "--parts", "devices", "-o", str(tmp_path / "r")]) == 0
    text = (tmp_path / "r.json").read_text()
    found = json.loads(text)["devices"]
    assert found["platform"] == "cpu"
    assert found["num_devices"] >= 1
    assert_private(text)
    assert_private(
        re.sub(r"<style>.*?</style>", "", (tmp_path / "r.html").read_text(), flags=re.DOTALL).replace("</", "<")
    )
    read_page(tmp_path / "r.html")


def test_a_crash_is_told_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import json, os, sys\n"
        "for n in range(int(sys.argv[-1]), 4):\n"
        "    print(json.dumps({'begins': {'number': n, 'op': 'o', 'backend': 'b', 'case': str(n)}}), flush=True)\n"
        "    if n == 1:\n        print('bad /etc/passwd', file=sys.stderr, flush=True)\n        os._exit(134)\n"
        "    print(json.dumps({'number': n, 'op': 'o', 'backend': 'b', 'case': str(n), 'outcome': 'agrees'}), flush=True)\n"
    )
    real = report_run.subprocess.run

    def run(command: Any, **options: Any) -> Any:
        return real([sys.executable, "-c", script, *command[3:]], **options)

    monkeypatch.setattr(report_run.subprocess, "run", run)
    found = report_run.report(["kernels"], quick=True)
    rows = found["kernels"]
    assert [(row["case"], row["outcome"]) for row in rows] == [
        ("0", "agrees"),
        ("1", "crashes"),
        ("2", "agrees"),
        ("3", "agrees"),
    ]
    assert rows[1]["crash"] == "status 134: bad PATH"
    assert report_run.counts(rows) == {"o b": {"agrees": 3, "crashes": 1}}
    report_page(found).html()


def test_a_case_is_judged_by_what_the_definition_says() -> None:
    """Right, a little off, and wrong: a backend's result is compared, not assumed."""
    suite = next(suite for suite in SUITES if suite.op.name == "matmul")
    case = suite.cases[0]
    assert judge(Trial(suite, "xla", case), "cpu").outcome == "agrees"
    assert judge(Trial(suite, "native", case), "cpu").outcome == "refused", "without its library"

    def spoiled(by: float) -> Any:
        def call(case: Any, platform: str) -> Any:
            made = suite.call(case, platform)

            def run(*arrays: Any, backend: str) -> Any:
                result = made.run(*arrays, backend=backend)
                return result if backend == "reference" else result.at[0, 0].add(by)

            return dataclasses.replace(made, run=run)

        return dataclasses.replace(suite, call=call)

    assert judge(Trial(spoiled(1e-6), "xla", case), "cpu").outcome == "agrees"
    wrong = judge(Trial(spoiled(1e-2), "xla", case), "cpu")
    assert wrong.outcome == "differs"
    assert wrong.off is not None
    assert wrong.off > 10
    assert judge(Trial(spoiled(jnp.nan), "xla", case), "cpu").off == np.inf


def test_every_op_and_backend_of_a_platform_is_tried() -> None:
    for platform, name in (("tpu", "tpu"), ("gpu", "gpu"), ("cpu", "native")):
        tried = {(trial.suite.op.name, trial.backend) for trial in trials(platform, most=1)}
        assert ("paged_attention", name) in tried
        assert {op for op, _ in tried} == {suite.op.name for suite in SUITES}
        assert not [backend for _, backend in tried if backend[:3] in {"tpu", "gpu"} - {platform}]
    assert len(list(trials("tpu", most=2))) < len(list(trials("tpu"))) / 4


@pytest.mark.rare
def test_a_whole_report(tmp_path: Path) -> None:
    assert main(["report", "--quick", "-o", str(tmp_path / "r")]) == 0
    text = (tmp_path / "r.json").read_text()
    found = json.loads(text)
    assert_private(text)
    assert {row["outcome"] for row in found["kernels"]} <= {"agrees", "refused"}
    assert found["parity"]["tokens_until_the_first_that_differs"] == found["parity"]["tokens"]
    assert found["parity"]["requests_with_the_same_tokens_alone_and_together"] == found["parity"]["requests"]
    assert {row["step"] for row in found["speed"]} == {"prefill", "decode"}
    assert found["starts"]["avg_warm_startup_time"] > 0
    assert read_page(tmp_path / "r.html").charts == 3
