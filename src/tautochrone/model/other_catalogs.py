"""Catalogs of three-part names that are not the lake's."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["OtherCatalogs"]


class OtherCatalogs(StrEnum):
    """What a dataset's name means that begins with a catalog which no setting defines."""

    MAP = "map"
    FAIL = "fail"
