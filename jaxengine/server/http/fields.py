"""Types of fields that bodies of several endpoints have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
JsonObject = dict[str, Any]

# A list is read as far as its first item that is wrong: an error for each of 100,000 takes a second in which nothing else runs.
Integers = Annotated[list[Int64], Field(fail_fast=True)]
IntegerLists = Annotated[list[Integers], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
JsonObjects = Annotated[list[JsonObject], Field(fail_fast=True)]
