"""Documents packed into rows of fixed length, made ahead in a thread while the device computes."""

import queue
import threading
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer

from examples.embedded_model.corpus import documents
from examples.embedded_model.tokenizer import END_OF_TEXT

POOL = 256  # documents to choose from when a row is filled


def token_lists(tokenizer: Tokenizer, seed: int) -> Iterator[list[int]]:
    """The documents of a seed as token ids, each closed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    assert end is not None, "the tokenizer was trained with it"
    stream = documents(seed)
    while True:
        for encoding in tokenizer.encode_batch([next(stream) for _ in range(POOL)]):
            yield [*encoding.ids, end]


def rows(lists: Iterator[list[int]], length: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of `length` tokens and the segment number of each place, -1 where nothing fitted.

    A document is never cut: a row takes the first documents of the pool that still fit, and too long ones are dropped.
    """
    pool: list[list[int]] = []
    while True:
        tokens, segments, used, number = np.zeros(length, np.int32), np.full(length, -1, np.int32), 0, 0
        while True:
            while len(pool) < POOL:
                document = next(lists)
                if len(document) <= length:
                    pool.append(document)
            fit = next((index for index, document in enumerate(pool) if len(document) <= length - used), None)
            if fit is None:
                break
            document = pool.pop(fit)
            tokens[used : used + len(document)] = document
            segments[used : used + len(document)] = number
            used, number = used + len(document), number + 1
        yield tokens, segments


def batches(tokenizer: Tokenizer, *, seed: int, batch: int, length: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens and segments `[batch, length]`, made ahead."""
    ready: queue.Queue[tuple[np.ndarray, np.ndarray]] = queue.Queue(maxsize=16)

    def produce() -> None:
        stream = rows(token_lists(tokenizer, seed), length)
        while True:
            tokens, segments = zip(*(next(stream) for _ in range(batch)), strict=True)
            ready.put((np.stack(tokens), np.stack(segments)))

    threading.Thread(target=produce, daemon=True).start()
    while True:
        yield ready.get()
