"""A form with a file in it (multipart/form-data), as clients send uploads. The body is bounded before it is here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jaxengine.errors import RequestError

BOUNDARY = re.compile(r'multipart/form-data;.*\bboundary=("?)([^";]{1,70})\1', re.IGNORECASE)
PARAMETER = re.compile(rb'\b(name|filename)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its content, and the name of the file where it is one."""

    content: bytes
    filename: str | None


def read_form(content_type: str, body: bytes) -> dict[str, Field]:
    """The fields of a form by their names, the last of each. Errors as of `read_fields`."""
    return dict(read_fields(content_type, body))


def read_fields(content_type: str, body: bytes) -> list[tuple[str, Field]]:
    """The names and fields of a form.

    Raises:
        RequestError: it is no such form.
    """
    match = BOUNDARY.match(content_type)
    if match is None:
        raise RequestError("the body must be a form with a file: Content-Type multipart/form-data with a boundary")
    first, *parts = (b"\r\n" + body).split(b"\r\n--" + match[2].encode("latin-1"))
    if first or not parts or not parts[-1].startswith(b"--"):
        raise RequestError("the form is cut off, or has another boundary than its Content-Type says")
    fields = []
    for part in parts[:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        found = {key.decode(): value.decode("utf-8", "replace") for key, value in PARAMETER.findall(head)}
        if "name" in found:
            fields.append((found["name"], Field(content, found.get("filename"))))
    return fields
