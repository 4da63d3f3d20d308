"""Lists that are told a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxengine.errors import RequestError


def page_of(items: Sequence[Any], *, limit: int, after: str | None, what: str) -> Any:
    """The next `limit` of items that have ids, behind the one with the id `after`, in OpenAI's form of a list.

    Raises:
        RequestError: no item has that id; `what` says what the items are.
    """
    if after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            raise RequestError(f"after={after[:100]!r} is no {what}", param="after")
        items = items[places[0] + 1 :]
    page = list(items[:limit])
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
