"""What is to be encoded, in order, within a step's budget."""

from __future__ import annotations

from buckets import Bucket
from jaxengine.contract.media import Encoding, MediaFacts, MediaItem, PromptMedia, ToEncode
from jaxengine.contract.metrics import EncoderStats, ShapeCount
from jaxengine.errors import RequestError
from jaxengine.host.media.launches import bucket_for, cut, patches_of_step
from jaxengine.host.media.pool import EmbeddingPool, PooledItem
from jaxengine.host.media.shown import Shown, runs_of


class Encoders:
    """Which items lie in the pool, and which are encoded next.

    A sequence takes pages for all items that it needs, or waits. One that waits for pages is not overtaken by others that need
    pages too, so its turn comes as prompts are computed: the rest of its round is `closed` to them. Items are encoded in the
    order in which they came to have pages.

    Args:
        facts: of the engine.
        budget: most patches of the launches before one step, None as `patches_of_step` has it; an item that has more goes alone.
    """

    def __init__(self, facts: MediaFacts, *, budget: int | None = None) -> None:
        self.facts = facts
        self.pool = EmbeddingPool(facts.num_pages, facts.page_size)
        self._budget = patches_of_step(budget, facts)
        self._queue: dict[PooledItem, None] = {}
        self._number = 0
        self._closed = False
        self._refused: tuple[Shown, int] | None = None
        self._holding: dict[Shown, None] = {}
        self._queries = self._hits = 0
        self._shapes: dict[Bucket, ShapeCount] = {}

    @property
    def stats(self) -> EncoderStats:
        """Counts as of now."""
        return EncoderStats(
            queries=self._queries,
            hits=self._hits,
            num_queued=len(self._queue),
            pool_usage=self.pool.usage,
            shapes=dict(self._shapes),
        )

    def check_fits(self, media: PromptMedia, *, longest_run: int) -> None:
        """Refuse what can never be encoded, or never computed; a step has `longest_run` tokens for a run of places.

        Raises:
            RequestError: with the numbers.
        """
        for item in media.items:
            self._check_item(item, longest_run)
        pages = sum(map(self.pool.pages_of, {item.digest: item for item in media.items}.values()))
        if pages > self.pool.capacity:
            raise RequestError(
                f"the prompt's {len(media.items)} items take {pages} pages of embeddings, and the engine has "
                f"{self.pool.capacity} of {self.pool.page_size} embeddings; send fewer or smaller ones",
                param="multi_modal_data",
            )

    def shown(self, media: PromptMedia, request_id: str, salt: str | None) -> Shown:
        """What a sequence of this prompt shows; it holds nothing yet."""
        return Shown(media, request_id, salt, page_size=self.facts.page_size, sight=self.facts.sight)

    def begin_round(self) -> None:
        """Before sequences ask again, the most urgent first."""
        self._closed = False

    def may_take(self, shown: Shown | None) -> bool:
        """Whether it is worth a look at what a sequence needs of the pool, if anything."""
        if shown is None:
            return True
        if self._refused == (shown, self.pool.num_freed):
            self._closed = True
            return False
        return not self._closed or all(key in self.pool for key in shown.keys)

    def take(self, shown: Shown, start: int) -> bool:
        """Hold what a sequence needs that is computed from `start` on; False, and nothing changed, where pages are short."""
        numbers = shown.needed(start)
        wanted = [(shown.keys[number], shown.media.items[number]) for number in numbers]
        hits = sum(key in self.pool for key, _ in wanted)
        taken = self.pool.take(wanted)
        if taken is None:
            self._closed = True
            self._refused = shown, self.pool.num_freed
            return False
        self._queries += len(wanted)
        self._hits += hits
        for pooled in taken:
            if not pooled.encoded:
                self._queue[pooled] = None
                pooled.request_ids[shown.request_id] = None
        shown.hold(dict(zip(numbers, taken, strict=True)))
        self._holding[shown] = None
        return True

    def pass_by(self, shown: Shown, computed: int) -> None:
        """Launched steps compute so many positions of a sequence: what lies before them is not needed."""
        for pooled in shown.take_passed(computed):
            self._drop(pooled)

    def give_back(self, shown: Shown) -> None:
        """A sequence holds nothing any more."""
        self._holding.pop(shown, None)
        for pooled in shown.take_all():
            self._drop(pooled)

    def launch(self) -> tuple[tuple[Encoding, ...], tuple[str, ...]]:
        """The launches before the next step, and the requests that they are for. Whatever is launched later finds it encoded."""
        if not self._queue:
            return (), ()
        chosen: list[ToEncode] = []
        request_ids: dict[str, None] = {}
        patches = 0
        for pooled in list(self._queue):
            assert pooled.item is not None
            patches += len(pooled.item.patches)
            if chosen and patches > self._budget:
                break
            chosen.append(ToEncode(pooled.item, pooled.pages))
            request_ids |= pooled.request_ids
            del self._queue[pooled]
            pooled.item = None
            pooled.request_ids.clear()
        launches: list[tuple[Bucket | None, list[ToEncode]]] = []
        seen = [one for one in chosen if not one.item.given]
        for bucket, numbers in cut([one.item for one in seen], self.facts.buckets):
            launches.append((bucket, [seen[number] for number in numbers]))
            self._count(bucket, sum(len(one.item.patches) for one in launches[-1][1]))
        if given := [one for one in chosen if one.item.given]:
            launches.append((None, given))
        encodings = tuple(
            Encoding(number, bucket, tuple(items)) for number, (bucket, items) in enumerate(launches, self._number + 1)
        )
        self._number += len(launches)
        return encodings, tuple(request_ids)

    def forget(self) -> None:
        """What was encoded is worth nothing any more; nothing may run."""
        self.pool.forget()

    def check(self) -> None:
        """Prove that every page is accounted for.

        Raises:
            AssertionError: it is not.
        """
        self.pool.check([pooled for shown in self._holding for pooled in shown.held.values()])
        assert all(not pooled.encoded and pooled.holders for pooled in self._queue)

    def _check_item(self, item: MediaItem, longest_run: int) -> None:
        patches, rows = len(item.patches), item.num_rows
        if not item.given and bucket_for(rows, patches, self.facts.buckets) is None:
            largest = " or ".join(f"{each.tokens} patches of {each.batch} frames" for each in self.facts.buckets[:1])
            raise RequestError(
                f"the {item.modality} has {patches} patches in {rows} frames, and the encoder takes {largest} at once; "
                "send a smaller one",
                param="multi_modal_data",
            )
        longest = max((end - start for start, end in runs_of(item)), default=0)
        if self.facts.sight and longest > longest_run:
            raise RequestError(
                f"the {item.modality} has {longest} tokens that see each other, and a step has {longest_run}; start the engine "
                "with more tokens a step (max_num_batched_tokens), or send a smaller one",
                param="multi_modal_data",
            )

    def _drop(self, pooled: PooledItem) -> None:
        if self.pool.drop(pooled):
            self._queue.pop(pooled, None)

    def _count(self, bucket: Bucket, patches: int) -> None:
        had = self._shapes.get(bucket, ShapeCount())
        self._shapes[bucket] = ShapeCount(had.steps + 1, had.tokens + patches, had.padded_tokens + bucket.tokens)
