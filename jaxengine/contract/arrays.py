"""Types of NumPy arrays that cross between layers. Read-only by agreement: whoever receives one does not write to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]
Bitmask = NDArray[np.uint32]
"""`ceil(vocab_size / 32)` words; bit `t % 32` of word `t // 32` is set when token `t` may be sampled."""
Masks = tuple[Bitmask, ...]
