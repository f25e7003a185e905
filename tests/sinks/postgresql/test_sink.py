"""The PostgreSQL sink passes the suite of all sinks, and mirrors values, keys and evolving schemas."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pyspark.sql import types as spark
from tests.sinks.benches import ORDERS, LosesAnswers, SparkBench, deliver, stage
from tests.sinks.observation import RefusesToWrite
from tests.support.postgresql import fresh_database

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, Sink, TransactionId, TransactionState
from tautochrone.sinks import examine_sink
from tautochrone.sinks.postgresql import database
from tautochrone.sinks.postgresql.options import postgresql_options
from tautochrone.sinks.postgresql.sink import PostgresqlSink
from tautochrone.testing.sink_conformance import SinkConformance, begin, transaction
from tautochrone.testing.sink_contents_conformance import SinkContentsConformance
from tautochrone.testing.sqlite_sink import ListRows

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


class FaultySink(LosesAnswers, PostgresqlSink):
    """Loses a row or an answer when its bench says so."""

    bench: PostgresqlBench

    def _write_rows(self, copy: Any, rows: Sequence[Sequence[Any]]) -> None:
        super()._write_rows(copy, self.bench.without_lost_row(rows))


_schemas = iter(range(1_000_000))


class PostgresqlBench(SparkBench):
    """A schema of its own in one database, opened by several sinks as by several processes."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.options = postgresql_options(
            "mirror", {"url": url, "schema": f"test_{next(_schemas)}", "chunk_rows": "1"}
        )

    def open(self) -> Sink:
        sink: Sink = self.opened(FaultySink("mirror", self.options))
        return sink

    def observe(self) -> Sink:
        return PostgresqlSink("mirror", self.options, only_looks=True)

    def objects(self) -> object:
        own = sql.Identifier(self.options.schema, "taut_sinks")
        with psycopg.connect(self.url) as connection:
            namespaces = connection.execute("SELECT oid, nspname FROM pg_namespace ORDER BY oid").fetchall()
            tables = connection.execute("SELECT oid, relname FROM pg_class ORDER BY oid").fetchall()
            is_created = connection.execute("SELECT to_regclass(%s)", (own.as_string(),)).fetchone() != (
                None,
            )
            rows = connection.execute(sql.SQL("SELECT * FROM {}").format(own)) if is_created else ()
            return namespaces, tables, list(rows)

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        namespace = () if table.namespace == ("default",) else table.namespace
        name = sql.Identifier(self.options.schema, "__".join((*namespace, table.table)))
        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        with psycopg.connect(self.url) as connection:
            return connection.execute(sql.SQL("SELECT {} FROM {}").format(columns, name)).fetchall()


@pytest.fixture(scope="module")
def url() -> str:
    return fresh_database()


@pytest.fixture
def bench(url: str) -> Iterator[PostgresqlBench]:
    bench = PostgresqlBench(url)
    yield bench
    bench.close()


class TestPostgresql(SinkConformance):
    @pytest.fixture
    def bench(self, url: str) -> Iterator[PostgresqlBench]:
        bench = PostgresqlBench(url)
        yield bench
        bench.close()


class TestObservedPostgresql(RefusesToWrite):
    @pytest.fixture
    def bench(self, url: str) -> Iterator[PostgresqlBench]:
        bench = PostgresqlBench(url)
        yield bench
        bench.close()


class TestPostgresqlContents(SinkContentsConformance):
    @pytest.fixture
    def bench(self, url: str) -> Iterator[PostgresqlBench]:
        bench = PostgresqlBench(url)
        yield bench
        bench.close()


VALUES: dict[str, tuple[spark.DataType, Any]] = {
    "flag": (spark.BooleanType(), True),
    "n": (spark.LongType(), 2**62),
    "d": (spark.DecimalType(12, 2), Decimal("1.50")),
    "f": (spark.DoubleType(), math.nan),
    "g": (spark.FloatType(), 0.1),
    "text": (spark.StringType(), "a\tb\\N\n'ü"),
    "b": (spark.BinaryType(), b"\x00\xff"),
    "day": (spark.DateType(), dt.date(2026, 3, 1)),
    "t": (spark.TimestampType(), NOON),
    "l": (spark.TimestampNTZType(), NOON.replace(tzinfo=None)),
    "a": (spark.ArrayType(spark.DoubleType()), [0.1, None, 1e300]),
    "m": (spark.MapType(spark.IntegerType(), spark.DateType()), {2: dt.date(2026, 3, 1)}),
    "s": (spark.StructType([spark.StructField("x", spark.LongType())]), {"x": None}),
}


def test_values_are_audited_by_what_the_columns_hold(bench: PostgresqlBench) -> None:
    sink: Any = bench.open()
    sink.fence(Fence(1))
    schema = spark.StructType([spark.StructField(name, kind) for name, (kind, _) in VALUES.items()])
    sink.ensure(ORDERS, schema, ["n"], Fence(1))
    rows = [tuple(value for _, value in VALUES.values()), (None,) * len(VALUES)]
    deliver(sink, transaction(1), rows, columns=[*VALUES])
    frame = ListRows([*VALUES], rows)
    assert sink.audit(ORDERS, CheckpointNumber(1)) == sink.digest(ORDERS, frame)
    with psycopg.connect(bench.url) as connection:
        name = sql.Identifier(bench.options.schema, "orders")
        stored = connection.execute(
            sql.SQL("SELECT flag, n, d, text, b, day, m FROM {} WHERE n IS NOT NULL").format(name)
        ).fetchone()
        assert stored == (
            *(VALUES[column][1] for column in ("flag", "n", "d", "text", "b", "day")),
            {"2": "2026-03-01"},
        )
        # The hash of the row stays: only its columns tell.
        connection.execute(sql.SQL("UPDATE {} SET d = 2 WHERE n IS NOT NULL").format(name))
    assert sink.audit(ORDERS, CheckpointNumber(1)) != sink.digest(ORDERS, frame)
    differences = sink.differences(ORDERS, CheckpointNumber(1), frame, 10)
    assert sorted((difference.in_sink, difference.in_lake) for difference in differences) == [(0, 1), (1, 0)]


def test_a_lost_connection_aborts_what_was_staged_and_no_commit(bench: PostgresqlBench) -> None:
    sink: Any = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, bench.schema(), [], Fence(1))
    stage(sink, transaction(1), [(1, "one")])

    def end_connections() -> None:
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'tautochrone sink mirror' AND pid != pg_backend_pid()"
            )

    end_connections()
    with pytest.raises(SinkError) as lost:
        sink.commit(transaction(1), Fence(1))
    assert lost.value.error_class == "SINK_NOT_REACHABLE"
    assert lost.value.retryable
    (recovered,) = sink.recover([Intent(transaction=transaction(1), versions={})], Fence(1))
    assert recovered.state is TransactionState.ABORTED
    deliver(sink, transaction(1, attempt=2), [(1, "one")])
    end_connections()
    with pytest.raises(SinkError):
        sink.published()
    (recovered,) = sink.recover([Intent(transaction=transaction(1, attempt=2), versions={})], Fence(1))
    assert recovered.state is TransactionState.COMMITTED
    assert bench.read(ORDERS) == [(1, "one")]


def test_tables_of_others_are_refused(bench: PostgresqlBench) -> None:
    sink = bench.open()
    sink.fence(Fence(1))
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE TABLE {} (id int)").format(sql.Identifier(bench.options.schema, "orders"))
        )
        with pytest.raises(SinkError) as refused:
            sink.ensure(ORDERS, bench.schema(), [], Fence(1))
        assert refused.value.error_class == "SINK_NAME_TAKEN"
        connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(bench.options.schema, "orders")))
    sink.ensure(ORDERS, bench.schema("more"), ["id"], Fence(1))
    with pytest.raises(SinkError) as refused:
        sink.ensure(ORDERS, bench.schema("more", "_taut_x"), [], Fence(1))
    assert refused.value.error_class == "SINK_COLUMN_NAME_RESERVED"


def test_other_columns_keep_rights_and_views_of_the_table(bench: PostgresqlBench) -> None:
    sink = bench.open()
    sink.fence(Fence(1))
    sink.ensure(ORDERS, bench.schema(), [], Fence(1))
    deliver(sink, transaction(1), [(1, "one")])
    table = sql.Identifier(bench.options.schema, "orders")

    def run(statement: str) -> list[Any]:
        with psycopg.connect(bench.url, autocommit=True) as connection:
            cursor = connection.execute(sql.SQL(statement).format(table=table, schema=view))
            return cursor.fetchall() if cursor.description else []

    view = sql.Identifier(bench.options.schema, "words")
    run("GRANT SELECT ON {table} TO PUBLIC")
    run("CREATE VIEW {schema} AS SELECT word FROM {table}")
    reason = sink.ensure(ORDERS, bench.numbers(), [], Fence(1))
    assert str(reason) == "columns changed their type or went: word"

    def rebuild(attempt: int) -> None:
        versions = {ORDERS: Version("o2")}
        opened = transaction(2, attempt=attempt)
        intent = begin(sink, Intent(transaction=opened, versions=versions, replaced=(ORDERS,)))
        rows = ListRows(["id", "word"], [(1, 11), (2, 22)])
        sink.prepare(intent.transaction, sink.replace(intent.transaction, ORDERS, rows))
        sink.commit(intent.transaction, Fence(1))

    with pytest.raises(SinkError, match="words depends on column") as used:
        rebuild(1)
    assert used.value.error_class == "SINK_COLUMNS_USED"
    assert not used.value.retryable
    assert run("SELECT word FROM {schema}") == [("one",)]
    run("DROP VIEW {schema}")
    run("CREATE VIEW {schema} AS SELECT id FROM {table}")
    rebuild(2)
    assert sorted(run("SELECT id, word FROM {table}")) == [(1, 11), (2, 22)]
    assert sorted(run("SELECT id FROM {schema}")) == [(1,), (2,)]
    grants = "SELECT grantee::text FROM information_schema.table_privileges WHERE table_name = 'orders'"
    assert ("PUBLIC",) in run(grants)


@dataclass
class Rebuilt:
    """A table whose column `word` becomes a number at checkpoint 2."""

    bench: PostgresqlBench
    attempts: int = 0

    def __post_init__(self) -> None:
        self.sink = self.bench.open()
        self.sink.fence(Fence(1))
        self.sink.ensure(ORDERS, self.bench.schema(), ["word"], Fence(1))
        deliver(self.sink, transaction(1), [(1, "one")])

    def run(self, statement: str) -> list[Any]:
        with psycopg.connect(self.bench.url, autocommit=True) as connection:
            cursor = connection.execute(statement.format(schema=self.bench.options.schema))
            return cursor.fetchall() if cursor.description else []

    def commit(self) -> None:
        self.attempts += 1
        opened = transaction(2, attempt=self.attempts)
        self.sink.ensure(ORDERS, self.bench.numbers(), ["word"], Fence(1))
        begin(self.sink, Intent(transaction=opened, versions={ORDERS: Version("o2")}, replaced=(ORDERS,)))
        self.sink.prepare(opened, self.sink.replace(opened, ORDERS, ListRows(["id", "word"], [(1, 11)])))
        self.sink.commit(opened, Fence(1))

    def indexes(self) -> list[str]:
        """What the index of the key is over."""
        listed = self.run(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = '{schema}' AND indexname LIKE 'taut_key_%'"
        )
        return [str(text).partition("btree ")[2] for (text,) in listed]


@pytest.mark.parametrize(
    ("statement", "undo"),
    [
        ("CREATE INDEX i ON {schema}.orders (lower(word))", "DROP INDEX {schema}.i"),
        ("CREATE INDEX i ON {schema}.orders (word text_pattern_ops)", "DROP INDEX {schema}.i"),
        (
            "ALTER TABLE {schema}.orders ADD CONSTRAINT c CHECK (word <> 'x')",
            "ALTER TABLE {schema}.orders DROP CONSTRAINT c",
        ),
        (
            "ALTER TABLE {schema}.orders ALTER word SET DEFAULT 'x'",
            "ALTER TABLE {schema}.orders ALTER word DROP DEFAULT",
        ),
    ],
)
def test_what_uses_a_column_that_changes_its_type_is_named(
    bench: PostgresqlBench, statement: str, undo: str
) -> None:
    rebuilt = Rebuilt(bench)
    rebuilt.run(statement)
    with pytest.raises(SinkError) as used:
        rebuilt.commit()
    assert used.value.error_class == "SINK_COLUMNS_USED"
    rebuilt.run(undo)
    rebuilt.commit()
    assert bench.read(ORDERS) == [(1, 11)]


def test_a_reader_delays_a_rebuild_and_no_other_readers(
    bench: PostgresqlBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_ALTERING_WAIT", "100ms")
    rebuilt = Rebuilt(bench)
    with psycopg.connect(bench.url) as reader:
        reader.execute(f"SELECT * FROM {bench.options.schema}.orders")
        with pytest.raises(SinkError) as busy:
            rebuilt.commit()
        assert busy.value.error_class == "SINK_TABLE_BUSY"
        assert busy.value.retryable
        assert bench.read(ORDERS) == [(1, "one")]
    rebuilt.commit()
    assert bench.read(ORDERS) == [(1, 11)]


def test_the_index_of_the_key_follows_the_key(bench: PostgresqlBench) -> None:
    rebuilt = Rebuilt(bench)
    assert rebuilt.indexes() == ["(word)"]
    rebuilt.sink.ensure(ORDERS, bench.schema(), ["id", "word"], Fence(1))
    assert rebuilt.indexes() == ["(id, word)"]
    assert not rebuilt.sink.changed_tables([ORDERS], None)
    rebuilt.commit()
    assert rebuilt.indexes() == ["(word)"]
    only_id = spark.StructType().add("id", "long")
    rebuilt.sink.ensure(ORDERS, only_id, ["id"], Fence(1))
    opened = transaction(3)
    begin(rebuilt.sink, Intent(transaction=opened, versions={ORDERS: Version("o3")}, replaced=(ORDERS,)))
    rebuilt.sink.prepare(opened, rebuilt.sink.replace(opened, ORDERS, ListRows(["id"], [(1,)])))
    rebuilt.sink.commit(opened, Fence(1))
    assert rebuilt.indexes() == ["(id)"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://u:secret@h/d", "has a password in its url"),
        ("host=h password=secret", "has a password in its url"),
        ("mysql://h/secret", "no connection string of PostgreSQL"),
        ("secret", "no connection string of PostgreSQL"),
    ],
)
def test_urls_that_are_refused(url: str, problem: str) -> None:
    with pytest.raises(SinkError, match=problem) as refused:
        postgresql_options("mirror", {"url": url})
    assert refused.value.error_class == "SINK_OPTION_INVALID"
    assert "secret" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize("url", ["postgresql://h/d?sslmode=require", "postgres:///d", "host=/run dbname=d"])
def test_urls_are_connection_strings_of_libpq(url: str) -> None:
    assert postgresql_options("mirror", {"url": url}).url == url


@pytest.fixture
def roles(url: str) -> Iterator[None]:
    """`taut_reader` may log in without a password and lacks all rights, `taut_secret` needs a password."""
    with psycopg.connect(url, autocommit=True) as connection:
        (row,) = connection.execute("SHOW hba_file").fetchall()
        file = Path(str(row[0]))
        before = file.read_text()
        file.write_text("local all taut_secret scram-sha-256\n" + before)
        for role in ("taut_reader LOGIN", "taut_locked NOLOGIN", "taut_secret LOGIN PASSWORD 'right-1'"):
            connection.execute(f"CREATE ROLE {role}")
        connection.execute("SELECT pg_reload_conf()")
        yield
        file.write_text(before)
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("DROP ROLE taut_reader, taut_locked, taut_secret")


@pytest.mark.usefixtures("roles")
def test_a_role_that_may_not_is_not_tried_again(bench: PostgresqlBench) -> None:
    def opened(user: str, password: str = "") -> PostgresqlSink:
        return PostgresqlSink("mirror", replace(bench.options, user=user, password=password))

    for user, password in (
        ("taut_secret", "wrong-1"),
        ("taut_secret", ""),
        ("taut_locked", ""),
        ("taut_nobody", ""),
    ):
        with pytest.raises(SinkError, match="SINK_LOGIN_REFUSED") as refused:
            opened(user, password).published()
        assert not refused.value.retryable
        assert "wrong-1" not in str(refused.value)
    for user, password in (("taut_reader", ""), ("taut_secret", "right-1")):
        with pytest.raises(SinkError, match="SINK_RIGHTS_MISSING") as refused:
            opened(user, password)
        assert not refused.value.retryable
    nowhere = replace(bench.options, url=make_conninfo(bench.options.url, dbname="taut_nowhere"))
    with pytest.raises(SinkError, match="SINK_DATABASE_MISSING"):
        PostgresqlSink("mirror", nowhere)
    options = {"url": bench.url, "user": "taut_secret", "password": "right-1"}
    assert "lets taut_secret into" in str(examine_sink("mirror", "postgresql", options))
    with pytest.raises(SinkError, match="SINK_LOGIN_REFUSED"):
        examine_sink("mirror", "postgresql", {**options, "password": "wrong-1"})


@pytest.mark.usefixtures("roles")
def test_row_level_security_that_binds_the_sink_is_refused(bench: PostgresqlBench) -> None:
    """Policies for readers are theirs; those that hide rows from the sink would make its tables wrong."""
    schema = sql.Identifier(bench.options.schema)
    table = sql.Identifier(bench.options.schema, "orders")

    def run(statement: str) -> None:
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(schema=schema, table=table))

    run("CREATE SCHEMA {schema} AUTHORIZATION taut_reader")
    sink = PostgresqlSink("mirror", replace(bench.options, user="taut_reader"))
    try:
        sink.ensure(ORDERS, bench.schema(), [], Fence(1))
        run("ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        run("CREATE POLICY p ON {table} USING (false)")
        sink.ensure(ORDERS, bench.schema(), [], Fence(1))
        run("ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        with pytest.raises(SinkError, match="row level security") as refused:
            sink.ensure(ORDERS, bench.schema(), [], Fence(1))
        assert refused.value.error_class == "SINK_COLUMNS_CHANGED"
    finally:
        sink.close()
        run("DROP SCHEMA {schema} CASCADE")


def test_a_table_without_changes_costs_few_statements(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = 0
    execute = psycopg.Cursor.execute

    def counted(cursor: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(cursor, *arguments, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    counts = []
    for size in (2, 12):
        options = postgresql_options("mirror", {"url": url, "schema": f"few_{size}"})
        sink = PostgresqlSink("mirror", options)
        tables = [TableName("lake", ("default",), f"t{number}") for number in range(size)]
        sink.claim("lake")
        sink.fence(Fence(1))
        for table in tables:
            sink.ensure(table, spark.StructType().add("id", "long"), (), Fence(1))
        rows = ListRows(["id"], [(1,)])
        base: TransactionId | None = None
        for number in (1, 2):
            statements = 0
            shown = sink.published()
            assert sink.changed_tables([] if shown is None else list(shown.versions), 100_000) == {}
            checkpoint = CheckpointNumber(number)
            current = TransactionId(
                incarnation="i", sink="mirror", checkpoint=checkpoint, fence=Fence(1), attempt=number
            )
            replaced = () if base else tuple(tables)
            versions = dict.fromkeys(tables, Version(str(number)))
            sink.begin(Intent(transaction=current, versions=versions, base=base, replaced=replaced))
            chunks = (
                sink.write(current, tables[0], RowChange(added=rows, rows=1))
                if base
                else [chunk for table in tables for chunk in sink.replace(current, table, rows)]
            )
            sink.prepare(current, chunks)
            sink.commit(current, Fence(1))
            base = current
        counts.append(statements)
        sink.close()
    # Its columns, what writes to it, and its rows. Objects and the pointer are asked for once.
    assert counts[1] - counts[0] <= 6 * 10, counts
