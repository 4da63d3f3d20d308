"""Errors that name fields as their endpoint calls them: code that several endpoints share knows one name of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jaxengine.errors import RequestError


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Have an error of a field in `names` call it as that says, where its message begins with it too."""
    try:
        yield
    except RequestError as error:
        name = error.param or ""
        if name in names:
            error.param = names[name]
            message = str(error)
            if message.startswith(name):
                error.args = (names[name] + message.removeprefix(name), *error.args[1:])
        raise
