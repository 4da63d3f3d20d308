"""The real TPU compiler takes the programs that draft, and writes pages in place."""

from __future__ import annotations

import os
from typing import Any

import jax.numpy as jnp
import pytest

from buckets import Bucket, Grid
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.models.drafts.registry import head_of, predictor_of, read_head_config
from jaxengine.device.models.parameters import abstract_model, merge
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.draft_space import DraftSpace
from jaxengine.device.runtime.drafting import draft_name, draft_programs
from jaxengine.device.runtime.forward_programs import forward_programs, hidden_struct
from jaxengine.device.runtime.space import ProgramSpace
from pallas_kernels.check import pool_moves
from tests.device.models.cases import Fixture
from tests.quick import rare_but
from tests.targets.tpu import devices

pytestmark = [pytest.mark.tpu_compile, pytest.mark.slow]

BUCKET = Bucket(8, 4)
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 6,
    "head_dim": 128,
    "vocab_size": 1024,
}
HEAD = {**TARGET, "num_hidden_layers": 1}
HEADS = {
    "eagle3": {**HEAD, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 512},
    "dflash": {
        **HEAD,
        "architectures": ["DFlashDraftModel"],
        "dflash_config": {"target_layer_ids": [1, 4], "mask_token_id": 3},
    },
}


@pytest.mark.parametrize(
    "step", rare_but([(m, t) for m in ("mtp", *HEADS) for t in ("v6e-1", "v5e-4")], {("eagle3", "v6e-1")}), ids=str
)
def test_a_step_with_drafts_compiles_for_a_tpu(step):
    method, target = step
    space = drafting_space(method, target)
    *_, forward = forward_programs(space, BUCKET)
    forward.lower().compile()
    hidden = hidden_struct(space)
    [program] = [
        program for program in draft_programs(space, BUCKET, hidden) if program.name == draft_name(space.layout(BUCKET))
    ]
    compiled = program.lower().compile()
    for pool in space.draft_pools:
        pages = space.kv_pages[pool]
        assert pool_moves(compiled, pages.sharding.shard_shape(pages.shape), itemsize=2) == []
    assert "f64" not in compiled.as_text()


def drafting_space(method: str, target: str) -> ProgramSpace:
    """The programs of a small model and what drafts for it, on chips as in "v5e-4"."""
    generation, count = target.split("-")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # other test processes may have libtpu loaded too
    hf_config = Fixture.load("deepseek-v3").config if method == "mtp" else TARGET
    family = resolve(hf_config)
    config = read_config(family, hf_config)
    options: dict[str, Any] = {
        "dtype": jnp.bfloat16,
        "layout": share_layers(devices(generation, count=int(count))),
        "platform": "tpu",
    }
    graph, parameters = abstract_model(family, config, **options)
    draft_class = predictor_of(family) if method == "mtp" else head_of(HEADS[method], method)
    own = config if method == "mtp" else read_head_config(draft_class, HEADS[method], config)
    draft_graph, of_draft = abstract_model(draft_class, own, **options)
    taps = merge(draft_graph, list(of_draft.values())).taps
    draft = DraftSpace(
        graph=draft_graph,
        parameters=of_draft,
        shared={path: path for path in of_draft if path.startswith(draft_class.SHARED)},
        ahead=True,
        taps=taps,
        as_draft=lambda module: module,
    )
    pages = lay_out((*graph.cache, *draft_graph.cache), max_model_len=128)
    return ProgramSpace(
        graph=graph,
        parameters=parameters,
        cache=pages,
        vocab_size=config.vocab_size,
        grid=Grid([BUCKET]),
        max_num_seqs=BUCKET.batch,
        num_drafts=3,
        taps=taps,
        draft=draft,
        page_size=16,
        num_pages=(4096,) * len(pages.pools),
        kv_dtype=jnp.bfloat16,
        max_model_len=128,
        max_logprobs=5,
        attention_backend="tpu",
        platform="tpu",
        device_layout=options["layout"],
    )
