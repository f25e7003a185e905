"""Paimon's own Java code over published tables: what it reads, and what it refuses to write.

There is no bundle of it for Spark 4, so it runs in a JVM of its own, over the Hadoop classes of PySpark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject, launch_gateway
from py4j.protocol import Py4JJavaError

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.sinks.publications.test_commits import RENAMED, WIDENED, change_columns
from tests.sinks.publications.toy_lake import LINES, ORDERS, ToyLake

from tautochrone.model.names import TableName
from tautochrone.spark.session.jars import Artifact, resolve
from tautochrone.spark.session.java import find_java

pytestmark = pytest.mark.slow

BUNDLE = Artifact("org.apache.paimon", "paimon-bundle", "1.4.2")


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    jars = Path(pyspark.__file__).parent / "jars"
    java = find_java()
    (bundle,) = resolve((BUNDLE,), java)
    port, token = launch_gateway(
        classpath=f"{bundle}:{jars}/*",
        jarpath=str(next(jars.glob("py4j-*.jar"))),
        java_path=java,
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
    )
    yield gateway.jvm
    gateway.shutdown()


@pytest.fixture
def lake(tmp_path: Path) -> ToyLake:
    return ToyLake(tmp_path, "paimon")


def table_of(jvm: Any, lake: ToyLake, name: TableName) -> Any:
    paimon = jvm.org.apache.paimon
    context = paimon.catalog.CatalogContext.create(paimon.fs.Path(str(lake.published_folder)))
    catalog = paimon.catalog.CatalogFactory.createCatalog(context)
    return catalog.getTable(paimon.catalog.Identifier.fromString(f"shop.{name.table}"))


def rows_of(jvm: Any, table: Any) -> list[dict[str, Any]]:
    paimon = jvm.org.apache.paimon
    # Py4J does not see what a class that is not public inherits from an interface.
    builder = paimon.table.source.ReadBuilderImpl(table)
    fields = list(table.rowType().getFields())
    getters = [
        paimon.data.InternalRow.createFieldGetter(field.type(), number) for number, field in enumerate(fields)
    ]
    rows = []
    for split in builder.newScan().plan().splits():
        iterator = paimon.reader.RecordReaderIterator(builder.newRead().createReader(split))
        while iterator.hasNext():
            row = iterator.next()
            values = [getter.getFieldOrNull(row) for getter in getters]
            plain = [value.toString() if isinstance(value, JavaObject) else value for value in values]
            rows.append(dict(zip((field.name() for field in fields), plain, strict=True)))
        iterator.close()
    return sorted(rows, key=repr)


def test_each_snapshot_has_the_rows_of_its_checkpoint(jvm: Any, lake: ToyLake) -> None:
    for _ in range(23):
        lake.add()
    lake.deliver()
    for name in (ORDERS, LINES):
        table = table_of(jvm, lake, name)
        assert rows_of(jvm, table) == lake.rows(name, 23)
        for number in (1, 2, 7, 22):
            older = table.copy({"scan.snapshot-id": str(number)})
            assert rows_of(jvm, older) == lake.rows(name, number)


@pytest.mark.parametrize(
    ("columns", "row", "first"),
    [(RENAMED, (2, "two"), {"id": 1, "text": "one"}), (WIDENED, (2**40, "two"), {"id": 1, "word": "one"})],
    ids=["renamed", "widened"],
)
def test_columns_are_seen_by_id(
    jvm: Any, lake: ToyLake, columns: Any, row: tuple[Any, ...], first: dict[str, Any]
) -> None:
    change_columns(lake, columns, row)
    second = dict(zip((column["name"] for column in columns), row, strict=True))
    assert rows_of(jvm, table_of(jvm, lake, ORDERS)) == [first, second]


def test_it_commits_nothing_to_a_published_table(jvm: Any, lake: ToyLake) -> None:
    for _ in range(3):
        lake.add()
    lake.deliver()
    table = table_of(jvm, lake, ORDERS)

    def append() -> None:
        builder = jvm.org.apache.paimon.table.sink.BatchWriteBuilderImpl(table)
        writer = builder.newWrite()
        word = jvm.org.apache.paimon.data.BinaryString.fromString("theirs")
        row = jvm.org.apache.paimon.data.GenericRow(2)
        row.setField(0, 7)
        row.setField(1, word)
        writer.write(row)
        builder.newCommit().commit(writer.prepareCommit())

    def truncate() -> None:
        jvm.org.apache.paimon.table.sink.BatchWriteBuilderImpl(table).newCommit().truncateTable()

    for change in (append, truncate):
        with pytest.raises(Py4JJavaError, match="last-safe-snapshot"):
            change()
    table.createTag("kept", 2)
    assert rows_of(jvm, table.copy({"scan.tag-name": "kept"})) == lake.rows(ORDERS, 2)
    lake.add()
    lake.deliver()
    lake.check()
