"""How pipeline stages and tensor parallelism compare for a model on a slice: the least time of steps, by the chip's figures."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from jaxengine.device.layers.keeps import Paged
from jaxengine.device.layers.latent_attention import LatentShape
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import ModelPlan, plan_model
from jaxengine.startup.roofline import Roofline
from jaxengine.tools.plan_links import Links

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Split:
    """A model over `stages` of `tensor` devices each, every stage at work on rows of its own.

    `weight_bytes` are those of one device. To decode, all sequences are shared among the stages: each gets a token every
    `token_s`, of which `token_links_s` pass in sums and exchanges between the devices of a stage, and `tokens_per_s` come in
    all. Of prompts, whose steps are the largest, `prompt_tokens_per_s` are read.
    """

    stages: int
    tensor: int
    weight_bytes: int
    token_s: float
    token_links_s: float
    tokens_per_s: float
    prompt_tokens_per_s: float


def sum_bytes(model: ModelPlan) -> int:
    """What devices sum up for each place of a step: the residual stream, after attention and after the feed-forward."""
    return 2 * model.config.num_layers * model.config.hidden_size * model.dtype.itemsize


def exchanged_bytes(model: ModelPlan, rows: int) -> list[int]:
    """Of each exchange of heads for tokens, and of each way back, what a device has for others where so many rows decode."""
    shape = getattr(model.config, "attention", None)
    if not isinstance(shape, LatentShape) or not shape.exchanges(rows, model.layout, platform=model.platform):
        return []
    layers = sum(Paged(1, shape.latent, 0) in keeps for keeps in model.graph.cache)
    numbers = rows * shape.num_heads // model.layout.shards("heads") * model.dtype.itemsize
    return [numbers * shape.latent, numbers * shape.rank] * layers


def compare_splits(config: EngineConfig, model: ModelPlan, *, max_num_seqs: int, max_tokens: int) -> list[Split]:
    """As many stages as hosts or fewer, as far as devices and heads divide; the first is the model without stages. None are
    compared where stages are asked for.

    Stages have whole layers, and the one with most is waited for. A layer waits for its sums. What stages hand on is less than
    one layer's sum, and is left out.
    """
    target, devices = model.target, len(model.devices)
    found: list[Split] = []
    if model.pipeline:
        return found
    for stages in (count for count in range(1, target.num_hosts + 1) if target.num_hosts % count == 0):
        links = Links.of(target, devices // stages) if stages < devices else None
        part = model if stages == 1 else _part(config, model, devices // stages)
        if part is None or links is None or target.chip is None or stages > model.config.num_layers:
            continue
        found.append(_split(part, links, stages, max_num_seqs=max_num_seqs, max_tokens=max_tokens))
    return found


def lines(splits: Sequence[Split], *, max_num_seqs: int) -> Iterator[str]:
    """A table as text, line by line."""
    yield f"{'stages x tensor':<16} {'weights':>10} {'a token every':>14} {'in links':>9} {'tokens/s':>9} {'of prompts/s':>13}"
    for one in splits:
        yield (
            f"{f'{one.stages} x {one.tensor}':<16} {one.weight_bytes / GIB:>6.2f} GiB {one.token_s * 1e3:>11.1f} ms "
            f"{one.token_links_s * 1e3:>6.1f} ms {one.tokens_per_s:>9,.0f} {one.prompt_tokens_per_s:>13,.0f}"
        )
    yield (
        f"at least, with {max_num_seqs} sequences that decode, or steps full of prompts: weights, products and what devices "
        "send each other, one after the other; keys and values come on top"
    )


def _part(config: EngineConfig, model: ModelPlan, tensor: int) -> ModelPlan | None:
    """The model on so few devices, all of its layers; None where it cannot be divided so."""
    parallel = replace(config.parallel, tensor_parallel_size=tensor)
    with _silence():
        try:
            return plan_model(replace(config, parallel=parallel), weights=False, target=model.target)
        except ConfigError:
            return None


def _split(part: ModelPlan, links: Links, stages: int, *, max_num_seqs: int, max_tokens: int) -> Split:
    assert part.target.chip is not None
    roofline, layers = part.roofline(part.target.chip), part.config.num_layers
    share = math.ceil(layers / stages) / layers
    decoding = math.ceil(max_num_seqs / stages)
    exchanges = share * sum(map(links.exchange_s, exchanged_bytes(part, decoding)))
    token, token_links = (
        seconds + exchanges for seconds in _stage_s(part, roofline, links, share, decoding, rows=max_num_seqs)
    )
    prompt, _ = _stage_s(part, roofline, links, share, max_tokens, rows=max_num_seqs)
    return Split(
        stages=stages,
        tensor=len(part.devices),
        weight_bytes=round(share * (roofline.layer_bytes + roofline.expert_bytes)) + roofline.head_bytes,
        token_s=stages * token,
        token_links_s=stages * token_links,
        tokens_per_s=max_num_seqs / (stages * token),
        prompt_tokens_per_s=max_tokens / prompt,
    )


def _stage_s(
    part: ModelPlan, roofline: Roofline, links: Links, share: float, tokens: int, *, rows: int
) -> tuple[float, float]:
    """Seconds of the stage with most layers, of which `rows` or fewer are sampled behind; and those of its sums."""
    layers = share * roofline.floor(tokens, sampling=False)[0]
    head = roofline.floor(min(tokens, rows), sampling=True)[0]
    num_sums = 2 * part.config.num_layers
    sums = share * num_sums * links.sum_s(tokens * sum_bytes(part) // num_sums)
    return layers + head + sums, sums


@contextmanager
def _silence() -> Iterator[None]:
    """What is said of a model was said of the whole of it."""
    logger = logging.getLogger("jaxengine")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
