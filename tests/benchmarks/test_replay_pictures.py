"""The replay with pictures: each is encoded, and readers of texts wait for it."""

from __future__ import annotations

import pytest

from benchmarks import replay_pictures
from jaxengine.bench import traffic


@pytest.mark.slow
def test_every_picture_is_encoded_and_costs_time() -> None:
    arrivals = traffic.made(40, 64, 8)
    shown = replay_pictures.draw(40)
    free, paid = (
        replay_pictures.run(arrivals, step=4, least=256, budget=budget, speed=1.0, host_s=1e-3)
        for budget in (0, 16_384)
    )
    assert free["pictures"] == paid["pictures"] == sum(map(len, shown)) > 0
    distinct = {picture for pictures in shown for picture in pictures}
    assert paid["patches"] == sum(patches for _, patches in distinct)
    assert paid["device_s"] >= free["device_s"]
    assert paid["text_between_ms"]["p99.9"] >= free["text_between_ms"]["p99.9"]


@pytest.mark.slow
def test_closer_shapes_pad_less() -> None:
    arrivals = traffic.made(40, 64, 8)
    wide, close = (
        replay_pictures.run(arrivals, step=step, least=256, budget=4096, speed=1.0, host_s=1e-3) for step in (4, 2)
    )
    assert close["padded_patches"] < wide["padded_patches"]
