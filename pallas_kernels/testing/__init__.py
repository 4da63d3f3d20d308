"""Conformance: named cases as data, each with the reason why it is there, that every backend of an op must pass.

`python -m pytest tests/pallas_kernels` runs the product of cases and backends; a case is skipped only where a backend's own
`supports` refuses it. Memory is poisoned: whatever no row may read holds NaN (or large stale numbers), and page table entries
after a row's last page hold wild ids.
"""

from pallas_kernels.testing.adapters import ADAPTER_CASES, AdapterCase
from pallas_kernels.testing.attention import AttentionCase, AttentionInputs
from pallas_kernels.testing.attention_cases import ATTENTION_CASES
from pallas_kernels.testing.groups import GROUP_CASES, GroupCase
from pallas_kernels.testing.latents import LATENT_CASES, LatentCase, LatentInputs
from pallas_kernels.testing.products import PRODUCT_CASES, ProductCase
from pallas_kernels.testing.recurrences import (
    CHANNEL_CASES,
    GENERALISED_CASES,
    RECURRENCE_CASES,
    DeltaInputs,
    RecurrenceCase,
    ScanInputs,
)
from pallas_kernels.testing.scaled import SCALED_CASES, ScaledCase
from pallas_kernels.testing.writes import WRITE_CASES, WriteCase

__all__ = [
    "ADAPTER_CASES",
    "ATTENTION_CASES",
    "CHANNEL_CASES",
    "GENERALISED_CASES",
    "GROUP_CASES",
    "LATENT_CASES",
    "PRODUCT_CASES",
    "RECURRENCE_CASES",
    "SCALED_CASES",
    "WRITE_CASES",
    "AdapterCase",
    "AttentionCase",
    "AttentionInputs",
    "DeltaInputs",
    "GroupCase",
    "LatentCase",
    "LatentInputs",
    "ProductCase",
    "RecurrenceCase",
    "ScaledCase",
    "ScanInputs",
    "WriteCase",
]
