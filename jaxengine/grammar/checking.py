"""The parent's side of `checker`: asks it about grammars, and kills it when an answer takes too long."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from jaxengine.errors import JaxEngineError, RequestError
from jaxengine.grammar.source import PARAM

START_TIMEOUT_S = 60.0


class CheckerError(JaxEngineError):
    """The process cannot be started."""


class GrammarChecker:
    """One checker process, started when first needed and again after it was killed. Thread-safe; one grammar at a time.

    Args:
        tokenizer: tokenizer.json as text.
        vocab_size: ids that the model has.
        end_ids: ids that end a sequence.
        timeout_s: how long the check of one grammar may take.
    """

    def __init__(self, tokenizer: str, *, vocab_size: int, end_ids: tuple[int, ...], timeout_s: float) -> None:
        self._hello = {"tokenizer": tokenizer, "vocab_size": vocab_size, "end_ids": list(end_ids)}
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._special = frozenset[int]()

    def start(self) -> frozenset[int]:
        """Start the process now, so that the first grammar need not wait for it; the ids of tokens that are no text.

        Raises:
            RequestError: llguidance cannot use the tokenizer.
            CheckerError: it does not come up.
        """
        with self._lock:
            self._ensure_started()
            return self._special

    def check(self, grammar: str) -> str | None:
        """What is wrong with a grammar, None when it can be used.

        Raises:
            RequestError: llguidance cannot use the tokenizer.
            CheckerError: the process cannot be started.
        """
        with self._lock:
            self._ensure_started()
            try:
                error: str | None = self._ask(grammar, self._timeout_s)["error"]
                return error
            except TimeoutError:
                return f"it takes longer than {self._timeout_s:g} s to compile (grammar_timeout)"
            except OSError:
                return "it is nested too deeply or needs too much memory to compile"

    def close(self) -> None:
        """End the process. Closing twice is fine."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _ensure_started(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        # A session of its own: Ctrl-C in a terminal is the parent's to handle, whose end closes the pipe.
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("checker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        try:
            answer = self._ask(self._hello, START_TIMEOUT_S)
        except OSError:
            raise CheckerError("the grammar checker process does not start; there is no structured output") from None
        if answer["error"] is not None:
            self.close()
            raise RequestError(
                f"structured output does not work with this model's tokenizer: {answer['error']}", param=PARAM
            )
        self._special = frozenset(answer["special"])

    def _ask(self, question: object, timeout_s: float) -> dict[str, Any]:
        """The answer.

        Raises:
            TimeoutError: there is no answer in time. The process is gone then.
            OSError: the process has died.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        answer = b""
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            while not answer.endswith(b"\n"):
                ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise TimeoutError
                part = process.stdout.read(1 << 16)
                if not part:
                    raise ConnectionError("the grammar checker has ended")
                answer += part
        except OSError:  # of which TimeoutError is one
            self.close()
            raise
        found: dict[str, Any] = json.loads(answer)
        return found
