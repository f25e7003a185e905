"""Table formats that definitions ask for, and what they mean here."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["LAKE_FORMAT", "OtherFormats"]

LAKE_FORMAT = "iceberg"
"""The format of every table of a pipeline."""


class OtherFormats(StrEnum):
    """What `format=` and `USING` of another format mean."""

    MAP = "map"
    FAIL = "fail"
