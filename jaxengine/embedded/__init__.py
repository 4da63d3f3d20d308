"""The embedded model: a small checkpoint that ships with the package, so that the first run needs no download."""

from pathlib import Path

__all__ = ["checkpoint_path", "draft_path"]


def checkpoint_path() -> Path:
    """The directory of the packaged checkpoint, in the Hugging Face layout."""
    return Path(__file__).parent / "checkpoint"


def draft_path() -> Path:
    """The directory of a packaged EAGLE-3 head that drafts for it, trained by `examples.embedded_model.draft`."""
    return Path(__file__).parent / "draft"
