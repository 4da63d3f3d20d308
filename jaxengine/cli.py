"""The `jaxengine` command. Options of the engine are generated from `config.py`; JAX is loaded only when there is work."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from jaxengine import __version__, config
from jaxengine.errors import ConfigError, JaxEngineError, nearest
from jaxengine.sampling_params import SamplingParams
from jaxengine.server.options import RETIRED_OPTIONS, ServerConfig, read_file

if TYPE_CHECKING:
    from jaxengine.engine.build import Engine

DEFAULT_MAX_TOKENS = 200
FEW_SEQUENCES = 32


class Parser(argparse.ArgumentParser):
    """argparse, except that options are never abbreviated and an unknown one names the nearest known."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            given = message.removeprefix("unrecognized arguments: ").split()[0].split("=")[0]
            known = [option for action in self._actions for option in action.option_strings]
            name = given.removeprefix("--").replace("-", "_")
            successor = RETIRED_OPTIONS.get(name) or config.RETIRED_OPTIONS.get(name)
            message = f"unknown option {given}.{' ' + successor if successor else nearest(given, known)}"
        super().error(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors that users can mend are printed in one line and give exit status 1."""
    parser = _parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    namespace, unknown = parser.parse_known_args(words)
    if unknown:
        _subparser(parser, namespace.command).error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        result: int = namespace.run(namespace)
    except JaxEngineError as error:
        print(f"jaxengine: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return result


def _parser() -> Parser:
    parser = Parser(prog="jaxengine", description="A JAX/XLA-first inference engine for language models.")
    parser.add_argument("--version", action="version", version=f"jaxengine {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True, parser_class=Parser)

    generate = commands.add_parser("generate", help="continue a text, or answer it with --chat")
    generate.add_argument(
        "prompts", nargs="+", metavar="PROMPT", help="one or more texts; - reads one from standard input"
    )
    generate.add_argument("--chat", action="store_true", help="put the prompt through the model's chat template")
    generate.add_argument("--system", help="system message, with --chat")
    generate.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    generate.add_argument("--quiet", action="store_true", help="print the text only, no progress")
    _add_sampling_options(generate)
    _add_options(generate, config.EngineConfig)
    generate.set_defaults(run=_generate)

    serve = commands.add_parser("serve", help="an OpenAI-compatible HTTP server")
    serve.add_argument("model_name", nargs="?", metavar="MODEL", help="the same as --model")
    serve.add_argument("--config", metavar="FILE", help="YAML file of options; those given here win")
    _add_options(serve, config.EngineConfig)
    _add_options(serve, ServerConfig)
    serve.set_defaults(run=_serve)

    convert = commands.add_parser("convert", help="write a checkpoint in the engine's layout and dtype (Orbax)")
    convert.add_argument("source", help="checkpoint directory or hub id")
    convert.add_argument("output", help="directory to write; must not exist unless --force")
    convert.add_argument("--dtype", default="auto", choices=config.DTYPES)
    convert.add_argument("--revision", help="hub branch, tag or commit")
    convert.add_argument("--force", action="store_true", help="replace an existing output")
    convert.set_defaults(run=_convert)

    doctor = commands.add_parser("doctor", help="devices, memory, versions, cache directory, and what is missing")
    doctor.set_defaults(run=_doctor)
    return parser


def _subparser(parser: argparse.ArgumentParser, command: str) -> Parser:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return typing.cast(Parser, action.choices[command])
    raise AssertionError("the parser has commands")


def _add_options(parser: argparse.ArgumentParser, composite: type) -> None:
    """A flag for every option of `composite`, grouped as its dataclasses are."""
    groups = {group.name: parser.add_argument_group(f"{group.name} options") for group in dataclasses.fields(composite)}
    for group, spec in config.iter_options(composite):
        flags = [f"--{name.replace('_', '-')}" for name in (spec.name, *spec.metadata["aliases"])]
        # suppressed, so that only what the user gave reaches EngineConfig and its own defaults stay the only ones
        keywords: dict[str, Any] = {"dest": spec.name, "help": spec.metadata["help"], "default": argparse.SUPPRESS}
        if isinstance(spec.default, bool):
            keywords["action"] = argparse.BooleanOptionalAction
        else:
            keywords["type"] = _reader(spec, composite)
            if isinstance(keywords["type"], _Items):
                keywords |= {"nargs": "+", "action": _Extend}
            keywords["choices"] = spec.metadata["choices"]
            keywords["metavar"] = None if spec.metadata["choices"] else spec.name.rsplit("_", 1)[-1].upper()
        groups[group].add_argument(*flags, **keywords)


@dataclasses.dataclass(frozen=True)
class _Items:
    """Reads one word of an option that takes several; `split` ones may also be written with commas."""

    item: type
    split: bool

    def __call__(self, text: str) -> tuple[Any, ...]:
        words = text.replace(" ", ",").split(",") if self.split else [text]
        return tuple(self.item(word) for word in words if word)

    def __repr__(self) -> str:
        return f"list of {self.item.__name__}"


class _Extend(argparse.Action):
    """Joins the items of all words, as one tuple."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest, ())
        setattr(namespace, self.dest, (*before, *(item for items in values for item in items)))


def _reader(spec: dataclasses.Field[Any], composite: type) -> Any:
    hints = typing.get_type_hints(_owner(spec, composite))
    kind = hints[spec.name]
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if any(typing.get_origin(option) is tuple for option in options):
        item = next(typing.get_args(option)[0] for option in options if typing.get_origin(option) is tuple)
        return _Items(item, split=spec.metadata["split"])
    if str in options:
        return str
    return next((option for option in (int, float) if option in options), str)


def _owner(spec: dataclasses.Field[Any], composite: type) -> type:
    for group in dataclasses.fields(composite):
        owner = typing.cast(type, group.default_factory)
        if any(field is spec for field in dataclasses.fields(owner)):
            return owner
    raise AssertionError(f"{spec.name} belongs to no group of options")


SAMPLING_OPTIONS: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "n": int,
    "max_tokens": int,
    "min_tokens": int,
    "logprobs": int,
}


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling options (default: the model's generation_config.json)")
    for name, kind in SAMPLING_OPTIONS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, default=argparse.SUPPRESS)
    group.add_argument("--sampling-seed", type=int, default=argparse.SUPPRESS, help="seed of the request")
    group.add_argument(
        "--stop", action="append", default=argparse.SUPPRESS, help="stop string; may be given several times"
    )
    group.add_argument("--ignore-eos", action="store_true", default=argparse.SUPPRESS)


def _given(namespace: argparse.Namespace, composite: type = config.EngineConfig) -> dict[str, Any]:
    """The options of `composite` that the command line gave."""
    names = {spec.name for _, spec in config.iter_options(composite)}
    return {name: value for name, value in vars(namespace).items() if name in names}


def _sampling(namespace: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    given = {
        name: getattr(namespace, name) for name in (*SAMPLING_OPTIONS, "stop", "ignore_eos") if hasattr(namespace, name)
    }
    if hasattr(namespace, "sampling_seed"):
        given["seed"] = namespace.sampling_seed
    given.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    return defaults.replace(**given)


def _generate(namespace: argparse.Namespace) -> int:
    from jaxengine.llm import LLM

    if namespace.quiet:
        logging.getLogger("jaxengine").setLevel(logging.WARNING)
    prompts = [sys.stdin.read() if text == "-" else text for text in namespace.prompts]
    options = _given(namespace)
    sequences = len(prompts) * getattr(namespace, "n", 1)
    if sequences <= FEW_SEQUENCES:
        # Nobody else will call this engine: no shapes are compiled for more sequences than there are.
        options.setdefault("max_num_seqs", sequences)
    with LLM(**options) as llm:
        sampling = _sampling(namespace, llm.get_default_sampling_params())
        if namespace.chat:
            system = [{"role": "system", "content": namespace.system}] if namespace.system else []
            conversations = [[*system, {"role": "user", "content": prompt}] for prompt in prompts]
            outputs = llm.chat(conversations, sampling, use_tqdm=not namespace.quiet)
        else:
            outputs = llm.generate(prompts, sampling, use_tqdm=not namespace.quiet)
    for prompt, output in zip(prompts, outputs, strict=True):
        if namespace.json:
            completions = [
                {"text": item.text, "finish_reason": item.finish_reason, "num_tokens": len(item.token_ids)}
                for item in output.outputs
            ]
            print(json.dumps({"prompt": prompt, "outputs": completions}, ensure_ascii=False))
        else:
            for item in output.outputs:
                print(item.text if namespace.chat else prompt + item.text)
    return 0


def _serve(namespace: argparse.Namespace) -> int:
    if namespace.model_name is not None:
        if hasattr(namespace, "model"):
            raise ConfigError(f"the model is given twice: {namespace.model_name!r} and --model {namespace.model!r}")
        namespace.model = namespace.model_name
    engine, server = read_file(namespace.config) if namespace.config else ({}, {})
    engine_config = config.EngineConfig.from_options(**{**engine, **_given(namespace)})
    server_config = ServerConfig.from_options(**{**server, **_given(namespace, ServerConfig)})

    from jaxengine.engine.progress import show_log
    from jaxengine.server.launch import run

    show_log()

    def build() -> Engine:
        from jaxengine.engine.build import build_engine

        return build_engine(engine_config)

    return run(build, server_config)


def _convert(namespace: argparse.Namespace) -> int:
    from jaxengine.engine.convert import convert
    from jaxengine.engine.progress import show_log

    show_log()
    convert(
        namespace.source, namespace.output, dtype=namespace.dtype, revision=namespace.revision, force=namespace.force
    )
    return 0


def _doctor(namespace: argparse.Namespace) -> int:
    from jaxengine.doctor import report

    for line in report():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
