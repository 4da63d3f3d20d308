"""Engines that are replicas of each other, behind one front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import Begin
from jaxengine.errors import ConfigError
from jaxengine.front.restarts import Supervision
from jaxengine.front.router import Router
from jaxengine.front.starting import StartingEngine
from jaxengine.front.supervisor import Launcher, Supervisor


def begin_of(begin: Begin, index: int) -> Begin:
    """What the process of one of the engines is told: which of the replicas it is, and so which part of the machine it has."""
    parallel = begin.config.parallel
    if parallel.data_parallel_size == 1:
        return begin
    return replace(
        begin,
        config=replace(begin.config, parallel=replace(parallel, data_parallel_rank=parallel.ranks[index])),
    )


def supervised(
    engines: Sequence[StartingEngine], launch: Launcher | None = None, *, options: Supervision | None = None
) -> Supervisor:
    """A channel to all of them, once they are ready: prompts go where their beginnings are cached.

    Raises:
        JaxEngineError: one does not start.
        ConfigError: they have come out different.
    """
    facts = [engine.ready.result() for engine in engines]
    _check_alike(facts)
    if len(engines) == 1 or not facts[0].caches_prefixes:
        return Supervisor(engines, launch, options=options)
    router = Router(page_size=facts[0].page_size, num_pages=min(each.num_pages for each in facts))
    return Supervisor(engines, launch, options=options, choose=router.choose, forget=router.forget)


def _check_alike(facts: Sequence[EngineFacts]) -> None:
    """Accept engines that take the same requests."""
    for name in ("max_model_len", "page_size"):
        values = [getattr(each, name) for each in facts]
        if len(set(values)) > 1:
            raise ConfigError(
                f"the replicas have come out with different {name} ({', '.join(map(str, values))}), as their devices have "
                f"different memory. Choose {name}"
            )
