"""What a model's KV cache is kept in, as the option and config.json say it together, and how its scales are found.

An fp8 cache without scales in the checkpoint has scales of 1, as vLLM's: float8_e4m3fn holds up to 448, with the same relative
precision everywhere. An int8 cache has none that would do for any model, so they are measured at the start, of one text and in
the programs that serve (`runtime/calibration.py`). Scales never change while an engine runs: what a token's key becomes depends
on neither neighbours, chunks, cached prefixes nor preemption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jaxengine.device.models.config.quantization.kv_cache import read_cache_scheme
from jaxengine.text.tokenizer import Tokenizer

DTYPES: Mapping[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
"""By the names of the `kv_cache_dtype` option; `auto` is none of them."""

CALIBRATION_TOKENS = 256
CALIBRATION_TEXT = """\
The committee met on Tuesday, 14 March 2023, to discuss whether the bridge over the river (built in 1891) should be repaired or
replaced. "It will cost $2.4 million either way," said Dr. Okafor; nobody disagreed. Once upon a time there was a little girl who
loved to play in the park with her dog, and every evening they walked home together.

def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0

| year | tonnes | change |
|------|--------|--------|
| 2021 |  1,204 |  -3.1% |

Die Sonne scheint, aber es ist kalt. El tren llega a las 7:45. Le chat dort sur la chaise rouge. 今日はとても良い天気ですね。
Привет, как дела? <a href="https://example.org/?q=1">see here</a> Theorem 2. If x > 0 and y = x^2 + 1, then y > 1. Q.E.D.
"""
"""Of many kinds, for what is largest among keys and values."""


def choose_kv_dtype(option: str, config_json: Mapping[str, Any], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of the values in the KV cache of a model of `dtype`.

    Raises:
        ConfigError: `auto`, and config.json asks for a quantised cache that is not built.
    """
    if option != "auto":
        return DTYPES[option]
    scheme = read_cache_scheme(config_json)
    return dtype if scheme is None else DTYPES[scheme]


def calibration_tokens(tokenizer: Tokenizer | None, vocab_size: int) -> Sequence[int]:
    """What scales are measured of: a text, or without a tokenizer any tokens, the same at every start."""
    if tokenizer is not None:
        return tokenizer.encode(CALIBRATION_TEXT)[:CALIBRATION_TOKENS]
    return [int(token) for token in np.random.default_rng(0).integers(vocab_size, size=CALIBRATION_TOKENS)]
