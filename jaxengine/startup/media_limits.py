"""Whether an engine takes pictures or sounds, and the most that one of them is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.processors import Most, limits
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_files import ModelFiles

logger = logging.getLogger("jaxengine")


def with_tower(files: ModelFiles, config: EngineConfig) -> tuple[ModelFiles, Mapping[Modality, Most]]:
    """A model's files with what encodes pictures and sounds where the engine is to take such; and the most that an item is.

    Raises:
        ConfigError, CheckpointError: files do not say how pictures are prepared, or what was asked for is not built together.
    """
    if files.config.tower is None:
        return files, {}
    most = limits(files.source.path, files.config_json, config.media.mm_processor_kwargs)
    asked = {modality: of for modality, of in most.items() if config.media.most_of(modality.value)}
    if not asked:
        why = "limit_mm_per_prompt" if most else "nothing here prepares pictures or sounds for it"
        logger.info("%s answers texts only: %s", files.model_class.__name__, why)
        return replace(files, config=replace(files.config, tower=None)), {}
    if config.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            f"pipeline_parallel_size={config.parallel.pipeline_parallel_size} is not built for pictures and sounds: start with "
            """--limit-mm-per-prompt '{"image": 0, "video": 0, "audio": 0}' for texts only, or use tensor_parallel_size"""
        )
    return files, asked
