"""What a model that sees or hears has for it beside its programs, as `jaxengine plan` says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxengine.device.runtime import memory
from jaxengine.device.runtime.encoder_programs import encoder_stages
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.host.media.launches import patches_of_step
from jaxengine.options.config import EngineConfig
from jaxengine.startup.encoder_plan import media_facts
from jaxengine.startup.roofline import Roofline, Speed

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class MediaPlan:
    """Launches of encoders in `shapes` of rows (frames) and patches, at most `step_patches` before a step, and the pool that they
    write to: `num_pages` of `page_size` embeddings with the sink, of each device `pool_bytes`. A launch calls each program of its
    shape so many times (`calls`, by what follows the shape in their names)."""

    modalities: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    calls: Mapping[str, int]
    step_patches: int
    num_pages: int
    page_size: int
    pool_bytes: int


def plan_media(space: ProgramSpace, config: EngineConfig) -> MediaPlan | None:
    """None of a model that takes texts only."""
    facts = media_facts(space.media)
    if facts is None:
        return None
    return MediaPlan(
        modalities=tuple(map(str, facts.modalities)),
        shapes=tuple((bucket.batch, bucket.tokens) for bucket in facts.buckets),
        calls=Counter(stage.name for stage in encoder_stages(space)),
        step_patches=patches_of_step(config.media.max_num_encoder_tokens, facts),
        num_pages=facts.num_pages,
        page_size=facts.page_size,
        pool_bytes=memory.slot_bytes(space.encoded),
    )


def encoder_rooflines(space: ProgramSpace, speed: Speed, *, num_devices: int) -> dict[str, Roofline]:
    """The least time of an encoder's layers by their weights, which each patch is multiplied with, by the kind of program."""
    found = {}
    for stage in () if space.media is None else encoder_stages(space):
        if stage.layer is not None:
            structs = dict(zip(map(str, stage.parameters), space.structs(stage.parameters), strict=True))
            found[f"encode {stage.name}"] = Roofline.of(structs, speed, num_devices=num_devices)
    return found


def lines(media: MediaPlan) -> Iterator[str]:
    """As text."""
    shapes = ", ".join(f"{patches:,}" for _, patches in media.shapes)
    yield f"encoders ({', '.join(media.modalities)}): launches of {shapes} patches, at most {media.step_patches:,} before a step"
    yield f"a launch: {', '.join(f'{name} x {count}' if count > 1 else name for name, count in media.calls.items())}"
    yield (
        f"pool: {(media.num_pages - 1) * media.page_size:,} embeddings in {media.num_pages - 1:,} pages of {media.page_size}, "
        f"{media.pool_bytes / GIB:.2f} GiB"
    )
