"""How `media_speed.py` asks an engine that runs in a process of its own: a line of JSON in, a line of JSON out.

A question has `prompt` (token ids, one of which may stand for the item), `items` (seeds: each makes an item, and a request),
`size` of the items and `output_len`. Standard library, NumPy and Pillow only, because each engine has an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

Item = Image.Image | np.ndarray
Generate = Callable[[Sequence[int], Sequence[Item], int], Sequence[Sequence[int]]]
"""Generates so many tokens greedily for a prompt with each item, all together, ends of text ignored; the tokens of each."""

RATE = 16_000


def answer(open_engine: Callable[[Mapping[str, Any]], Generate], versions: Mapping[str, str]) -> None:
    """Open the engine with the settings of the command line, say so, and answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is not an answer
    begun = time.perf_counter()
    settings = json.loads(sys.argv[1])
    generate, make = open_engine(settings), {"image": picture, "audio": sound}[settings["modality"]]
    ready = round(time.perf_counter() - begun, 1)
    print(json.dumps({"versions": versions, "ready_s": ready}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        items = [make(asked["size"], seed) for seed in asked["items"]]
        begun, used = time.perf_counter(), time.process_time()
        tokens = generate(asked["prompt"], items, asked["output_len"])
        found = {"seconds": time.perf_counter() - begun, "processor_s": time.process_time() - used}
        print(json.dumps({**found, "tokens": [list(map(int, some)) for some in tokens]}), file=answers, flush=True)


def picture(side: int, seed: int) -> Image.Image:
    """Smooth waves of colours and some noise, `side` pixels wide and high."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0 : 1 : side * 1j, 0 : 1 : side * 1j]
    waves = [np.sin(6 * (a * rows + b * columns + c)) for a, b, c in random.uniform(0, 3, (3, 3))]
    return Image.fromarray((np.stack(waves, -1) * 100 + 128 + random.normal(0, 8, (side, side, 3))).astype(np.uint8))


def sound(seconds: float, seed: int) -> np.ndarray:
    """Samples of some tones that swell, and some noise, float32 at 16 kHz."""
    random = np.random.default_rng(seed)
    at = np.arange(int(seconds * RATE)) / RATE
    tones = sum(np.sin(2 * np.pi * frequency * at) for frequency in random.uniform(100, 4000, 5))
    samples = 0.1 * tones * np.sin(2 * np.pi * at / 0.7) ** 2 + random.normal(0, 0.01, at.size)
    return np.asarray(samples, np.float32)
