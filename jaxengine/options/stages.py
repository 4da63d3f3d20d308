"""Stages: how layers are split over them, and what is not built with several."""

from __future__ import annotations

from collections.abc import Mapping

from jaxengine.errors import ConfigError

ALLOWED = (
    "stages work with tensor and expert parallelism, replicas, prefix caching, n-gram drafts, grammars, quantization, pooling, "
    "sleep and new weights"
)


def read_layer_partition(given: str | None, stages: int) -> tuple[int, ...] | None:
    """The layers of each stage, of text such as `9,9,8`; None of None.

    Raises:
        ConfigError: it is not a number of layers for each of the stages.
    """
    if given is None:
        return None
    parts = [part.strip() for part in str(given).split(",")]
    if len(parts) != stages or not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(
            f"pipeline_layer_partition={given!r} must give each of pipeline_parallel_size={stages} stages one layer or more, as "
            f"{','.join(['9'] * stages)} does"
        )
    return tuple(map(int, parts))


def split_layers(count: int, stages: int, partition: tuple[int, ...] | None = None) -> tuple[range, ...]:
    """The numbers of the layers of each stage.

    Without a partition all have as many. Of what is left the last stage, which has the head, gets none and those before it one
    each, beginning with the last but one, as vLLM has it (`get_pp_indices`).

    Raises:
        ConfigError: there are not so many layers.
    """
    if stages > count:
        raise ConfigError(
            f"pipeline_parallel_size={stages} is more than the {count} layers of this model; use {count} or fewer"
        )
    if partition is None:
        more = count % stages
        partition = tuple(count // stages + (stages - 1 - more <= stage < stages - 1) for stage in range(stages))
    if sum(partition) != count:
        raise ConfigError(
            f"pipeline_layer_partition={','.join(map(str, partition))} is of {sum(partition)} layers, and this model has {count}"
        )
    ends = [sum(partition[: stage + 1]) for stage in range(stages)]
    return tuple(range(end - size, end) for size, end in zip(partition, ends, strict=True))


def refuse_with_stages(stages: int, asked: Mapping[str, bool]) -> None:
    """Refuse what is asked for and not built for several stages.

    Raises:
        ConfigError: the first of it.
    """
    for what, given in asked.items():
        if given and stages > 1:
            raise ConfigError(
                f"{what} is not built with pipeline_parallel_size={stages}: {ALLOWED}. Leave one of the two out"
            )
