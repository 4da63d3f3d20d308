"""How many places are kept and how many rows are sampled, by platform."""

from __future__ import annotations

import dataclasses

import pytest

from buckets import Grid
from jaxengine.device.runtime.compiler_options import ON_THE_TENSOR_CORE, PRODUCTS_APART, compiler_options
from tests.device.runtime.test_forward import space


@pytest.mark.parametrize(
    ("platform", "sequences", "drafts", "counts"),
    [
        ("cpu", 64, 0, (1, 8, 16, 32, 64)),
        ("cpu", 8, 0, (1, 8)),
        ("cpu", 5, 0, (5,)),
        ("cpu", 5, 3, (1, 8, 16, 20)),
        ("gpu", 64, 0, (8, 16, 32, 64)),
        ("tpu", 256, 0, (16, 128, 256)),
        ("tpu", 100, 0, (16, 100)),
        ("tpu", 8, 0, (16,)),
    ],
)
def test_few_row_counts_hold_whatever_is_sampled(tmp_path, platform, sequences, drafts, counts):
    changes = {"platform": platform, "max_num_seqs": sequences, "num_drafts": drafts}
    found = dataclasses.replace(space(tmp_path, {}), **changes)
    assert found.row_counts == counts
    assert found.kept == counts[-1]
    for rows in range(1, sequences * (1 + drafts) + 1):
        assert found.sampled_rows(rows) == min(count for count in counts if count >= rows)
    assert {shape.rows for shape in found.sample_shapes} == set(counts)


def test_beside_a_single_bucket_there_is_one_row_count(tmp_path):
    """As in deterministic mode."""
    planned = dataclasses.replace(space(tmp_path, {}), max_num_seqs=64)
    assert len(planned.row_counts) == 5
    assert dataclasses.replace(planned, grid=Grid(planned.grid.buckets[:1])).row_counts == (64,)


@pytest.mark.parametrize(
    ("context", "widths"),
    [
        (40_960, (640,)),
        (131_072, (2048,)),
        (163_840, (2560,)),
        (202_752, (2048, 3168)),
        (1_048_576, (2048, 16_384)),
    ],
)
def test_page_tables_are_as_wide_as_the_rows_of_a_step_need(tmp_path, context, widths):
    planned = dataclasses.replace(space(tmp_path, {}), max_model_len=context, page_size=64)
    bucket = planned.grid.buckets[0]
    assert tuple(layout.pages_per_row for layout in planned.layouts(bucket)) == widths
    assert [str(layout) for layout in planned.layouts(bucket)] == [str(bucket), f"{bucket} wide"][: len(widths)]
    for pages in (0, 1, widths[0]):
        assert planned.layout(bucket, pages).pages_per_row == widths[0]
    assert planned.layout(bucket, widths[0] + 1 if len(widths) > 1 else widths[0]).pages_per_row == widths[-1]
    assert planned.history_tokens == min(context, 131_072)


def test_every_sequence_has_a_slot_beside_the_sink(tmp_path):
    slots = space(tmp_path, {}).slots
    assert slots.last_token.shape == (5,)
    assert slots.counts.shape == (5, 256)


def test_forward_passes_of_few_places_get_more_of_a_chips_memory_where_that_gains():
    more = "xla_tpu_scoped_vmem_limit_kib"
    few, many, other = ({"places": places} for places in (256, 257, None))
    assert compiler_options("tpu", chip="v6e", **few) == {**PRODUCTS_APART, **ON_THE_TENSOR_CORE, more: 65_536}
    for chip, places in (("v6e", many), ("v6e", other), ("v5e", few), (None, few)):
        assert compiler_options("tpu", chip=chip, **places) == {**PRODUCTS_APART, **ON_THE_TENSOR_CORE}
    assert more not in compiler_options("gpu", **few)
