"""Engines with a directory for pages: they find what another has computed, and no fault of the disk changes a token."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine import LLM, SamplingParams
from jaxengine.device.tiers.disk.directory import BlockDirectory
from jaxengine.errors import ConfigError
from jaxengine.host.scheduler import arrivals, fetches
from tests.device.models.cases import Fixture
from tests.device.tiers.disk.stores import wait_for
from tests.integration.engines import SMALL, greedy, run, start, token_ids, write_checkpoint, write_config
from tests.quick import rare_but

pytestmark = pytest.mark.usefixtures("quick_engines")

PAGE = SMALL["page_size"]
PROMPTS = [[3 + (17 * number + 5 * i) % 90 for i in range(length)] for number, length in enumerate((70, 50, 41, 30))]
PAGES = sum(len(prompt) // PAGE for prompt in PROMPTS)
OFFLOADING = {"kv_offloading_size": 0.001}
OUTPUT = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_config(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model):
    with closing(start(model)) as engine:
        return token_ids(run(engine, PROMPTS, greedy(OUTPUT)))


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """What is slow here is the machine and not the disk."""
    for name in ("ANSWER_S", "PATIENCE_S"):
        monkeypatch.setattr(fetches, name, 300.0)
    monkeypatch.setattr(arrivals, "PATIENCE_S", 300.0)


def engine_on(model, pages, **options):
    return start(model, **{**OFFLOADING, "kv_offloading_directory": str(pages), **options})


def files(pages):
    return [file.path for file in BlockDirectory.open(pages).files()]


def fill(model, pages):
    """Let an engine compute the prompts and write their pages."""
    with closing(engine_on(model, pages)) as engine:
        run(engine, PROMPTS, greedy(OUTPUT))
        wait_for(lambda: len(files(pages)) >= PAGES)


def num_cached(outputs):
    return [output.num_cached_tokens for output in outputs]


FOUND = [(len(prompt) - 1) // PAGE * PAGE for prompt in PROMPTS]


def test_a_restart_finds_its_prefixes(model, expected, tmp_path):
    """The directory is that of vLLM's connector too."""
    fill(model, tmp_path)
    extra = {"shared_storage_path": str(tmp_path)}
    names = {"kv_connector": "SharedStorageConnector", "kv_role": "kv_consumer", "kv_connector_extra_config": extra}
    with closing(start(model, kv_transfer_config=names)) as engine:
        outputs = run(engine, PROMPTS, greedy(OUTPUT))
        assert token_ids(outputs) == expected
        assert num_cached(outputs) == FOUND
        engine.core.check_idle()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("gemma3-biases-untied-linear", {}),
        pytest.param("granite-hybrid", {"mamba_block_size": PAGE}, marks=pytest.mark.rare),
    ],
    ids=["windows", "states"],
)
def test_windows_and_states(case, options, tmp_path):
    """Several groups of pages, and copies of states beside pages."""
    config = Fixture.load(case).config
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    model, pages = tmp_path / "model", tmp_path / "pages"
    with closing(start(model)) as engine:
        wanted = token_ids(run(engine, PROMPTS, greedy(OUTPUT)))
    with closing(engine_on(model, pages, **options)) as engine:
        assert token_ids(run(engine, PROMPTS, greedy(OUTPUT))) == wanted
        engine.core.check_idle()
    with closing(engine_on(model, pages, **options)) as engine:
        outputs = run(engine, PROMPTS, greedy(OUTPUT))
        assert token_ids(outputs) == wanted
        engine.core.check_idle()
        assert sum(num_cached(outputs)) > 0


@pytest.mark.slow
def test_two_engines_share_a_directory(model, expected, tmp_path):
    with closing(engine_on(model, tmp_path)) as first, closing(engine_on(model, tmp_path)) as second:
        for engine, other in ((first, second), (second, first)):
            prompts = [[*prompt, 3 + (engine is first)] * 1 for prompt in PROMPTS]
            wanted = token_ids(run(engine, prompts, greedy(OUTPUT)))
            wait_for(lambda: len(files(tmp_path)) >= PAGES)
            outputs = run(other, prompts, greedy(OUTPUT))
            assert token_ids(outputs) == wanted
            assert min(num_cached(outputs)) > 0
        assert token_ids(run(second, PROMPTS, greedy(OUTPUT))) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", rare_but([{"seed": 1}, {"kv_cache_dtype": "bfloat16"}, {"page_size": 16}], [{"seed": 1}]), ids=str
)
def test_another_model_finds_nothing(model, tmp_path, change):
    fill(model, tmp_path)
    with closing(start(model, **change)) as engine:
        wanted = token_ids(run(engine, PROMPTS, greedy(OUTPUT)))
    with closing(engine_on(model, tmp_path, **change)) as engine:
        outputs = run(engine, PROMPTS, greedy(OUTPUT))
        assert token_ids(outputs) == wanted
        assert num_cached(outputs) == [0] * len(PROMPTS)


@pytest.mark.slow
def test_other_weights_in_place_have_pages_of_their_own(tmp_path):
    """They find those of an engine that was started with them, and none of the weights before."""
    first, second, pages = (tmp_path / name for name in ("first", "second", "pages"))
    write_checkpoint(first)
    shutil.copytree(first, second)
    tensors = load_file(first / "model.safetensors")
    save_file(
        {name: np.ascontiguousarray(array[::-1]) for name, array in tensors.items()}, second / "model.safetensors"
    )
    stored = {"load_format": "auto"}
    with closing(engine_on(first, pages, **stored)) as engine, LLM.from_engine(engine) as llm:
        run(engine, PROMPTS, greedy(OUTPUT))
        wait_for(lambda: len(files(pages)) >= PAGES)
        llm.update_weights(second)
        outputs = run(engine, PROMPTS, greedy(OUTPUT))
        assert num_cached(outputs) == [0] * len(PROMPTS)
        wait_for(lambda: len(files(pages)) >= 2 * PAGES)
    with closing(engine_on(second, pages, **stored)) as engine:
        found = run(engine, PROMPTS, greedy(OUTPUT))
        assert num_cached(found) == FOUND
    with closing(start(second, **stored)) as engine:
        assert token_ids(run(engine, PROMPTS, greedy(OUTPUT))) == token_ids(outputs) == token_ids(found)


@pytest.mark.slow
def test_damaged_files_are_computed_again(model, expected, tmp_path, caplog):
    fill(model, tmp_path)
    draw = np.random.default_rng(0)
    for number, path in enumerate(sorted(files(tmp_path))):
        data = np.fromfile(path, np.uint8)
        if number % 3 == 0:
            data[draw.integers(len(data))] ^= 1 << draw.integers(8)
        elif number % 3 == 1:
            data = data[: draw.integers(len(data))]
        data.tofile(path)
    with closing(engine_on(model, tmp_path)) as engine:
        outputs = run(engine, PROMPTS, greedy(OUTPUT))
        assert token_ids(outputs) == expected
        assert sum(num_cached(outputs)) < sum(FOUND)
        engine.core.check_idle()
    assert "damaged" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(("call", "fault"), [("writev", errno.ENOSPC), ("preadv", errno.EIO)])
def test_a_failing_disk_costs_hits(model, expected, tmp_path, monkeypatch, call, fault):
    fill(model, tmp_path)

    def fails(*args):
        raise OSError(fault, os.strerror(fault))

    with closing(engine_on(model, tmp_path)) as engine, monkeypatch.context() as broken:
        broken.setattr(os, call, fails)
        for _ in range(2):
            assert token_ids(run(engine, PROMPTS, greedy(OUTPUT))) == expected
        engine.core.check_idle()


@pytest.mark.slow
def test_a_directory_that_cannot_be_made_is_no_reason_not_to_start(model, expected, tmp_path, monkeypatch, caplog):
    def fails(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "mkdir", fails)
        engine = engine_on(model, tmp_path / "pages")
    with closing(engine):
        assert token_ids(run(engine, PROMPTS, greedy(OUTPUT))) == expected
    assert "KV pages are not kept" in caplog.text


def test_what_is_no_directory_is_refused(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not a directory"):
        engine_on(model, tmp_path / "file")


WORK = """
import sys
from tests.integration.test_disk import work
work(*sys.argv[1:])
"""


def work(model: str, pages: str) -> None:
    """Compute other prompts again and again, in a process that is killed."""
    with LLM(model=model, kv_offloading_directory=pages, **{**SMALL, **OFFLOADING}) as llm:
        for number in range(10_000):
            prompts = [{"prompt_token_ids": [3 + number % 80, *prompt]} for prompt in PROMPTS]
            llm.generate(prompts, SamplingParams(max_tokens=2, temperature=0), use_tqdm=False)
            print(number, flush=True)


@pytest.mark.slow
def test_an_engine_that_is_killed_while_it_writes_leaves_no_wrong_page(model, tmp_path):
    worker = subprocess.Popen([sys.executable, "-c", WORK, model, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: len(files(tmp_path)) > 40)
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
    prompts = [[3 + number, *prompt] for number in range(3) for prompt in PROMPTS]
    with closing(start(model)) as engine:
        wanted = token_ids(run(engine, prompts, greedy(OUTPUT)))
    with closing(engine_on(model, tmp_path)) as engine:
        outputs = run(engine, prompts, greedy(OUTPUT))
        assert token_ids(outputs) == wanted
        assert sum(num_cached(outputs)) > 0
        engine.core.check_idle()
