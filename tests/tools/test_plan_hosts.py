"""What a plan says of several hosts, against figures that can be checked by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.target import find_target
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from jaxengine.tools.plan import plan_engine
from jaxengine.tools.plan_links import HOP_S, Links
from jaxengine.tools.plan_report import EnginePlan, lines
from tests.device.models.cases import Fixture
from tests.integration.engines import write_config
from tests.targets.tpu import available
from xla_cache import compile_programs
from xla_cache.target import target

LAYERS, WIDTH = 4, 256
SHAPE = {
    "hidden_size": WIDTH,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def planned(directory: Path, name: str, devices: int, **changes: int) -> EnginePlan:
    model = write_config(directory, **{**SHAPE, **changes})
    options = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "tensor_parallel_size": devices}
    return plan_engine(EngineConfig.from_options(model=str(model / "config.json"), **options), name)


@pytest.mark.parametrize(
    ("name", "devices", "count", "between_hosts", "busiest"),
    [
        # a mesh of 4 x 4: half of the numbers cross a link of one axis whole, of the other half a quarter does
        ("v6e-16", 16, 24, 8, 0.5 + 0.5 / 4),
        ("v6e-16", 8, 10, 2, 0.5 + 0.5 / 2),
        ("v6e-16", 4, 4, 0, 0.5 + 0.5 / 2),
        ("v6e-64", 64, 112, 48, 0.5 + 0.5 / 8),
        # a torus of 16 x 16: of a ring each link carries 15 sixteenths
        ("v6e-256", 256, 512, 256, (0.5 + 0.5 / 16) * 15 / 16),
        # a torus of 4 x 4 x 4: links of the third axis all join hosts
        ("v5p-128", 64, 192, 128, (1 + 1 / 4 + 1 / 16) / 3 * 3 / 4),
    ],
)
def test_links_of_a_slice(name: str, devices: int, count: int, between_hosts: int, busiest: float) -> None:
    links = Links.of(target(name), devices)
    assert links is not None
    assert (links.count, links.between_hosts) == (count, between_hosts)
    assert links.busiest == pytest.approx(busiest)


def test_a_sum_takes_as_long_as_its_bytes_or_its_way() -> None:
    links = Links.of(target("v6e-16"), 16)
    assert links is not None
    assert links.sum_s(10**9) == pytest.approx(0.625e9 / 100e9)
    assert links.sum_s(8) == pytest.approx(2 * (3 + 3) * HOP_S)


@pytest.mark.parametrize(
    ("name", "devices", "crossing", "hops"),
    # of each four chips in a row two send half of what they have over one link; a ring has two links there
    [("v6e-16", 16, 1.0, 6), ("v6e-64", 64, 2.0, 14), ("v6e-16", 8, 1.0, 4), ("v6e-256", 256, 2.0, 16)],
)
def test_an_exchange_takes_as_long_as_what_crosses_the_middle(
    name: str, devices: int, crossing: float, hops: int
) -> None:
    links = Links.of(target(name), devices)
    assert links is not None
    assert links.exchange_s(10**9) == pytest.approx(crossing * 1e9 / 100e9)
    assert links.exchange_s(8) == pytest.approx(hops * HOP_S)


def test_a_permutation_takes_the_links_on_its_way() -> None:
    links = Links.of(target("v6e-8"), 8)
    assert links is not None
    assert links.extents == (2, 4)
    seconds, taken = links.permutation_s(10**9, [(0, 1), (1, 0)])
    assert (seconds, taken) == (pytest.approx(1e9 / 100e9), {(0, 1), (1, 0)})
    seconds, taken = links.permutation_s(10**9, [(0, 7), (2, 4)])  # along the second axis both pass from 2 or 3 on
    assert taken == {(0, 1), (1, 3), (3, 5), (5, 7), (2, 4)}
    assert seconds == pytest.approx(1e9 / 100e9)
    seconds, _ = links.permutation_s(10**9, [(1, 7), (3, 5)])
    assert seconds == pytest.approx(2e9 / 100e9)
    assert links.permutation_s(8, [(0, 7)])[0] == pytest.approx(4 * HOP_S)


def test_a_permutation_goes_around_a_ring() -> None:
    links = Links.of(target("v6e-256"), 256)
    assert links is not None
    assert links.permutation_s(8, [(0, 15)])[1] == {(0, 15)}


def test_of_devices_that_share_a_chips_links_nothing_is_said() -> None:
    assert Links.of(target("tpu7x-16"), 16) is None


def test_a_plan_of_four_hosts(tmp_path: Path) -> None:
    plan = planned(tmp_path, "v6e-16", 16)
    hosts = plan.hosts
    assert hosts is not None
    assert (hosts.count, hosts.devices) == (4, 4)
    assert hosts.sum_bytes == 2 * LAYERS * WIDTH * 2
    assert hosts.links is not None
    assert hosts.links.bytes == 0.625 * 64 * hosts.sum_bytes
    assert hosts.links.seconds == pytest.approx(2 * LAYERS * 12 * HOP_S), "so little is bound by its way"
    # a quarter of what is split, of keys and values a head for each of its four devices, and all norms
    split = LAYERS * (2 * WIDTH * WIDTH + 3 * WIDTH * 512) + 2 * 1024 * WIDTH
    heads = LAYERS * 2 * 4 * 16 * WIDTH
    assert hosts.read_bytes == 2 * (split // 4 + heads + (2 * LAYERS + 1) * WIDTH)
    text = "\n".join(lines(plan))
    assert "24 links between chips, 8 of them between hosts: where 64 sequences decode" in text
    assert "1 x 16" in text


@pytest.mark.parametrize(("heads", "exchanged"), [(128, True), (144, False)])
def test_heads_exchanged_for_tokens_are_on_the_links(tmp_path: Path, heads: int, exchanged: bool) -> None:
    """8 heads of latent attention on each of 16 devices, or 9."""
    model = Fixture.load("deepseek-v3").config | {"num_attention_heads": heads, "num_key_value_heads": heads}
    (tmp_path / "config.json").write_text(json.dumps(model))
    options = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "tensor_parallel_size": 16, "dtype": "bfloat16"}
    hosts = plan_engine(EngineConfig.from_options(model=str(tmp_path), **options), "v6e-16").hosts
    assert hosts is not None
    assert hosts.links is not None
    layers, sent = model["num_hidden_layers"], 64 * 8 * (48 + 40) * 2
    assert hosts.links.bytes == 0.625 * 64 * hosts.sum_bytes + exchanged * layers * sent
    assert hosts.links.seconds == pytest.approx(layers * (2 * 12 + exchanged * 2 * 6) * HOP_S)
    whole = hosts.splits[0]
    assert whole.token_links_s == pytest.approx(hosts.links.seconds)
    assert whole.tokens_per_s == pytest.approx(64 / whole.token_s)


def test_stages_and_tensors_compared(tmp_path: Path) -> None:
    wide = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 16}
    wide["head_dim"] = 128
    plan = planned(tmp_path, "v6e-16", 16, **wide, num_hidden_layers=9)
    assert plan.hosts is not None
    splits = {(split.stages, split.tensor): split for split in plan.hosts.splits}
    assert list(splits) == [(1, 16), (2, 8), (4, 4)]
    whole, half, quarter = splits.values()
    # 5 of 9 layers, 3 of 9, and the vocabulary's matrices over fewer devices
    head = 1024 * 8192 * 2
    layers = whole.weight_bytes - head // 16
    assert half.weight_bytes == pytest.approx(2 * layers * 5 / 9 + head / 8, rel=1e-3)
    assert quarter.weight_bytes == pytest.approx(4 * layers * 3 / 9 + head / 4, rel=1e-3)
    # each stage reads its weights for a part of the sequences only, and sums over fewer chips for fewer rows
    assert whole.token_s < half.token_s < quarter.token_s
    assert whole.token_links_s == pytest.approx(18 * 12 * HOP_S), "64 rows are bound by their way too"
    assert half.token_links_s > quarter.token_links_s
    for split in splits.values():
        assert split.tokens_per_s == pytest.approx(64 / split.token_s)
    # all of a device's numbers are read, which takes longer than 512 products with each; places are summed up twice a layer
    numbers = 9 * (2 * 8192 * 8192 + 2 * 16 * 128 * 8192 + 3 * 8192 * 28672) / 16
    reading, sums = 2 * numbers / 1.64e12, 18 * 0.625 * 512 * 8192 * 2 / 100e9
    assert whole.prompt_tokens_per_s == pytest.approx(512 / (reading + sums), rel=0.02)


def test_one_host_has_no_such_plan(tmp_path: Path) -> None:
    assert planned(tmp_path, "v6e-4", 4).hosts is None


@pytest.mark.slow
@pytest.mark.tpu_compile
@pytest.mark.rare
def test_sums_are_those_of_the_compiled_programs(tmp_path: Path) -> None:
    """Two a layer, and one of the embeddings' parts. Where the residual stream is split each is scattered in two steps and
    gathered before the next product, and sampled rows are summed from who has them."""
    available("v6e-16")
    model = write_config(tmp_path, **{**SHAPE, "hidden_size": 2048, "head_dim": 128, "num_hidden_layers": 1})
    options = {
        "max_num_seqs": 64,
        "tensor_parallel_size": 16,
        "buckets": ("64x1", "64x8"),
        "bucket_planner": "explicit",
    }
    config = EngineConfig.from_options(model=str(model), load_format="dummy", max_num_batched_tokens=512, **options)
    space = plan_space(prepare(config, Progress(), target=find_target("v6e-16")), measure=False).space
    found = {}
    for bucket in space.grid.buckets:
        [program] = forward_programs(space, bucket)
        compiled, _ = compile_programs([program])[program.name]
        text = compiled.as_text() or ""
        found[bucket.tokens] = [
            len(re.findall(rf"bf16\[\S* {name}(?:-start)?\(", text))
            for name in ("all-reduce", "all-gather", "reduce-scatter")
        ]
    assert found == {64: [3, 0, 0], 512: [1, 2, 2 * 3]}
