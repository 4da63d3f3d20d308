"""Errors of media, and of a library that is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jaxengine.errors import RequestError, UnsupportedError


class MediaError(RequestError):
    """A picture, sound or video cannot be had or cannot be read."""


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Let an import that fails name the `extra` which brings the library.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise UnsupportedError(
            f"this needs a library that is not installed ({error.name}): pip install 'jaxengine[{extra}]'"
        ) from error
