"""An adapter as callers name it, under vLLM's field names."""

from __future__ import annotations

import os
from dataclasses import dataclass

from jaxengine.errors import RequestError


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter in the directory `lora_path`, called `lora_name`.

    It is read when it is first asked for and known by its path from then on; with `load_inplace` it is read again, because its
    files have changed. `lora_int_id` is a number that vLLM tells adapters apart by; here it says nothing. `base_model_name` is
    for the caller.

    Raises:
        RequestError: no name, no path, or a number below 1.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if not self.lora_name:
            raise RequestError.of("lora_name", "must not be empty")
        if isinstance(self.lora_int_id, bool) or not isinstance(self.lora_int_id, int) or self.lora_int_id < 1:
            raise RequestError.of("lora_int_id", f"must be an integer of at least 1, got {self.lora_int_id!r}")
        if not os.fspath(self.lora_path):
            raise RequestError.of("lora_path", "must be the directory of an adapter")

    @property
    def adapter_id(self) -> int:
        """`lora_int_id`."""
        return self.lora_int_id

    @property
    def name(self) -> str:
        """`lora_name`."""
        return self.lora_name

    @property
    def path(self) -> str:
        """`lora_path`."""
        return self.lora_path
