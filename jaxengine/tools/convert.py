"""`jaxengine convert`: resolve a model, and write it in the engine's own layout and dtype."""

from __future__ import annotations

import logging
from pathlib import Path

from jaxengine.device.weights.cache_scales import cache_scale_names
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint, WithFolders
from jaxengine.device.weights.convert import write_converted
from jaxengine.device.weights.report import LoadReport
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import plan_model
from jaxengine.startup.quantization import unpacked
from xla_cache.target import target

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
    config = EngineConfig.from_options(
        model=source,
        revision=revision,
        dtype=dtype,
        quantization=quantization,
        lm_head_dtype=lm_head_dtype,
        kv_cache_dtype="bfloat16",  # any that has no scales: a cache is no part of what is written
    )
    model = plan_model(config, target=target("cpu"))
    resolved, schemes, weights = model.source, model.schemes, model.weights
    logger.info("converting %s to %s in %s", resolved.name, model.dtype.name, output)

    def report(done: LoadReport) -> None:
        if done.bytes_read == done.total_bytes:
            logger.info("read %s", done)

    def read(stored: TensorCheckpoint | OrbaxCheckpoint) -> TensorCheckpoint | OrbaxCheckpoint:
        left = [] if isinstance(stored, OrbaxCheckpoint) else cache_scale_names(stored.tensors)
        if left:
            logger.warning("%d scales of a quantised KV cache (%s, ...) are not written", len(left), left[0])
        folders = () if model.config.pooler is None else model.config.pooler.folders
        if folders and not isinstance(stored, OrbaxCheckpoint):
            stored = WithFolders(stored, folders, load_format="auto")
        return unpacked(stored, schemes, weights)

    write_converted(
        resolved.path,
        Path(output),
        rules=model.rules,
        read=read,
        parameters=model.parameters,
        config=model.config,
        dtype=model.dtype.name,
        force=force,
        progress=report,
    )
    logger.info("wrote %s", output)
