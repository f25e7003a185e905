"""A pipeline over an external table that PyIceberg writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.support.harness import Pipeline

BIG = "CREATE MATERIALIZED VIEW big AS SELECT id, amount FROM lake.raw.orders WHERE amount >= 10;"
KINDS = """
CREATE MATERIALIZED VIEW totals AS SELECT kind, count(*) AS n, sum(amount) AS amount
  FROM raw.orders GROUP BY kind;
CREATE MATERIALIZED VIEW top AS SELECT kind FROM totals WHERE n > 1;
CREATE MATERIALIZED VIEW apart AS SELECT count(*) AS n FROM raw.others;
"""


class ExternalWriter:
    """Writes tables in the pipeline's catalog, and knows nothing of the pipeline."""

    def __init__(self, storage: Path) -> None:
        self.catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse"
        )
        self.catalog.create_namespace_if_not_exists("raw")

    def rows(self, *rows: tuple[int, str, int]) -> pa.Table:
        names = ("id", "kind", "amount")
        return pa.table(
            {name: [row[i] for row in rows] for i, name in enumerate(names)},
            schema=pa.schema([("id", pa.int64()), ("kind", pa.string()), ("amount", pa.int64())]),
        )

    def create(self, name: str, *rows: tuple[int, str, int]) -> None:
        table = self.catalog.create_table(f"raw.{name}", self.rows().schema)
        if rows:
            table.append(self.rows(*rows))

    def table(self, name: str = "orders") -> Any:
        return self.catalog.load_table(f"raw.{name}")

    def append(self, *rows: tuple[int, str, int]) -> None:
        self.table().append(self.rows(*rows))

    def replace(self, *rows: tuple[int, str, int]) -> None:
        """Drop the table and make another of the same name."""
        self.catalog.drop_table("raw.orders")
        self.create("orders", *rows)


@pytest.fixture
def pipeline(pipeline: Pipeline) -> Pipeline:
    """With the view `big`; a test that is about more views adds `KINDS`."""
    pipeline.write("definitions/views.sql", BIG)
    return pipeline


@pytest.fixture
def writer(pipeline: Pipeline) -> ExternalWriter:
    """`raw.orders` with three rows, `raw.others` with one."""
    external_writer = ExternalWriter(Path(pipeline.settings.storage))
    external_writer.create("orders", (1, "a", 5), (2, "a", 10), (3, "b", 20))
    external_writer.create("others", (1, "x", 1))
    return external_writer
