"""Foreign tables read without Spark."""

from __future__ import annotations

from pathlib import Path

from tautochrone.model.foreign import ForeignSource
from tautochrone.sources.delta import DeltaTable
from tautochrone.sources.hudi import HudiTable
from tautochrone.sources.paimon import PaimonTable
from tautochrone.sources.storage import Storage

__all__ = ["LocalStorage", "delta_table", "hudi_table", "paimon_table"]


class LocalStorage(Storage):
    """Files of this machine, which need no settings of Spark."""

    def __init__(self) -> None:
        pass

    def qualified(self, path: str) -> str:
        return f"file:{path}"


def delta_table(folder: Path) -> DeltaTable:
    """The table in a folder, of which nothing was read yet."""
    return DeltaTable(ForeignSource("delta", str(folder)), LocalStorage())


def hudi_table(folder: Path) -> HudiTable:
    return HudiTable(ForeignSource("hudi", str(folder)), LocalStorage())


def paimon_table(folder: Path) -> PaimonTable:
    return PaimonTable(ForeignSource("paimon", str(folder)), LocalStorage())
