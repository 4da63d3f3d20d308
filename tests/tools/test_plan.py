"""A plan says what fits and what does not, and what to change, from figures that can be checked by hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from jaxengine import cli
from jaxengine.cli.ahead import config_for
from jaxengine.device.runtime.target import find_target
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.tools import plan
from jaxengine.tools.plan import plan_engine
from jaxengine.tools.plan_report import lines
from tests.device.models.cases import Fixture
from tests.integration.engines import SMALL, write_config
from tests.media_models import vlm_directory
from tests.targets.tpu import available
from tests.tools.pages import read_page
from xla_cache import Program

pytestmark = pytest.mark.usefixtures("quick_engines")

OPTIONS = {name: value for name, value in SMALL.items() if name not in ("load_format", "skip_tokenizer_init")}


def config(directory, *, changes=None, **options):
    model = write_config(directory, **{"torch_dtype": "bfloat16", **(changes or {})})
    return EngineConfig.from_options(model=str(model / "config.json"), **{**OPTIONS, **options})


def test_a_plan_for_this_machine(tmp_path):
    plan = plan_engine(config(tmp_path, buckets=("4x16", "4x1", "1x1")), "cpu", compiling="largest")
    assert plan.fits
    assert plan.workspace_measured
    assert plan.weight_bytes == plan.num_parameters * 2
    assert plan.kv_tokens == (plan.num_pages - 1) * 8
    parts = ["begin", "layer 0", "end"]
    assert [row.name for row in plan.programs][:3] == [f"forward 4x16 {part}" for part in parts]
    assert all(row.seconds is None for row in plan.programs), "nothing is published of this processor"
    # three buckets in three parts, two kinds of sampling and the logits for one, four programs that write slots
    assert len(plan.programs) == 3 * 3 + 3 + 4
    # of the forward pass the largest and the smallest bucket are compiled
    assert {row.name.split()[1] for row in plan.programs if not row.measured} == {"4x1"}
    # of 5 slots: the last token, 13 settings, 1,024 token ids and biases, a mask and a count of 256 tokens; and 4 rows of logits
    assert plan.slot_bytes == 5 * 4 * (1 + 13 + 2 * 1024 + 8 + 256) + 4 * 4 * 256
    text = "\n".join(lines(plan))
    assert "fits: " in text
    assert "sequences of 128 tokens" in text


def test_a_plan_counts_slots_of_adapters(tmp_path):
    adapted = plan_engine(config(tmp_path, enable_lora=True, max_loras=3, max_lora_rank=1), "cpu")
    # of each of two layers queries, keys, values and outputs, and gate, up and down; the least rank of slots is 8
    sizes = 2 * ((32 + 64) + 2 * (32 + 32) + (64 + 32) + 3 * (32 + 64))
    assert (adapted.adapter_rank, adapted.adapter_bytes) == (8, 3 * 8 * sizes * 2)
    assert "3 slots of adapters, of ranks up to 8" in "\n".join(lines(adapted))
    assert {"forward 4x1 layer 0", "forward 4x1 adapters layer 0", "write adapters 0"} < {
        row.name for row in adapted.programs
    }


def test_a_plan_lists_encoders_and_the_pool_that_they_write_to(tmp_path):
    folder = vlm_directory(tmp_path, "Qwen2_5_VLForConditionalGeneration")
    made = plan_engine(EngineConfig.from_options(model=str(folder), **{**OPTIONS, "max_model_len": 4096}), "v6e-1")
    assert made.media is not None
    assert made.media.modalities == ("image", "video")
    encoders = {row.tokens: row for row in made.programs if row.name.endswith(" layer 0")}
    assert [*encoders] == [patches for _, patches in made.media.shapes]
    assert all(row.seconds is not None for row in encoders.values())
    assert made.media.calls == {"begin": 1, "layer 0": 1, "layer 1": 1, "end": 1}  # one sees windows
    assert made.media.step_patches == min(8192, max(encoders))
    text = "\n".join(lines(made))
    assert "encoders (image, video): launches of" in text
    assert f"in {made.media.num_pages - 1:,} pages of 16" in text
    assert "embeddings of pictures and sounds" in text
    assert made.to_json()["media"]["pool_bytes"] == made.media.pool_bytes > 0


def test_a_plan_counts_copies_of_states_on_the_host(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(Fixture.load("lfm2").config))
    given = {**OPTIONS, "num_snapshots": 3, "num_pages": 31, "kv_offloading_size": 0.01}
    plan = plan_engine(EngineConfig.from_options(model=str(tmp_path / "config.json"), **given), "cpu")
    [pool] = plan.pools
    assert plan.host_bytes == plan.host_blocks * pool.page_bytes + plan.host_snapshots * plan.snapshot_bytes
    assert 0.9 * 0.01 * 2**30 < plan.host_bytes <= 0.01 * 2**30
    assert abs(plan.host_blocks / 31 - plan.host_snapshots / 3) < 1
    assert f"and {plan.host_snapshots:,} copies of states in" in "\n".join(lines(plan))
    assert {"states to host", "states from host"} < {row.name for row in plan.programs}


def test_a_plan_counts_pages_on_the_host(tmp_path):
    plan = plan_engine(config(tmp_path, buckets=("4x1",), kv_offloading_size=0.5), "cpu")
    [pool] = plan.pools
    assert plan.host_blocks == (1 << 29) // pool.page_bytes
    assert plan.host_bytes == plan.host_blocks * pool.page_bytes
    assert f"on the host: {plan.host_blocks:,} pages more in 0.50 GiB" in "\n".join(lines(plan))
    assert {row.name for row in plan.programs if row.name.startswith("pages")} == {
        "pages to host 0",
        "pages from host 0",
    }


def test_a_plan_counts_matrices_as_they_are_kept(tmp_path):
    plans = [plan_engine(config(tmp_path, buckets=("4x1",), quantization=name), "cpu") for name in (None, "int8")]
    plain, int8 = (plan.weight_bytes for plan in plans)
    # two layers of q, o (64 x 32), k, v (32 x 32), gate, up, down (64 x 32), at one byte and not two
    numbers, channels = 2 * (5 * 64 * 32 + 2 * 32 * 32), 2 * (64 + 32 + 2 * 32 + 64 + 64 + 32)
    assert plain - int8 == numbers - 4 * channels
    assert next(lines(plans[1])).endswith("B parameters, bfloat16, matrices in int8) on cpu: 1 x cpu")


def test_what_does_not_fit_says_what_would(tmp_path):
    huge = {
        "hidden_size": 16384,
        "intermediate_size": 65536,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 8,
    }
    plan = plan_engine(config(tmp_path, changes=huge), "v5e-1")
    assert not plan.fits
    assert "does not fit" in plan.problem
    assert "The smallest target of v5e with room for weights and a KV cache is v5e-8" in plan.problem
    assert "\n".join(lines(plan)).endswith(plan.problem)
    # what is so already, and what would not be enough, is not advised
    assert "--dtype" not in plan.problem
    assert "--max-num-seqs" not in plan.problem
    assert "--quantization int8 or int4" in plan.problem


def test_the_first_answer_compiles_nothing(tmp_path, monkeypatch):
    for module in ("jaxengine.tools.plan", "jaxengine.startup.workspace"):
        monkeypatch.setattr(f"{module}.build_programs", lambda *arguments, **options: pytest.fail("compiled"))
    plan = plan_engine(config(tmp_path, buckets=("4x16", "4x1"), memory_utilization=0.001), "v6e-1")
    assert plan.fits
    assert plan.workspace_bytes > 0
    assert not plan.workspace_measured
    # two layers' weights at 1.64 TB/s, by hand: q, o, gate, up, down of 64 x 32, and k, v of 32 x 32
    layer = 5 * 64 * 32 + 2 * 32 * 32
    assert plan.programs[0].limited_by == "memory"
    assert plan.programs[0].seconds == pytest.approx(2 * 2 * layer / 1.64e12, rel=0.02)
    text = "\n".join(lines(plan))
    assert "--compile measures" in text
    assert "temp MB" not in text


WITHOUT_COMPILERS = """
import sys
sys.modules.update(dict.fromkeys(("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")))  # as if they were not installed
from jaxengine import cli
from jaxengine.cli.ahead import config_for
sys.exit(cli.main(sys.argv[1:]))
"""


def without_compilers(*words: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process that cannot import a compiler for an accelerator."""
    command = [sys.executable, "-c", WITHOUT_COMPILERS, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("target", [pytest.param("v6e-4", marks=pytest.mark.slow), "h200"])
def test_a_plan_needs_no_compiler(tmp_path, target):
    chosen = config(tmp_path, buckets=("4x16", "4x1"), tensor_parallel_size=4 if target == "v6e-4" else 1)
    words = [f"--{name.replace('_', '-')}={','.join(v) if isinstance(v, tuple) else v}" for name, v in OPTIONS.items()]
    asked = ["plan", chosen.model.model, "--target", target, *words, "--buckets=4x16,4x1"]
    done = without_compilers(*asked, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(plan_engine(chosen, target).to_json()))
    refused = without_compilers(*asked, "--compile")
    assert refused.returncode != 0
    assert "to compile for" in refused.stderr
    assert "pip install 'jaxengine[" in refused.stderr


@pytest.mark.tpu_compile
def test_a_plan_is_the_same_with_the_compilers_devices(tmp_path, monkeypatch):
    available("v6e-8")
    chosen = config(tmp_path, changes={"num_key_value_heads": 8}, tensor_parallel_size=8)
    described = plan_engine(chosen, "v6e-8")
    monkeypatch.setattr(plan, "find_target", lambda name, compiles: find_target(name))
    assert plan_engine(chosen, "v6e-8") == described


@pytest.mark.slow
def test_nothing_is_compiled_twice(tmp_path, monkeypatch):
    engine = config(tmp_path, buckets=("4x16", "4x1", "1x1"), xla_cache_path=str(tmp_path / "store"))
    first = plan_engine(engine, "cpu", compiling="largest")
    monkeypatch.setattr(Program, "lower", lambda program: pytest.fail(f"{program.name} was traced again"))
    assert plan_engine(engine, "cpu", compiling="largest").programs == first.programs


@pytest.mark.tpu_compile
def test_a_plan_for_a_tpu(tmp_path):
    available("v6e-4")
    changes = {"head_dim": 128, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 4}
    plan = plan_engine(config(tmp_path, changes=changes, tensor_parallel_size=4), "v6e-4", compiling="all")
    assert plan.fits
    assert plan.num_devices == 4
    forwards = [row for row in plan.programs if row.name.startswith("forward")]
    assert all(row.measured and row.cycles and row.code_bytes for row in forwards)
    # the compiler's cycles, which are more than a quarter of the layers' weights takes at 1.64 TB/s
    layer = 4 * 512 * 512 + 3 * 512 * 1024
    assert forwards[0].limited_by == "estimate"
    assert forwards[0].seconds == pytest.approx(forwards[0].cycles / 1.75e9)
    assert forwards[0].seconds > 2 * 2 * layer / 4 / 1.64e12
    values = plan.to_json()
    assert values["kv_tokens"] == plan.kv_tokens
    json.dumps(values)


def test_the_command_prints_json(tmp_path, capsys):
    model = write_config(tmp_path)
    words = [f"--{name.replace('_', '-')}" for name in ("max_num_seqs", "max_num_batched_tokens", "page_size")]
    values = [word for pair in zip(words, ("4", "64", "8"), strict=True) for word in pair]
    status = cli.main(
        [
            "plan",
            str(model),
            "--target",
            "cpu",
            "--bucket-planner",
            "explicit",
            "--buckets",
            "4x16,4x1",
            *values,
            "--json",
            "--html",
            str(tmp_path / "plan.html"),
        ]
    )
    assert status == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] is True
    page = read_page(tmp_path / "plan.html")
    assert page.row("kv_tokens")[1] == f"{plan['kv_tokens']:,}"
    assert page.row("write settings")
    assert {row["name"] for row in plan["programs"]} >= {
        "forward 4x16 layer 0",
        "forward 4x1 layer 0",
        "write settings",
    }


def test_a_plan_of_replicas_is_of_one_of_them(tmp_path):
    whole, part = (plan_engine(config(tmp_path, buckets=("4x1",), data_parallel_size=size), "cpu") for size in (1, 2))
    assert (whole.num_replicas, part.num_replicas) == (1, 2)
    assert part.device_bytes <= whole.device_bytes // 2 + whole.device_bytes // 8
    assert list(lines(part))[1] == "2 replicas, each with as many; what follows is of one"
    with pytest.raises(ConfigError, match=r"2 replicas of 4 devices .* need 8 devices, and target v6e-4 has 4"):
        plan_engine(config(tmp_path, changes={"num_key_value_heads": 4}, tensor_parallel_size=4, dp=2), "v6e-4")


def test_a_target_is_shared_by_replicas():
    for words, size in ([], 8), (["--dp", "4"], 2), (["-dp", "4", "-tp", "1"], 1), (["-dp", "16"], 1):
        parser = cli._parser()
        namespace = parser.parse_args(["plan", "model", "--target", "v5e-8", *words])
        assert config_for(namespace).parallel.tensor_parallel_size == size
