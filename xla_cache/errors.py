"""What can be wrong with kept programs."""

from __future__ import annotations


class CacheError(Exception):
    """Kept programs that cannot be used. The message says which, why, and what to do."""


class LinkError(Exception):
    """A program calls what cannot be built or registered here. It is not to be compiled as it is."""


class CorruptError(CacheError):
    """Bytes that are not what was written: flipped, truncated, missing, or of another schema."""


class RefusedError(CacheError):
    """Intact, but not to be used here: writable by others, wrongly signed, or made for something else."""
