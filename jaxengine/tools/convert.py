"""`jaxengine convert`: resolve a model, and write it in the engine's own layout and dtype."""

from __future__ import annotations

import logging
from pathlib import Path

from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models import registry
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.weights.cache_scales import cache_scale_names
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint
from jaxengine.device.weights.convert import write_converted
from jaxengine.device.weights.dtype import resolve_dtype
from jaxengine.device.weights.report import LoadReport
from jaxengine.device.weights.source import resolve
from jaxengine.startup.model_plan import read_config_json, settle_head
from jaxengine.startup.quantization import choose_head, choose_schemes, unpacked
from jaxengine.text.pooling_config import PoolingDefaults

logger = logging.getLogger("jaxengine")


def convert(
    source: str | None,
    output: str | Path,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    lm_head_dtype: str = "auto",
    revision: str | None = None,
    force: bool = False,
) -> None:
    """Write the model `source` as an Orbax checkpoint to the directory `output`, complete or not at all.

    Args:
        source: Checkpoint directory or hub id; None is the embedded model.
        output: A directory that does not exist yet.
        dtype: The `dtype` option: the type that the weights are stored in.
        quantization: The `quantization` option: how matrices are stored. An engine loads them with the same option. The
            matrices of a checkpoint that is quantised stay as they are, and need none.
        lm_head_dtype: The `lm_head_dtype` option: how the vocabulary's matrix is stored, to be given to the engine as well.
        revision: Hub branch, tag or commit.
        force: Replace an existing `output`.

    Raises:
        ConfigError: the model, its architecture, the dtype or the quantization is not one that the engine takes.
        CheckpointError: the source cannot be found or loaded, or `output` exists.
    """
    resolved = resolve(source, revision=revision)
    config_json, _ = settle_head(read_config_json(resolved.path), PoolingDefaults.load(resolved.path))
    model_class = registry.resolve(config_json)
    schemes = choose_schemes(quantization, config_json, model_class)
    config = registry.read_config(model_class, config_json)
    schemes = choose_head(schemes, lm_head_dtype, tied=config.tie_word_embeddings)
    chosen = resolve_dtype(dtype, checkpoint=config.dtype, platform="cpu")
    _, parameters = abstract_model(
        model_class, config, dtype=chosen, layout=ONE_DEVICE, platform="cpu", schemes=schemes
    )
    logger.info("converting %s to %s in %s", resolved.name, chosen.name, output)

    def report(done: LoadReport) -> None:
        if done.bytes_read == done.total_bytes:
            logger.info("read %s", done)

    def read(stored: TensorCheckpoint | OrbaxCheckpoint) -> TensorCheckpoint | OrbaxCheckpoint:
        left = [] if isinstance(stored, OrbaxCheckpoint) else cache_scale_names(stored.tensors)
        if left:
            logger.warning("%d scales of a quantised KV cache (%s, ...) are not written", len(left), left[0])
        return unpacked(stored, schemes, model_class.WEIGHTS)

    write_converted(
        resolved.path,
        Path(output),
        rules=schemes.table(model_class.WEIGHTS, parameters),
        read=read,
        parameters=parameters,
        config=config,
        dtype=chosen.name,
        force=force,
        progress=report,
    )
    logger.info("wrote %s", output)
