"""Lists that are told a page at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Literal, TypeVar

from typing_extensions import TypedDict

from jaxengine.errors import RequestError

T = TypeVar("T", bound=Mapping[str, object])


class Page(TypedDict, Generic[T]):
    """Some of many items, in their order."""

    object: Literal["list"]
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(items: Sequence[T], *, limit: int, after: str | None, what: str) -> Page[T]:
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
        "first_id": str(page[0]["id"]) if page else None,
        "last_id": str(page[-1]["id"]) if page else None,
        "has_more": len(items) > limit,
    }
