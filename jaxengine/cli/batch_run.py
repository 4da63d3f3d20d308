"""`jaxengine run-batch`: all lines of a file answered, into another, in their order."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path

from jaxengine.errors import ConfigError
from jaxengine.front.front import Front
from jaxengine.server.endpoints.batch.lines import answers_in_order
from jaxengine.server.http.pieces import json_texts
from jaxengine.server.options import ServerConfig
from jaxengine.server.service import Service

logger = logging.getLogger("jaxengine")

AHEAD = 4
"""Lines that are read before their turn, in multiples of the sequences that run at once."""


def check_files(source: Path, target: Path) -> None:
    """What can be said of the files before an engine is started.

    Raises:
        ConfigError: one of them is an address, the first does not exist, or both are the same.
    """
    for path in (source, target):
        if str(path).startswith(("http:", "https:")):
            raise ConfigError(f"{path} is an address: run-batch reads and writes files on this machine")
    if not source.is_file():
        raise ConfigError(f"there is no file {source}")
    if target.resolve() == source.resolve() or not target.resolve().parent.is_dir():
        raise ConfigError(f"cannot write to {target}: name another file, in a directory that exists")


async def run_batch(front: Front, options: ServerConfig, source: Path, target: Path) -> int:
    """Answer every line of `source` that is not empty; how many of them failed.

    Answers are written as they come, each behind those of the lines before.

    Raises:
        EngineDeadError: the engine failed. What was answered until then is written.
    """
    service = Service.of(front, options)
    service.engine.start()
    log = asyncio.create_task(service.stats_log.run(options.api.log_stats_interval))
    most = AHEAD * service.engine.facts.max_num_seqs
    answered = failed = 0
    try:
        with source.open(encoding="utf-8") as lines, target.open("wb") as answers:
            async with aclosing(answers_in_order(filter(str.strip, lines), service, most=most)) as found:
                async for answer in found:
                    answers.writelines((*json_texts(answer), b"\n"))
                    answers.flush()
                    answered += 1
                    failed += answer["error"] is not None
    finally:
        log.cancel()
        await service.engine.close()
        service.close()
    logger.info("%d lines answered, %d of them with an error, in %s", answered, failed, target)
    return failed
