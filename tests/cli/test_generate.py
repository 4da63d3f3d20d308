"""`jaxengine generate` for somebody who watches."""

from __future__ import annotations

import sys

import pytest

from jaxengine.cli import main
from tests.bench.test_commands import SMALL  # whose programs are kept when these tests begin


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
