"""The command line: quick help, errors that name the nearest option, options generated from the config."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from jaxengine import cli, config
from jaxengine.cli.options import dashed, given_options
from jaxengine.server.options import RETIRED_OPTIONS, ServerConfig


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "jaxengine", *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "words", [["--help"], ["generate", "--help"], ["generate", "--no-such-option", "x"], ["serve", "--help"]]
)
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


def test_options_are_written_as_vllms_users_write_them():
    server = ["--served_model_name", "a", "b", "--allowed-origins", '["http://x", "http://y,z"]', "--api-key=k_1,2"]
    words = [dashed(word) for word in ["serve", "some/model", "--max_model_len=4k", *server]]
    namespace = cli._parser().parse_args(words)
    assert namespace.model_name == "some/model"
    assert given_options(namespace) == {"max_model_len": "4k"}
    assert given_options(namespace, ServerConfig) == {
        "served_model_name": ("a", "b"),
        "allowed_origins": ("http://x", "http://y,z"),
        "api_key": ("k_1,2",),
    }


@pytest.mark.parametrize("flag", ["--disable-log-requests", "--enable-reasoning", "--lora-modules"])
def test_flags_of_vllm_that_are_gone_name_what_to_do(flag, capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", flag])
    name = flag.removeprefix("--").replace("-", "_")
    assert RETIRED_OPTIONS[name].split()[0] in capsys.readouterr().err


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
    for word in ("python", "jax ", "devices", "memory", "cache dir", "programs "):
        assert word in done.stdout


@pytest.mark.parametrize(("words", "sequences"), [([], 1), (["--n", "3"], 3), (["--bundle", "b"], None)])
def test_generate_plans_for_its_prompts_unless_a_bundle_did(monkeypatch, words, sequences):
    class StartedError(Exception):
        pass

    def start(**options):
        assert options.get("max_num_seqs") == sequences
        raise StartedError

    monkeypatch.setattr("jaxengine.llm.LLM", start)
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
