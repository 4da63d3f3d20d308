"""The command line: quick help, errors that name the nearest option, options generated from the config."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxengine import cli
from jaxengine.cli.reference import page
from jaxengine.cli.sampling import given_sampling
from jaxengine.contract.sampling_options import OPTIONS
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import as_written, given_options
from jaxengine.options.names import known_names
from jaxengine.options.option import iter_options
from jaxengine.server.options import ServerConfig


@pytest.fixture(autouse=True)
def _level_of_the_log() -> Iterator[None]:
    """--quiet sets it for the process."""
    logger = logging.getLogger("jaxengine")
    before = logger.level
    yield
    logger.setLevel(before)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "jaxengine", *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "words", [["--help"], ["generate", "--help"], ["generate", "--no-such-option", "x"], ["serve", "--help"]]
)
def test_help_and_argument_errors_load_neither_jax_nor_numpy(words):
    script = (
        "import sys\nfrom jaxengine.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('jax', 'flax', 'numpy', 'transformers', 'asyncio', 'urllib.request') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("[]")


def test_a_command_that_ends_looks_for_no_garbage() -> None:
    script = (
        "import atexit, gc\nfrom jaxengine.cli import main\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 0))\n"  # what is registered first runs last
        "main(['options'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("frozen True")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_command_is_declared_alone_as_among_all(command: str) -> None:
    alone, among = cli._parser([command]), cli._parser()
    assert cli._subparser(alone, command).format_help() == cli._subparser(among, command).format_help()


def test_each_command_has_a_row() -> None:
    (commands,) = (action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert list(commands.choices) == list(cli.COMMANDS)


def test_every_engine_option_is_a_flag_and_reaches_the_config():
    parser = cli._parser()
    for _, spec in iter_options(EngineConfig):
        flag = f"--{spec.name.replace('_', '-')}"
        default = spec.default if spec.default is not dataclasses.MISSING else {}
        words = ["generate", "x", flag]
        if isinstance(default, bool):
            namespace = parser.parse_args(words)
            assert getattr(namespace, spec.name) is True
            continue
        value = (spec.metadata["choices"] or ("8",))[0]
        namespace = parser.parse_args([*words, value])
        assert str(getattr(namespace, spec.name)).strip("(),'").removesuffix(".0") == value


def test_only_given_options_are_passed_on():
    namespace = cli._parser().parse_args(["generate", "x", "--max-num-seqs", "4", "--gpu-memory-utilization", "0.5"])
    assert given_options(namespace, EngineConfig) == {"max_num_seqs": 4, "memory_utilization": 0.5}


def test_every_sampling_option_is_a_flag_and_reaches_the_request():
    given = {option.name: 3 if option.kind is int else 0.25 for option in OPTIONS}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    named = given_sampling(cli._parser().parse_args(["generate", "x", *words, "--n", "2"]))
    assert named == {**given, "n": 2}
    SamplingParams(**named)
    said = run("generate", "--help").stdout
    assert all(option.about.split()[0] in said for option in OPTIONS)


def test_options_are_written_as_vllms_users_write_them():
    server = ["--served_model_name", "a", "b", "--allowed-origins", '["http://x", "http://y,z"]', "--api-key=k_1,2"]
    words = ["serve", "some/model", "--max_model_len=4k", "-tp", "2", "-q", "None", "--enable-eplb=false", *server]
    namespace = cli._parser().parse_args(as_written([*words, "--hf-overrides.rope_theta", "1e4", "--hf_overrides.a=x"]))
    assert namespace.model_name == "some/model"
    assert given_options(namespace, EngineConfig) == {
        "max_model_len": "4k",
        "tensor_parallel_size": 2,
        "quantization": None,
        "enable_eplb": False,
        "hf_overrides": '{"rope_theta": 10000.0, "a": "x"}',
        "served_model_name": ("a", "b"),  # which an engine alone knows by name
    }
    assert (
        given_options(namespace, ServerConfig).items()
        >= {
            "served_model_name": ("a", "b"),
            "allowed_origins": ("http://x", "http://y,z"),
            "api_key": ("k_1,2",),
        }.items()
    )


def test_every_name_of_vllms_is_known_to_the_command_line(capsys):
    parser = cli._parser()
    for name, known in known_names().items():
        value = [] if known.is_flag else ["1"]
        flag = f"-{known.short}" if known.short else f"--{name.replace('_', '-')}"
        _, unknown = parser.parse_known_args(["serve", "m", flag, *value])
        assert not unknown
    parser.parse_known_args(["serve", "m", "-O3"])
    with pytest.raises(SystemExit):
        parser.parse_args(["serve", "--help"])
    shown = capsys.readouterr().out
    assert "--enable-eplb" not in shown
    assert "jaxengine options" in shown


def test_a_name_of_vllms_that_is_not_built_is_refused_before_anything_is_loaded(capsys):
    assert cli.main(["serve", "m", "--enable-eplb"]) == 1
    assert capsys.readouterr().err == "jaxengine: error: enable_eplb=True is refused: Experts stay where they are.\n"


def test_the_page_of_options_is_up_to_date():
    written = Path(__file__).parents[1].joinpath("examples", "docs", "options.md").read_text()
    assert written.splitlines() == list(page()), "write it again: jaxengine options > examples/docs/options.md"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "x", "--max-num-seq", "4"], "Did you mean '--max-num-seqs'?"),
        (["generate", "x", "--gpu-memory-utilisation", "1"], "Did you mean '--gpu-memory-utilization'?"),
        (["generat", "x"], "invalid choice: 'generat'"),
        ([], "required: command"),
    ],
)
def test_argument_errors(words, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(words)
    assert exit_info.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 2


def test_user_errors_are_one_line(capsys):
    assert cli.main(["generate", "x", "--dtype", "int3"]) == 1
    assert "dtype must be one of auto, half" in capsys.readouterr().err
    assert cli.main(["generate", "x", "--model", "/no/such/directory", "--quiet"]) == 1
    errors = capsys.readouterr().err.strip()
    assert errors.startswith("jaxengine: error: ")
    assert "/no/such/directory" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("words", [["serve", "/no/such"], ["generate", "x", "--model", "/no/such"]])
def test_a_wrong_path_is_told_before_the_device_half_is_loaded(words):
    script = (
        "import sys\nfrom jaxengine.cli import main\n"
        f"status = main({words!r})\nprint(status, [name for name in ('jax', 'flax', 'fastapi') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1 []"
    assert "'/no/such' is neither an existing directory nor a hub id" in done.stderr


def test_doctor_reports_devices_and_what_is_missing():
    done = run("doctor")
    assert done.returncode == 0, done.stderr
    for word in ("python", "jax ", "devices", "memory", "cache dir", "programs "):
        assert word in done.stdout


@pytest.mark.parametrize(("words", "sequences"), [([], 1), (["--n", "3"], 3), (["--bundle", "b"], None)])
def test_generate_plans_for_its_prompts_unless_a_bundle_did(monkeypatch, words, sequences):
    class StartedError(Exception):
        pass

    def start(**options):
        assert options.get("max_num_seqs") == sequences
        raise StartedError

    monkeypatch.setattr("jaxengine.api.llm.LLM", start)
    with pytest.raises(StartedError):
        cli.main(["generate", "x", *words])


def test_cache_list_export_and_import(tmp_path, capsys):
    store = ["--xla-cache-path", str(tmp_path / "store")]
    assert cli.main(["cache", "list", *store]) == 0
    assert "nothing is kept yet" in capsys.readouterr().out
    assert cli.main(["cache", "export", "gpt", str(tmp_path / "b"), *store]) == 1
    assert "has no start 'gpt'; it has none" in capsys.readouterr().err
    assert cli.main(["cache", "import", str(tmp_path / "b"), *store]) == 1
    assert "there is no bundle" in capsys.readouterr().err


def test_version():
    assert run("--version").stdout.strip().startswith("jaxengine ")
