"""What a launch lasts on a device that is not here.

A launch reads all weights or computes all token places, whichever takes longer; beside that attention reads the contexts of
sequences that decode and computes those of prompts, and the head reads its matrix and computes the sampled rows.

The figures are published ones (`xla_cache.CHIPS`) times the share of them that XLA's and Mosaic's own estimates of our
programs reach: weights stream at 86% of the bandwidth; matrix products of 2,048 tokens run at 60% of a v6e's peak and 96% of
a v5e's; attention of a decoding row reads at 98%; attention of prompts reaches 22.8, 31 and 37% of the peak with tiles of 64,
128 and 512 places. Between four v5e, norms take 15% beside the products, and two all-reduces a layer last as long as their
bytes on two links of 50 GB/s, 8 microseconds at least: these two are arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from buckets import Bucket, estimated
from jaxengine.bench.clock import Launch
from xla_cache.chips import CHIPS

LEAST_SAMPLED = 8
"""Sampled rows are padded to powers of two from here on."""
SAMPLER_PASSES = 4
"""How often sampling reads or writes a row of float32 logits, about."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Seconds of each part of a launch, the tokens that the KV cache holds, and the platform whose defaults apply."""

    name: str
    platform: str
    kv_tokens: int
    launch_s: float
    floor_s: float
    token_s: float
    context_s: float
    tile: int
    pair_s: Mapping[int, float]
    head_s: float
    sample_s: float

    def costs(self, buckets: Iterable[Bucket]) -> dict[Bucket, float]:
        """The table that the engine estimates before anything ran: it knows no contexts."""
        return estimated(buckets, floor_s=self.floor_s, token_s=self.token_s, launch_s=self.launch_s + self.head_s)

    def seconds(self, launches: Iterable[Launch], sampled: int) -> float:
        """How long the launches of a step last, and the sampling of `sampled` rows."""
        total = 0.0
        for launch in launches:
            total += self.launch_s + max(self.floor_s, launch.places * self.token_s) + launch.context * self.context_s
            if launch.prompts:
                tile = launch.tile or self.tile
                pair_s = self.pair_s[tile]
                for start, count in launch.prompts:
                    tiles = -(-count // tile)
                    # Tile k attends to start + (k + 1) * tile positions, the last one to fewer.
                    reached = tiles * start + tile * tiles * (tiles - 1) // 2 + count
                    total += max(reached * tile * pair_s, reached * self.context_s)
        if sampled:
            total += self.head_s + max(LEAST_SAMPLED, 1 << (sampled - 1).bit_length()) * self.sample_s
        return total


def _llama(name: str, chip: str, chips: int, *, kv_tokens: int, products: float) -> Target:
    """Llama-3.1-8B in bfloat16: 32 layers of 218.1M parameters, 32 heads and 8 KV heads of 128, a vocabulary of 128,256."""
    layers, hidden, head = 32, 4096, 128_256 * 4096
    parameters = layers * 218_112_000
    bandwidth, peak = CHIPS[chip].memory_bandwidth * chips, CHIPS[chip].matrix_flops * chips
    floor_s, token_s = 2 * parameters / bandwidth / 0.86, 2 * parameters / peak / products
    if chips > 1:
        reduced = 2 * layers * 2 * (chips - 1) / chips * hidden * 2 / (2 * 50e9)
        floor_s, token_s = floor_s + 2 * layers * 8e-6, token_s * 1.15 + reduced
    pair = 4 * 32 * 128 * layers / peak
    return Target(
        name=name,
        platform="tpu",
        kv_tokens=kv_tokens,
        launch_s=0.1e-3,
        floor_s=floor_s,
        token_s=token_s,
        context_s=2 * 8 * 128 * 2 * layers / bandwidth / 0.98,
        tile=128,
        pair_s={16: pair / 0.057, 64: pair / 0.228, 128: pair / 0.31, 512: pair / 0.37},
        head_s=2 * head / bandwidth / 0.86,
        sample_s=2 * head / peak / products + SAMPLER_PASSES * 4 * 128_256 / bandwidth,
    )


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        _llama("v6e", "v6e", 1, kv_tokens=101_632, products=0.60),
        _llama("v5e-4", "v5e", 4, kv_tokens=329_472, products=0.96),
        # Qwen3-0.6B in bfloat16 on two cores: products reach 700 GFLOP/s, and weights are read at 30 GB/s.
        Target(
            name="cpu",
            platform="cpu",
            kv_tokens=40_000,
            launch_s=2e-3,
            floor_s=30e-3,
            token_s=1.26e-3,
            context_s=3e-6,
            tile=16,
            pair_s={16: 1e-6, 64: 1e-6},
            head_s=11e-3,
            sample_s=0.5e-3,
        ),
    )
}
