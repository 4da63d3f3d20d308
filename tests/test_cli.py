"""The command line: quick help, errors that name the nearest option, options generated from the config."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from jaxengine import cli, config
from jaxengine.cli.options import given_options


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "jaxengine", *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["generate", "--no-such-option", "x"]])
def test_help_and_argument_errors_load_neither_jax_nor_numpy(words):
    script = (
        "import sys\nfrom jaxengine.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('jax', 'flax', 'numpy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("[]")


def test_every_engine_option_is_a_flag_and_reaches_the_config():
    parser = cli._parser()
    for _, spec in config.iter_options():
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
    assert given_options(namespace) == {"max_num_seqs": 4, "memory_utilization": 0.5}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "x", "--max-num-seq", "4"], "Did you mean '--max-num-seqs'?"),
        (["generate", "x", "--gpu-memory-utilisation", "1"], "Did you mean '--gpu-memory-utilization'?"),
        (["generate", "x", "--swap-space", "4"], "recomputed"),
        (["generate", "x", "--dtype", "int3"], "invalid choice: 'int3'"),
        (["generat", "x"], "invalid choice: 'generat'"),
        ([], "required: command"),
    ],
)
def test_argument_errors(words, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(words)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_user_errors_are_one_line(capsys):
    assert cli.main(["generate", "x", "--model", "/no/such/directory", "--quiet"]) == 1
    errors = capsys.readouterr().err.strip()
    assert errors.startswith("jaxengine: error: ")
    assert "/no/such/directory" in errors
    assert "Traceback" not in errors


def test_doctor_reports_devices_and_what_is_missing():
    done = run("doctor")
    assert done.returncode == 0, done.stderr
    for word in ("python", "jax ", "devices", "memory", "cache dir"):
        assert word in done.stdout


def test_version():
    assert run("--version").stdout.strip().startswith("jaxengine ")
