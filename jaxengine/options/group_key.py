"""The key by which hosts of one engine know each other. It is read from the environment: others see a command line."""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "JAXENGINE_GROUP_KEY"
"""The environment variable that has it, with the same value on all hosts of a group."""

NO_KEY = "jaxengine"
"""The key where none is given: it keeps out who came by mistake, and nobody else."""


def group_key(environ: Mapping[str, str] = os.environ) -> bytes:
    """The key that this host has."""
    return environ.get(VARIABLE, NO_KEY).encode("utf-8", "surrogateescape")
