"""What an engine has for pictures and sounds: the shapes of its encoder's launches, and a pool of embeddings."""

from __future__ import annotations

import jax.numpy as jnp

from buckets import Bucket
from jaxengine.contract.media import MediaFacts
from jaxengine.device.layers.cross_attention import CrossShape
from jaxengine.device.runtime.media_space import MediaSpace
from jaxengine.errors import ConfigError
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan

PAGE_SIZE = 16
"""Embeddings of a page: a picture has some hundreds."""
POOL_EMBEDDINGS = 32_768
"""Of a pool, where prompts may be longer: those of some thirty pictures of a megapixel, a gigabyte of Qwen3-VL-8B's."""
SPARE_PAGES = 64
"""As many items of a prompt may each leave a page that is not full."""
MOST_PATCHES = {"cpu": 4096, "gpu": 16_384, "tpu": 16_384}
"""Of a launch, where items can be made smaller: a picture of about one megapixel, or four."""
LEAST_PATCHES = {"cpu": 256, "gpu": 512, "tpu": 512}
STEP = {"cpu": 4, "gpu": 2, "tpu": 2}
"""From one shape of launches to the next. Where they are close little is padded, and readers of texts wait less
(benchmarks/replay_pictures); a CPU has few cores to compile more of them with."""
MOST_SHAPES = {"cpu": 4, "gpu": 6, "tpu": 6}
MOST_ROWS = 256
MOST_CROSSED_BYTES = {"cpu": 1 << 30, "gpu": 8 << 30, "tpu": 8 << 30}
"""Of what layers read of sounds: 33 of Whisper-large-v3's, in bfloat16."""
LEAST_SOUNDS = 2
"""One is read while the next one is encoded."""


def plan_encoder(model: ModelPlan, limits: EngineLimits, *, takes_given: bool = False) -> MediaSpace | None:
    """Shapes of launches and the size of the pool; None for a model that takes texts only.

    Raises:
        ConfigError: the tokens of an item see each other, and a step cannot take them all; or embeddings are to be given to a
            model whose layers read what an encoder wrote.
    """
    traits = model.graph.media
    if traits is None:
        return None
    buckets = encoder_buckets(model, limits)
    largest = traits.config.num_embeddings(buckets[0].tokens, buckets[0].batch)
    embeddings = max(min(limits.max_model_len, POOL_EMBEDDINGS), largest)
    if traits.crossed is not None:
        if takes_given:
            raise ConfigError(
                "enable_mm_embeds: this model has keys and values of sounds, and no embeddings to be given"
            )
        embeddings = _sounds_read(traits.crossed, model, limits) * traits.crossed.places
    of_one = max(min(of.embeddings // of.rows, largest) for of in model.items.values())
    if traits.sight and of_one > limits.max_num_batched_tokens:
        raise ConfigError(
            f"max_num_batched_tokens ({limits.max_num_batched_tokens}) is less than the {of_one} tokens of a picture, which see "
            "each other and so are computed in one step; raise it, or start with --limit-mm-per-prompt '{\"image\": 0}'"
        )
    return MediaSpace(
        traits=traits,
        buckets=buckets,
        num_pages=1 + -(-embeddings // PAGE_SIZE) + SPARE_PAGES,
        page_size=PAGE_SIZE,
        takes_given=takes_given,
    )


def _sounds_read(crossed: CrossShape, model: ModelPlan, limits: EngineLimits) -> int:
    """How many sounds decoding may read at a time: as many as sequences run, if they are not too much for the device."""
    itemsize = jnp.dtype(model.dtype).itemsize
    of_one = crossed.num_layers * crossed.places * 2 * crossed.num_heads * crossed.head_dim * itemsize
    return min(limits.max_num_seqs, max(LEAST_SOUNDS, MOST_CROSSED_BYTES[model.platform] // of_one))


def encoder_buckets(model: ModelPlan, limits: EngineLimits) -> tuple[Bucket, ...]:
    """The shapes of launches in rows and patches, the largest first.

    Items of one size make shapes of 1, about 2, 4, ... of them. Of those that can be made smaller the largest launch is as large
    as the largest item, but no larger than the platform's most, or than what prompts have room for.
    """
    assert model.graph.media is not None
    block, cap = model.graph.media.config.block, MOST_PATCHES[model.platform]
    step, least, most = STEP[model.platform], LEAST_PATCHES[model.platform], MOST_SHAPES[model.platform]
    free = [of.patches for of in model.items.values() if of.resizable]
    fixed = [of for of in model.items.values() if not of.resizable]
    unit = max((of.patches // of.rows for of in fixed), default=0)
    rows = max(of.rows for of in model.items.values())
    if unit:
        largest = max(max(of.patches for of in fixed), cap // unit * unit)
        sizes = {unit * max(1, round(largest / unit / step**power)) for power in range(most)}
        return tuple(Bucket(size // unit, unit) for size in sorted(sizes, reverse=True))
    largest = min(max(free), cap, max(least, limits.max_model_len * block))
    found: list[Bucket] = []
    size = _power_of_two(largest)
    while size >= least or not found:
        batch = min(_power_of_two(max(size // 64, rows if not found else 1)), MOST_ROWS, size)
        found.append(Bucket(batch, size // batch))
        size //= step
    return tuple(found)


def media_facts(space: MediaSpace | None) -> MediaFacts | None:
    """What the other half and the front are told of it."""
    if space is None:
        return None
    traits = space.traits
    return MediaFacts(
        modalities=traits.modalities,
        buckets=space.buckets,
        num_pages=space.num_pages,
        page_size=space.page_size,
        sight=traits.sight,
        crosses=traits.crossed is not None,
        aligns=traits.alignment is not None,
        num_axes=traits.num_axes,
        given_width=traits.width if space.takes_given else 0,
    )


def _power_of_two(number: int) -> int:
    """The least that is no less."""
    return 1 << (number - 1).bit_length()
