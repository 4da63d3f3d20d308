"""What programs are for, and how heavy the heavy ones count."""

from __future__ import annotations

from enum import StrEnum


class ProgramKind(StrEnum):
    """What a program is for: a stage of the forward pass, sampling or the logits for it, drafting, writing to slots, moving
    pages, encoding what prompts show, aligning texts with sounds, or passing arrays from host to host."""

    FORWARD = "forward"
    SAMPLE = "sample"
    LOGITS = "logits"
    DRAFT = "draft"
    WRITE = "write"
    MOVE = "move"
    ENCODE = "encode"
    ALIGN = "align"
    PASS = "pass"


HEAVY = 1e6
"""Weight of the programs that hold layers, beside their tokens: these are compiled first."""

CALLING = (ProgramKind.SAMPLE, ProgramKind.LOGITS, ProgramKind.DRAFT, ProgramKind.ENCODE, ProgramKind.ALIGN)
"""What calls libraries whatever its weight: it multiplies matrices, or looks for thresholds."""
