"""Conversations and numbers in a terminal, as a person sees them: the commands run on a pseudo-terminal against a real server."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.cli import main
from jaxengine.cli.terminal.client import Client, ServerError
from jaxengine.cli.terminal.scrape import Between, Scrape
from jaxengine.cli.terminal.writing import split_blocks
from jaxengine.errors import ConfigError, JaxEngineError
from tests.fakes import GatedRunner
from tests.fronts import make_engine
from tests.server.rig import Live, live
from tests.server.scripted import ScriptedRunner

pexpect = pytest.importorskip("pexpect")
fdpexpect = pytest.importorskip("pexpect.fdpexpect")
if shutil.which("setsid") is None:
    pytest.skip("needs setsid of util-linux", allow_module_level=True)

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
KEY = "sk-terminal"


class Slow(ScriptedRunner, GatedRunner):
    """Writes a script, a step for each that is allowed."""


class Seen:
    """A server that writes what it is told to, and the prompts that it got."""

    def __init__(self, server: Live) -> None:
        self.server = server
        self.prompts: list[str] = []
        submit = server.service.submit

        async def spied(requests: Any, *rest: Any) -> Any:
            self.prompts += [request.prompt for request in requests]
            return await submit(requests, *rest)

        server.service.submit = spied  # type: ignore[method-assign]


@pytest.fixture
def seen() -> Iterator[Seen]:
    with live(make_engine(runner=ScriptedRunner, max_len=400), api_key=(KEY,), served_model_name=("fake",)) as server:
        yield Seen(server)


class Typed:
    """A command on a terminal of its own. It is started without a fork of this process, which JAX may have threads in.

    It can be interrupted, also where these tests are in the background of a shell and inherit that interrupts are ignored.
    """

    def __init__(self, *words: str, state: Path) -> None:
        environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm", "OPENAI_API_KEY": KEY}
        self._terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self._process = subprocess.Popen(
            ["env", "--default-signal=INT", "setsid", "--ctty", "--wait", sys.executable, "-m", "jaxengine", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        self._seen = fdpexpect.fdspawn(self._terminal, encoding="utf-8", timeout=30)

    def expect(self, pattern: str, **options: Any) -> str:
        """What came before a pattern."""
        self._seen.expect(pattern, **options)
        return str(self._seen.before)

    def type(self, text: str, end: str = "\n") -> None:
        """As if it were typed."""
        self._seen.send(text + end)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.type("\x03", end="")

    def end(self) -> None:
        """Ctrl-D."""
        self.type("\x04", end="")

    def status(self) -> int:
        """Once it has ended."""
        self._seen.expect(pexpect.EOF)
        return self._process.wait(30)

    def close(self) -> None:
        os.close(self._terminal)  # which hangs up
        self._process.wait(30)


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Callable[..., Typed]]:
    """Starts commands."""
    started: list[Typed] = []

    def start(*words: str) -> Typed:
        started.append(Typed(*words, state=tmp_path))
        return started[-1]

    yield start
    for child in started:
        child.close()


def test_a_conversation_on_a_terminal(seen: Seen, typed: Callable[..., Typed], tmp_path: Path) -> None:
    """History, several lines, Markdown, commands; what the model writes can do nothing to the terminal."""
    runner = seen.server.runner
    runner.write("# Title\n\nSome **bold** words\x1b]0;evil\x07 and\n\n- one\n- two")
    child = typed("chat", "--url", seen.server.url, "--system-prompt", "be kind")
    child.expect("fake: /help")
    child.expect(">>> ")
    child.type('"""first')
    child.expect(r"\.\.\. ")
    child.type('second"""')
    shown = child.expect("tokens/s")
    child.expect(">>> ")
    assert "\x1b]0;" not in shown, "a model cannot set the title"
    plain = ESCAPES.sub("", shown)
    assert "Title" in plain
    assert "#" not in plain
    assert "**" not in plain
    assert "• one" in plain
    assert seen.prompts[-1] == "<system>be kind<user>first\nsecond<bot>"

    runner.write("again")
    child.type("more\\")
    child.type("lines")
    child.expect("tokens/s")
    child.expect(">>> ")
    assert seen.prompts[-1].startswith("<system>be kind<user>first\nsecond<assistant># Title")
    assert seen.prompts[-1].endswith("<user>more\nlines<bot>")

    before = seen.prompts[-1]
    runner.write("once more")
    child.type("/again")
    child.expect("tokens/s")
    child.expect(">>> ")
    assert seen.prompts[-1] == before
    child.type("/clear")
    child.expect(">>> ")
    runner.write("well")
    child.type("anew")
    child.expect("tokens/s")
    child.expect(">>> ")
    assert seen.prompts[-1] == "<system>be kind<user>anew<bot>"
    child.type("/nonsense")
    child.expect("/nonsense is no command")
    child.end()
    assert child.status() == 0
    assert (tmp_path / "jaxengine" / "chat_history").stat().st_mode & 0o077 == 0


def test_control_c_stops_the_answer_and_nothing_else(typed: Callable[..., Typed]) -> None:
    with live(make_engine(runner=Slow, max_len=400), served_model_name=("fake",)) as server:
        seen = Seen(server)
        server.runner.write("one two three four five six seven")
        child = typed("chat", "--url", server.url)
        child.expect(">>> ")
        child.type("count")
        server.runner.allow(10)
        child.expect("one two")
        child.interrupt()
        child.expect("stopped")
        child.expect(">>> ")
        server.runner.open()
        server.settle()  # the server was told: nothing runs on
        server.runner.write("eight")
        child.type("go on")
        child.expect("eight")
        child.expect(">>> ")
        assert re.fullmatch(r"<user>count<assistant>one two[^<]*<user>go on<bot>", seen.prompts[-1])
        child.interrupt()
        child.expect("Ctrl-D or /exit ends")
        child.expect(">>> ")
        child.type("/exit")
        assert child.status() == 0


def test_errors_end_an_answer_and_not_the_conversation(seen: Seen, typed: Callable[..., Typed]) -> None:
    child = typed("chat", "--url", seen.server.url)
    child.expect(">>> ")
    child.type("long " * 200)
    child.expect("maximum context length is 400 tokens")
    child.expect(">>> ")
    seen.server.runner.write("fine")
    child.type("short")
    child.expect("fine")
    assert seen.prompts[-1] == "<user>short<bot>", "what was not answered was not said"


def test_quick_prints_the_answer_alone(seen: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    seen.server.runner.write("# not rendered")
    words = ["--url", f"{seen.server.url}/v1", "--api-key", KEY]
    assert main(["chat", *words, "-q", "hello", "--temperature", "0.5", "--max-tokens", "90"]) == 0
    assert capsys.readouterr().out == "# not rendered\n"
    seen.server.runner.write(" upon a time")
    assert main(["complete", *words, "--quick", "Once", "--model-name", "fake"]) == 0
    assert capsys.readouterr().out == " upon a time\n"
    assert seen.prompts == ["<user>hello<bot>", "Once"]
    assert main(["chat", "--url", seen.server.url, "--api-key", "wrong", "-q", "hello"]) == 1
    assert "the server refuses this API key" in capsys.readouterr().err
    assert main(["chat", *words, "--model-name", "other", "-q", "hello"]) == 1
    assert "The model `other` does not exist" in capsys.readouterr().err


def test_the_options_of_an_engine_are_not_those_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:9", "--max-model-len", "64"]) == 1
    assert "max_model_len: options of an engine in this process" in capsys.readouterr().err
    assert main(["chat", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server of OpenAI's API answers at 127.0.0.1:9" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="url must be like"):
        Client.of("localhost:8000")


def test_an_error_in_the_middle_of_an_answer_is_told(seen: Seen) -> None:
    client = Client.of(seen.server.url, KEY)
    with pytest.raises(ServerError, match="max_tokens"):
        next(client.events("/v1/completions", {"prompt": "a", "max_tokens": -1}))


@pytest.mark.slow
def test_a_model_in_this_process(typed: Callable[..., Typed]) -> None:
    child = typed("chat", "--max-model-len", "256", "--temperature", "0")
    child.expect(">>> ", timeout=300)
    child.type("What is 7 + 5?")
    child.expect("12")
    child.expect("tokens/s")
    child.expect(">>> ")  # what is typed before the prompt is lost to the terminal's change of mode
    child.end()
    assert child.status() == 0
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jaxengine",
            "chat",
            "-q",
            "What is 7 + 5?",
            "--max-model-len",
            "256",
            "--temperature",
            "0",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip().endswith("12")


def test_top_shows_what_the_metrics_say(
    seen: Seen, typed: Callable[..., Typed], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--url", seen.server.url, "--once", "--interval", "0.01"]) == 0
    assert "0 running" in capsys.readouterr().out
    child = typed("top", "--url", seen.server.url, "--interval", "0.3")
    child.expect("fake")
    with Client.of(seen.server.url, KEY)._sent("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 50}):
        pass
    child.expect(r"[1-9][\d.]* generated")
    child.expect("first token +[0-9.]+ ms")
    child.interrupt()
    assert child.status() == 130
    with pytest.raises(JaxEngineError, match="no metrics of an engine"):
        Scrape.of("# TYPE a counter\na_total 1\n")


def test_between_two_looks() -> None:
    def look(count: int, fast: int, moment: float) -> Scrape:
        name = "vllm:time_to_first_token_seconds"
        text = (
            f"# TYPE {name} histogram\n"
            f'{name}_bucket{{engine="0",le="0.1"}} {fast}\n{name}_bucket{{engine="0",le="1.0"}} {count}\n'
            f'{name}_bucket{{engine="0",le="+Inf"}} {count}\n{name}_count{{engine="0"}} {count}\n{name}_sum{{engine="0"}} 1\n'
            "# TYPE vllm:generation_tokens counter\n"
            f'vllm:generation_tokens_total{{engine="0"}} {count}\nvllm:generation_tokens_total{{engine="1"}} {count}\n'
        )
        return Scrape(Scrape.of(text).samples, moment=moment)

    between = Between(look(100, 100, 10.0), look(110, 105, 12.0))
    assert between.rate("vllm:generation_tokens_total") == 10.0, "of both engines, in two seconds"
    assert between.percentile("vllm:time_to_first_token_seconds", 50) == 0.1
    assert between.percentile("vllm:time_to_first_token_seconds", 90) == 1.0
    anew = Between(look(100, 100, 10.0), look(4, 4, 12.0))
    assert anew.gained("vllm:generation_tokens_total") == 8, "a server that was started again counts from nothing"
    same = look(1, 1, 1.0)
    assert Between(same, same).percentile("vllm:time_to_first_token_seconds", 50) is None


@given(st.lists(st.sampled_from(["a\n", "\n", "```\n", "~~~\n", "  ```py\n", "- x\n", " \n", "b"])))
def test_blocks_come_whole_and_nothing_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    printed, rest = "", ""
    for piece in pieces:
        whole, rest = split_blocks(rest + piece)
        printed += whole
    assert printed + rest == text
    once = split_blocks(text)
    assert (printed, rest) == once, "the same blocks, however the text came"


def test_a_fence_of_code_is_one_block() -> None:
    assert split_blocks("a\n\n```\nx\n\ny\n") == ("a\n\n", "```\nx\n\ny\n")
    assert split_blocks("```\nx\n\ny\n```\n\nb") == ("```\nx\n\ny\n```\n\n", "b")
