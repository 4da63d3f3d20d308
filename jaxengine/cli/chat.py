"""`jaxengine chat` and `jaxengine complete`: talk to a server, or to a model in this process, in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jaxengine.cli.sampling import add_sampling_options, given_sampling
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import add_options, given_options

if TYPE_CHECKING:
    from jaxengine.cli.terminal.client import Client

KEY_VARIABLES = ("OPENAI_API_KEY", "JAXENGINE_API_KEY", "VLLM_API_KEY")
HELP = """/clear      begin a new conversation
/again      answer the last message once more
/system X   begin a new conversation with X as the system message
/exit       end (so does Ctrl-D); Ctrl-C stops an answer
A line that ends in \\ goes on in the next; three quotes begin and end a text of several lines."""


def add_commands(commands: Any) -> None:
    """Declare the commands."""
    chat = commands.add_parser("chat", help="talk to a model in the terminal, of a server or in this process")
    chat.add_argument("--system-prompt", metavar="TEXT", help="system message")
    _add_common(chat, quick="MESSAGE")
    chat.set_defaults(run=run_chat)
    complete = commands.add_parser("complete", help="the same without a chat template: texts are continued")
    _add_common(complete, quick="PROMPT")
    complete.set_defaults(run=run_complete)


def _add_common(parser: argparse.ArgumentParser, *, quick: str) -> None:
    parser.add_argument(
        "local_model", nargs="?", metavar="MODEL", help="the same as --model (default: the embedded one)"
    )
    parser.add_argument("-q", "--quick", metavar=quick, help="answer this, print the answer alone, and end")
    group = parser.add_argument_group("a server, in place of a model in this process")
    group.add_argument("--url", help="such as http://localhost:8000, which it is with --model-name or --api-key alone")
    group.add_argument("--model-name", metavar="NAME", help="the model to ask for (default: the first)")
    group.add_argument("--api-key", metavar="KEY", help=f"(default: {' or '.join(KEY_VARIABLES)})")
    add_sampling_options(parser)
    add_options(parser, EngineConfig)


def run_chat(namespace: argparse.Namespace) -> int:
    with _reached(namespace) as (client, model):
        chat = Chat(client, {"model": model, **given_sampling(namespace)}, namespace.system_prompt)
        if namespace.quick is not None:
            return chat.say(namespace.quick, told=False)
        return _converse("chat", chat, greeting=f"{model}: /help says what else there is")


def run_complete(namespace: argparse.Namespace) -> int:
    with _reached(namespace) as (client, model):
        completion = Completion(client, {"model": model, **given_sampling(namespace)})
        if namespace.quick is not None:
            return completion.say(namespace.quick, told=False)
        return _converse("complete", completion, greeting=f"{model} continues what you write; Ctrl-D ends")


@contextmanager
def _reached(namespace: argparse.Namespace) -> Iterator[tuple[Client, str]]:
    """A client of what is to be talked to, and the model's name there.

    Raises:
        ConfigError: options of an engine are given for a server, which has its own.
    """
    from jaxengine.cli.terminal.client import DEFAULT_URL, Client

    options = given_options(namespace, EngineConfig)
    if namespace.local_model is not None:
        if "model" in options:
            raise ConfigError(f"the model is given twice: {namespace.local_model!r} and --model {options['model']!r}")
        options["model"] = namespace.local_model
    if namespace.url or namespace.model_name or namespace.api_key:
        if options:
            raise ConfigError(f"{', '.join(options)}: options of an engine in this process; a server has its own")
        key = namespace.api_key or next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
        client = Client.of(namespace.url or DEFAULT_URL, key)
        yield client, namespace.model_name or client.models()[0]
        return
    from jaxengine.cli.terminal.local import local_server
    from jaxengine.startup.log import show_log

    if namespace.quick is None:
        show_log()
    if "bundle" not in options:
        options.setdefault("max_num_seqs", getattr(namespace, "n", 1))  # nobody else asks this engine
    with local_server(options) as client:
        yield client, client.models()[0]


def _converse(name: str, partner: Chat | Completion, *, greeting: str) -> int:
    """Read and answer until the end of input. An error ends an answer, not the conversation."""
    from jaxengine.cli.terminal.lines import Lines

    lines = Lines(name)
    print(greeting)
    try:
        while True:
            try:
                text = lines.read(">>> ")
            except KeyboardInterrupt:
                print("\n(Ctrl-D or /exit ends)")
                continue
            if text is None or text.strip() in ("/exit", "/bye", "/quit"):
                return 0
            if text.strip():
                partner.take(text)
    finally:
        lines.keep()


@dataclass
class Chat:
    """A conversation; what was said so far goes with every message."""

    client: Client
    body: Mapping[str, Any]
    system: str | None = None
    said: list[dict[str, str]] = field(default_factory=list)

    def take(self, text: str) -> None:
        """A line that was typed: a command or a message."""
        word, _, rest = text.strip().partition(" ")
        if word == "/help":
            print(HELP)
        elif word == "/clear":
            self.said.clear()
        elif word == "/system":
            self.system, self.said = rest.strip() or None, []
        elif word == "/again":
            users = [number for number, message in enumerate(self.said) if message["role"] == "user"]
            if users:
                last = self.said[users[-1]]["content"]
                del self.said[users[-1] :]
                self.say(last)
        elif word.startswith("/") and "/" not in word[1:] and word[1:].isalpha():
            print(f"{word} is no command. {HELP}")
        else:
            self.say(text)

    def say(self, text: str, *, told: bool = True) -> int:
        """Send a message and write the answer; the exit status. What was answered before Ctrl-C is kept."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = {"role": "user", "content": text}
        body = {**self.body, "messages": [*system, *self.said, asked]}
        answer = _answer(self.client, "/v1/chat/completions", body, told=told)
        if answer.text:
            self.said += [asked, {"role": "assistant", "content": answer.text}]
        return answer.status


@dataclass
class Completion:
    """Texts that are continued, each for itself."""

    client: Client
    body: Mapping[str, Any]

    def take(self, text: str) -> None:
        """A text that was typed."""
        self.say(text)

    def say(self, text: str, *, told: bool = True) -> int:
        """Write the continuation; the exit status."""
        return _answer(self.client, "/v1/completions", {**self.body, "prompt": text}, told=told, markdown=False).status


@dataclass
class _Answer:
    text: str = ""
    status: int = 0


def _answer(client: Client, path: str, body: Mapping[str, Any], *, told: bool, markdown: bool = True) -> _Answer:
    """Write an answer as it comes. Ctrl-C ends it and nothing else; an error is written where it belongs."""
    from jaxengine.cli.terminal.client import ServerError
    from jaxengine.cli.terminal.writing import writer

    answer, begun, first, tokens = _Answer(), time.perf_counter(), 0.0, 0
    try:
        with (
            closing(client.events(path, {**body, "stream_options": {"include_usage": True}})) as events,
            writer(markdown=markdown and told) as out,
        ):
            for event in events:
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                for choice in event["choices"]:
                    first = first or time.perf_counter()
                    delta = choice.get("delta", {})
                    out.thought(delta.get("reasoning") or delta.get("reasoning_content") or "")
                    text = choice["text"] if "text" in choice else (delta.get("content") or "") + _calls(delta)
                    answer.text += text
                    if text:
                        out.answer(text)
    except KeyboardInterrupt:
        answer.status = 130
        print("(stopped)", file=sys.stderr)
        return answer
    except ServerError as error:
        answer.status = 1
        print(f"jaxengine: error: {error}", file=sys.stderr)
        return answer
    if told and tokens > 1 and sys.stdout.isatty():
        rate = (tokens - 1) / max(1e-9, time.perf_counter() - first)
        print(f"\033[2m{tokens} tokens, the first after {first - begun:.2f} s, then {rate:.1f} tokens/s\033[0m")
    return answer


def _calls(delta: Mapping[str, Any]) -> str:
    """Tool calls as text: there is nobody here to make them."""
    functions = [call.get("function", {}) for call in delta.get("tool_calls") or ()]
    return "".join(f"{function.get('name') or ''}{function.get('arguments') or ''}" for function in functions)
