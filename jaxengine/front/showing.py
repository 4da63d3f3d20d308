"""What prompts show is fetched, decoded and made ready for the encoder, within the limits of the engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from jaxengine.contract.media import MediaFacts, Modality, PromptMedia
from jaxengine.errors import ConfigError, RequestError
from jaxengine.media.access import MediaAccess
from jaxengine.media.embeddings import Embeddings
from jaxengine.media.fetch import Fetcher
from jaxengine.media.items import Item, Picture, Shown, Video, digest_of
from jaxengine.media.kept import KeptItems
from jaxengine.media.placing import Prepared, placed
from jaxengine.media.processors import Processor
from jaxengine.media.processors.processor import Made, with_kwargs
from jaxengine.media.reader import Reader
from jaxengine.options.media import MediaConfig
from jaxengine.text.placeholders import Placeholders

WORKERS = 4
"""Items of one prompt that are fetched at once."""
MAX_SECONDS = 60.0
"""For all items of a prompt."""


class Showing:
    """The way in for pictures, videos and sounds. Its methods block; threads may share it.

    Args:
        processor: the family's.
        facts: what the engine has for them.
        config: what the user allows.
        max_model_len: tokens of a prompt at most.

    Attributes:
        processor: the family's, which makes items as small as the encoder takes, where it can.
        kept: what was prepared.
    """

    def __init__(self, processor: Processor, facts: MediaFacts, config: MediaConfig, *, max_model_len: int) -> None:
        kind, settings = type(processor), replace(processor.settings, max_patches=facts.max_patches)
        self.processor = kind(settings)
        self._facts = facts
        self._config = config
        self._max_model_len = max_model_len
        folder = config.allowed_local_media_path
        access = MediaAccess(
            folder=Path(folder) if folder else None, domains=frozenset(config.allowed_media_domains or ())
        )
        self._reader = Reader(Fetcher(access), config.media_io_kwargs, given_width=facts.given_width)
        self.kept = KeptItems(int(config.mm_processor_cache_gb * (1 << 30)))
        self._told = lru_cache(maxsize=16)(self._told_so)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What may be shown."""
        return tuple(of for of in self._facts.modalities if of in self.processor.modalities)

    @property
    def placeholders(self) -> Placeholders:
        """Of each modality the text that stands for an item in a message."""
        of = {str(modality): self.processor.shown[modality] for modality in self.modalities}
        return Placeholders(of, interleaved=self._config.interleave_mm_strings)

    def check(self, shown: Sequence[Shown]) -> None:
        """Accept so many items, before any is looked at.

        Raises:
            RequestError: the model takes no such items, or they are too many.
        """
        for modality, count in Counter(item.modality for item in shown).items():
            limit = self._config.most_of(modality) if modality in self.modalities else 0
            if count > limit:
                more = " Set `--limit-mm-per-prompt` to increase this limit." if modality in self.modalities else ""
                raise too_many(modality, limit, more)
        if len(shown) >= self._max_model_len:
            raise RequestError(
                f"a prompt shows {len(shown)} items, which are more tokens than max_model_len ({self._max_model_len}) holds"
            )

    def prepare(self, shown: Sequence[Shown], kwargs: Mapping[str, Any] | None = None) -> list[Prepared]:
        """The items of a prompt, in order.

        Raises:
            RequestError: they are too many, one cannot be had or read, or is larger than the encoder takes.
        """
        self.check(shown)
        processor = self._told(_written(kwargs)) if kwargs else self.processor
        if len(shown) < 2:
            return [self._one(item, processor) for item in shown]
        pool = ThreadPoolExecutor(min(WORKERS, len(shown)), "media")
        try:
            return list(pool.map(lambda item: self._one(item, processor), shown, timeout=MAX_SECONDS))
        except TimeoutError as error:
            raise RequestError(f"what a prompt shows could not be had within {MAX_SECONDS:g} s") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def surrounded(self, text: str) -> str:
        """A text with what the family has around its placeholders."""
        around = self.processor.surround
        if not around:
            return text
        for placeholder in self.placeholders.of.values():
            text = text.replace(placeholder, f"{around}{placeholder}{around}")
        return text

    def placed(self, ids: Sequence[int], items: Sequence[Prepared]) -> tuple[tuple[int, ...], PromptMedia]:
        """The prompt with its items in it.

        Raises:
            RequestError: it has not as many placeholders.
        """
        return placed(ids, items, self.processor)

    def _one(self, shown: Shown, processor: Processor) -> Prepared:
        rate = processor.rate if shown.modality is Modality.AUDIO else None
        item = self._reader.read(shown, rate=rate)
        digest = digest_of("item", item.digest, processor.identity)
        made = self.kept.find(digest)
        if made is None:
            with _as_the_requests() if processor is not self.processor else nullcontext():
                made = _made(item, processor)
            self.kept.keep(digest, made)
        if not made.given and len(made.patches) > self._facts.max_patches:
            raise RequestError(
                f"the {shown.modality} has {len(made.patches)} patches, and the encoder takes {self._facts.max_patches}: give a "
                "smaller one, or start with larger shapes for it (max_pixels of --mm-processor-kwargs)",
                param=str(shown.modality),
            )
        return Prepared(shown.modality, digest, made)

    def _told_so(self, kwargs: str) -> Processor:
        kind = type(self.processor)
        with _as_the_requests():
            return kind(with_kwargs(self.processor.settings, kind.knobs, json.loads(kwargs)))


def too_many(modality: Modality, limit: int, advice: str) -> RequestError:
    """The error of a prompt that shows more than it may, in vLLM's words."""
    return RequestError(f"At most {limit} {modality}(s) may be provided in one prompt.{advice}", param=str(modality))


@contextmanager
def _as_the_requests() -> Iterator[None]:
    """What fails within is the fault of the `mm_processor_kwargs` of a request, whatever nonsense they hold."""
    try:
        yield
    except RequestError:
        raise
    except (ConfigError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise RequestError(f"mm_processor_kwargs cannot be used: {error}", param="mm_processor_kwargs") from error


def _written(kwargs: Mapping[str, Any]) -> str:
    try:
        return json.dumps(kwargs, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"mm_processor_kwargs must be what JSON can hold: {error}", param="mm_processor_kwargs"
        ) from error


def _made(item: Item | Embeddings, processor: Processor) -> Made:
    if isinstance(item, Embeddings):
        return processor.embedded(item)
    if isinstance(item, Picture):
        return processor.image(item)
    if isinstance(item, Video):
        return processor.video(item)
    return processor.sound(item)
