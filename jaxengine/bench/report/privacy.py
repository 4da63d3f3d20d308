"""A report says what a machine can do, and nothing of whose it is: no paths, no names of hosts or users."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

PATH = re.compile(
    r"""(?:~|\b[A-Za-z]:|\w+://)?(?<![\w.])[/\\][^\s'",;:()\[\]]+|~[/\\][^\s'",;:()]+|\w+://[^\s'",;()]+"""
)
ADDRESS = re.compile(r"\b(?!0\.)\d{1,3}(?:\.\d{1,3}){3}\b")  # what begins with 0 is a version
LONGEST = 300
"""Characters of a text: an error's first lines, never a listing."""


def cleaned(value: Any) -> Any:
    """The same value without paths, addresses, and names of this host and user in its texts."""
    if isinstance(value, Mapping):
        return {cleaned(str(name)): cleaned(inner) for name, inner in value.items()}
    if isinstance(value, str):
        text = ADDRESS.sub("ADDRESS", PATH.sub("PATH", value))
        for name in own_names():
            text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", "NAME", text, flags=re.IGNORECASE)
        return text[:LONGEST]
    return [cleaned(inner) for inner in value] if isinstance(value, Sequence) else value


def own_names() -> set[str]:
    """What this host and this user are called."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = ""
    host = socket.gethostname()
    return {name for name in (user, host, host.partition(".")[0]) if len(name) > 1 and name != "localhost"}
