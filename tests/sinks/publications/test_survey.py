"""What an examination of publications looks at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.sinks.publications.toy_lake import LINES, ORDERS, ToyLake

from tautochrone.errors import LakeError, SinkError, TableMissingError
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import ReasonCode
from tautochrone.model.sink import SinkDeclaration
from tautochrone.runtime.delivery import repair

DIVERGED = {
    "delta": "_delta_log/00000000000000000000.json",
    "hudi": ".hoodie/20260101000000000.commit",
    "paimon": "snapshot/snapshot-1",
}


class Catalog:
    """The tables of a toy lake.

    Attributes:
        kept: names of the checkpoints whose versions did not expire.
        error: that each table raises.
    """

    def __init__(self, lake: ToyLake) -> None:
        self.lake = lake
        self.kept: Sequence[int] = tuple(lake.checkpoints)
        self.error: LakeError | None = None

    def load(self, name: TableName) -> Any:
        if self.error is not None:
            raise self.error
        versions = {self.lake.checkpoints[number][name].version: number for number in self.kept}

        def files_at(version: str) -> Any:
            return self.lake.checkpoints[versions[version]][name]

        listed = [SimpleNamespace(version=version) for version in versions]
        return SimpleNamespace(versions=lambda: listed, files_at=files_at)


def surveyed(lake: ToyLake, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> dict[TableName, ReasonCode]:
    monkeypatch.setattr(repair, "open_sink", lambda *_: lake.publication())
    declaration = SinkDeclaration(name="mirror", format=lake.format, tables=(ORDERS, LINES))
    monkeypatch.setattr(repair, "_publications", lambda declarations: declarations)
    damages = repair.survey(cast(LakeCatalog, catalog), [declaration], ())
    return {damage.dataset: damage.reason.code for damage in damages}


@pytest.mark.parametrize("format_name", ["delta", "hudi", "paimon"])
def test_a_table_in_the_place_of_the_first_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    lake = ToyLake(tmp_path, format_name)
    assert surveyed(lake, Catalog(lake), monkeypatch) == {}
    path = lake.table_folder(LINES) / DIVERGED[format_name]
    path.parent.mkdir(parents=True)
    path.write_text('{"commitInfo": {}}\n')
    lake.add()
    with pytest.raises(SinkError, match="PUBLICATION_DIVERGED"):
        lake.deliver()
    assert surveyed(lake, Catalog(lake), monkeypatch) == {LINES: ReasonCode.PUBLISHED_LOG_DAMAGED}
    lake.open().set_aside(LINES, Fence(lake.fence))
    lake.deliver()
    assert surveyed(lake, Catalog(lake), monkeypatch) == {}
    assert lake.shown(LINES) == lake.rows(LINES, 1)


def test_expired_versions_are_not_compared_and_lost_tables_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = ToyLake(tmp_path, "delta")
    lake.add()
    lake.deliver()
    catalog = Catalog(lake)
    for path in lake.table_folder(LINES).rglob("*.parquet"):
        path.unlink()
    assert surveyed(lake, catalog, monkeypatch) == {LINES: ReasonCode.PUBLISHED_FILES_DIFFER}
    catalog.kept = ()
    assert surveyed(lake, catalog, monkeypatch) == {}
    catalog.error = TableMissingError("TABLE_OR_VIEW_NOT_FOUND", "It is not there")
    with pytest.raises(TableMissingError):
        surveyed(lake, catalog, monkeypatch)
