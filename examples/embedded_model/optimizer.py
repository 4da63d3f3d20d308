"""One training step: Muon for the kernels, Adam for the rest, with the learning rate given by the caller."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax
from optax import contrib

from examples.embedded_model.model import ModelConfig, Params, loss

ADAM_SHARE = 0.3  # of the learning rate; an embedding that moves faster keeps the heads from learning to copy
Step = Callable[[Params, Any, Any, Any, float], tuple[Params, Any, jax.Array]]


def _dimensions(params: Params) -> dict[str, contrib.MuonDimensionNumbers | None]:
    """Muon takes the stacked kernels `[L, out, in]`; embedding and norms go to Adam."""
    kernel = contrib.MuonDimensionNumbers(reduction_axis=2, output_axis=1)
    return {name: kernel if "proj" in name else None for name in params}


def make_optimizer(*, weight_decay: float) -> optax.GradientTransformation:
    """The optimizer at a learning rate of one; steps are scaled afterwards."""
    muon = contrib.muon(
        1.0,
        beta=0.95,
        weight_decay=weight_decay,
        adam_b2=0.98,
        adam_learning_rate=ADAM_SHARE,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=_dimensions,
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def make_step(optimizer: optax.GradientTransformation, config: ModelConfig) -> Step:
    """The compiled step (params, state, tokens, segments, rate) -> (params, state, loss); the first two are donated."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, tokens, segments, rate):
        value, grads = jax.value_and_grad(loss)(params, tokens, segments, config)
        updates, state = optimizer.update(grads, state, params)
        params = jax.tree.map(lambda p, u: p + rate * u, params, updates)
        return params, state, value

    return step


def learning_rate(progress: float, *, peak: float, warmup: float) -> float:
    """The rate at a share of the way: linear up during `warmup`, then linear down to zero."""
    if progress < warmup:
        return peak * progress / warmup
    return peak * max(0.0, (1.0 - progress) / (1.0 - warmup))
