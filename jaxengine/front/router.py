"""Which engine gets a request: the one that holds most of its prompt's prefix, unless another has much less to do.

New conversations go where there is least to do, so work is shared out without moving those that began. Which cached prefix is
worth which wait was tried on recorded traffic (`benchmarks/replicas.py`): by the time that it saves alone a prefix is left too
often, and computed and kept once more elsewhere.

An engine keeps the keys and values of full pages of prompts, and gives up those that were used least recently
(`host/kvcache/prefix.py`). The router remembers by the same rule which pages it has sent where, under digests of its own: an
engine's are keyed by a secret of its process.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from jaxengine.contract.media_content import MediaContent
from jaxengine.contract.request import Request

Digest = bytes

WORTH = 16
"""A token of the prefix that an engine holds outweighs so many tokens that are in flight there and not elsewhere."""


class Router:
    """Chooses engines by number.

    Args:
        page_size: tokens of a page.
        num_pages: pages that each engine has.
    """

    def __init__(self, *, page_size: int, num_pages: int) -> None:
        self._page_size = page_size
        self._num_pages = num_pages
        self._held: dict[int, OrderedDict[Digest, None]] = {}
        self._hash = hashlib.blake2b(key=secrets.token_bytes(16), digest_size=16)

    def choose(self, request: Request, loads: Mapping[int, int]) -> int:
        """The engine for a request, of those in `loads`: the tokens in flight at each, one at least.

        A request that names an engine gets it, if it is among them. Its prompt counts as held there from now on.
        """
        digests = list(self._digests(request))
        engine = request.data_parallel_rank
        if engine is None or engine not in loads:
            engine = self._best(digests, loads)
        self._remember(engine, digests)
        return engine

    def forget(self, engine: int) -> None:
        """The engine holds nothing any more: its cache was reset, or it was started again."""
        self._held.pop(engine, None)

    def _best(self, digests: list[Digest], loads: Mapping[int, int]) -> int:
        def cost(engine: int) -> tuple[int, int, int]:
            saved = self._matched(engine, digests) * self._page_size
            return loads[engine] - WORTH * saved, loads[engine], engine

        return min(loads, key=cost)

    def _matched(self, engine: int, digests: list[Digest]) -> int:
        """Pages of the prompt, from its beginning, that were sent to the engine."""
        held = self._held.get(engine, ())
        return next((number for number, digest in enumerate(digests) if digest not in held), len(digests))

    def _remember(self, engine: int, digests: list[Digest]) -> None:
        held = self._held.setdefault(engine, OrderedDict())
        for digest in reversed(digests):  # the beginning last: it goes last
            held[digest] = None
            held.move_to_end(digest)
        while len(held) > self._num_pages:
            held.popitem(last=False)

    def _digests(self, request: Request) -> Iterator[Digest]:
        """A digest for each full page of the prompt, of everything up to its end and what it shows, the salt and the adapter."""
        size, tokens = self._page_size, array("i", request.prompt_token_ids).tobytes()
        running = self._hash.copy()
        salt = request.cache_salt
        if request.adapter is not None:
            running.update(b"\x02" + request.adapter.digest.encode() + b"\x00")
        running.update(b"\x00" if salt is None else b"\x01" + salt.encode("utf-8", "surrogatepass") + b"\x00")
        width = size * array("i").itemsize
        content = None if request.media is None else MediaContent(request.media)
        if content is not None:
            running.update(content.read)
        for start in range(0, len(tokens) - width + 1, width):
            running.update(tokens[start : start + width])
            if content is not None:
                first = start // array("i").itemsize
                running.update(content.between(first, first + size))
            yield running.digest()
