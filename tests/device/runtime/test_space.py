"""What the shapes of an engine's programs follow from: page tables, slots, options of the compiler."""

from __future__ import annotations

import dataclasses

import pytest

from jaxengine.device.runtime.compiler_options import (
    NOTHING_AHEAD,
    ON_THE_TENSOR_CORE,
    PRODUCTS_APART,
    compiler_options,
)
from tests.device.runtime.test_forward import space


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


def test_forward_passes_of_few_places_get_more_of_a_chips_memory_where_that_gains_and_fill_it_for_no_other():
    more, always = "xla_tpu_scoped_vmem_limit_kib", {**PRODUCTS_APART, **ON_THE_TENSOR_CORE}
    few, many, other = ({"places": places} for places in (256, 257, None))
    assert compiler_options("tpu", chip="v6e", **few) == {**always, **NOTHING_AHEAD, more: 65_536}
    for chip in ("v5e", None):
        assert compiler_options("tpu", chip=chip, **few) == {**always, **NOTHING_AHEAD}
    for places in (many, other):
        assert compiler_options("tpu", chip="v6e", **places) == always
    assert more not in compiler_options("gpu", **few)
