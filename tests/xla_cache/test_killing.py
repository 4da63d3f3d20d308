"""SIGKILL at any time leaves a store and a bundle whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def kill(mode: str, place: Path, rounds: int) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.xla_cache.killing", mode, str(place), str(rounds), "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.parametrize("mode", ["build", "start"])
def test_fifty_kills(tmp_path, mode):
    report = kill(mode, tmp_path, 50)
    assert report["wrong"] == []
    assert report["killed"] >= 30


@pytest.mark.slow
def test_a_few_kills(tmp_path):
    report = kill("start", tmp_path, 4)
    assert report["wrong"] == []
    assert report["killed"] >= 1
