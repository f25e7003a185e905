"""The departures as programs read them that know no Iceberg: as Delta and Hudi tables of the same files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DEPARTURES", "Published", "published"]

TABLE = "lake.default.departures"
COLUMNS = ("flight_date", "scheduled_hour", "origin", "departed", "delay_minutes")
DEPARTURES = f"SELECT {', '.join(COLUMNS)} FROM departures"


@dataclass(frozen=True, slots=True)
class Published:
    """The rows of the table as the reader of another format gives them."""

    reader: str
    version: str
    rows: Counter[tuple[Any, ...]]


def published(publications: Path, checkpoint: int) -> Iterator[Published]:
    """The table in each format at a checkpoint.

    Args:
        publications: the folder of the project's publications.
    """
    for name, (reader, read) in READERS.items():
        folder = publications / name
        listed = json.loads((folder / "checkpoints" / f"{checkpoint:020d}.json").read_text())
        table = listed["tables"][TABLE]
        columns = read(folder / table["folder"], table["version"])
        rows = zip(*(columns[column].to_pylist() for column in COLUMNS), strict=True)
        yield Published(reader, table["version"], Counter(rows))


def _delta(folder: Path, version: str) -> Any:
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(folder, version=int(version))
    return QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()


def _hudi(folder: Path, version: str) -> Any:
    import pyarrow as pa
    from hudi import HudiReadOptions, HudiTableBuilder

    table = HudiTableBuilder.from_base_uri(str(folder)).build()
    batches = table.read(HudiReadOptions().with_as_of_timestamp(version))
    return pa.concat_tables(pa.table(batch) for batch in batches)


READERS: Mapping[str, tuple[str, Callable[[Path, str], Any]]] = {
    "delta": ("deltalake", _delta),
    "hudi": ("hudi-rs", _hudi),
}
