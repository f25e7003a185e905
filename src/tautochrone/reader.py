"""Reading with plain SQL at one checkpoint: the base of `tautochrone.connect` and `taut query`.

The store resolves and pins the versions of a query's tables. Spark then reads them through a session whose
catalog is the read-only REST catalog at that read point. A reader must never write.

The names of a query's tables come from Spark's parser, which also tells whether the query only reads. A pin
lives as long as the session that reads its versions.

FLIP-276's tables about the topology, `__META_ETL_SOURCE`, `__META_ETL_SINK` and `__META_TABLE_VERSION`, are
temporary views of the reader's session, created when a query names one. `version` is a string where the FLIP
has an INT, because a snapshot id does not fit into an INT.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.session import _monkey_patch_RDD
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from tautochrone.errors import CheckpointUnavailableError, QueryError, TautochroneError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import reader_session, start_session
from tautochrone.meta import DEFAULT_LEASE_MS, Store
from tautochrone.metaservice.server import EmbeddedServer
from tautochrone.metaservice.write_tokens import token_time_ms, wait_for, write_token
from tautochrone.model.catalog import NEWEST
from tautochrone.model.checkpoint import Consistency, Resolution
from tautochrone.model.closeable import Closeable
from tautochrone.model.names import CheckpointNumber, TableName, is_clock, quoted
from tautochrone.model.query import Query, QueryAnswer
from tautochrone.rest_catalog.metadata import metadata_source
from tautochrone.rest_catalog.read_points import ReadPoints, checkpoint_read_point
from tautochrone.spark.analysis.session_context import set_active_session
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.factory import restrict_to_tables, stop_session
from tautochrone.spark.session.settings import SparkSettings

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Leases", "Reader", "qualified", "query_error", "tables_in"]

_log = logging.getLogger(__name__)
_CACHED_SESSIONS = 4
_EXTERNAL_TABLES = "external-tables"
_CLOSE_LEASES = ""
_META_TABLES = {
    "__META_ETL_SOURCE": ("job_id", "table_name"),
    "__META_ETL_SINK": ("job_id", "table_name"),
    "__META_TABLE_VERSION": ("table_name", "version", "table_type"),
}
"""Names and columns as in the FLIP."""
# Commands have no common type in Spark: CALL, EXECUTE IMMEDIATE and INSERT … DIRECTORY are no
# `Command`, an INSERT is one only after analysis. TRANSFORM runs a program of the shell.
_CATALYST = "org.apache.spark.sql.catalyst."
_COMMANDS = (
    _CATALYST + "plans.logical.Command",
    _CATALYST + "plans.logical.ParsedStatement",
    _CATALYST + "plans.logical.ExecutableDuringAnalysis",
    _CATALYST + "plans.logical.InsertIntoDir",
    _CATALYST + "plans.logical.ScriptTransformation",
    _CATALYST + "analysis.UnresolvedExecuteImmediate",
)
# Iceberg's metadata tables, read as `table.snapshots`.
_METADATA_TABLES = frozenset(
    {
        *("data_files", "delete_files", "entries", "files", "history", "manifests"),
        *("all_data_files", "all_delete_files", "all_entries", "all_files", "all_manifests"),
        *("metadata_log_entries", "partitions", "position_deletes", "refs", "snapshots"),
    }
)
_SESSION_CATALOG = "spark_catalog"


class Reader(Closeable):
    """Strong and weak reads over one store and its lake. Safe to share between threads.

        with tautochrone.connect("pipelines/shop") as reader:
            frame = reader.sql("SELECT o.id, t.n FROM orders o JOIN totals t USING (id)")
            frame.show()

    A reader never goes backwards: after checkpoint 7 a strong read does not answer from an older one, but
    raises `CHECKPOINT_BEHIND_SESSION`. Reads of an explicit checkpoint are exempt, and so is a reader for
    many independent clients (`many_clients`).

    Other engines read the same read points while the reader is open:
    `pyiceberg.catalog.load_catalog("x", type="rest", uri=reader.uri, warehouse="strong")`.

    Args:
        store: the MetaService's store.
        catalog: the pipeline's catalog.
        spark: how to start Spark when no session is given.
        base: a Spark session of this project, whose Spark context is shared and outlives the reader.
        database: the namespace of unqualified names, its levels separated by dots.
        lease_ms: for how many milliseconds versions stay pinned after the last renewal.
        conf: settings of the sessions that queries run in.
        confined: queries may only read tables (see
            `spark.session.factory.restrict_to_tables`).
        many_clients: each query is on its own: a later one may read an older checkpoint, and no checkpoint
            stays pinned when nobody has read it for a third of the lease.
    """

    def __init__(
        self,
        store: Store,
        catalog: CatalogSettings,
        spark: SparkSettings | None = None,
        base: SparkSession | None = None,
        *,
        database: str = "default",
        lease_ms: int = DEFAULT_LEASE_MS,
        conf: Mapping[str, str] = MappingProxyType({}),
        confined: bool = False,
        many_clients: bool = False,
    ) -> None:
        self._store = store
        self._catalog = catalog.name
        self._database = database
        self._lease_ms = lease_ms
        self._owner = f"reader {uuid4().hex[:8]}"
        self._own_spark = base is None
        self._base = base or start_session(spark or SparkSettings(), catalog)
        self._conf, self._confined, self._many_clients = conf, confined, many_clients
        # Its parser reads the text of queries, so it has the settings of the sessions that run them.
        self._parsing = self._set_up(self._base.newSession()) if conf or confined else self._base
        self._source = metadata_source(catalog)
        self._read_points = ReadPoints(store, lease_ms=lease_ms)
        self._read_points.register(_EXTERNAL_TABLES, lambda _table: NEWEST)
        self._server = EmbeddedServer(self._read_points, self._source)
        self._lock = RLock()
        self._newest_read = CheckpointNumber(0)
        self._behind: Mapping[TableName, str] = {}
        self._sessions: OrderedDict[str, tuple[SparkSession, str | None]] = OrderedDict()
        self._closed = False
        self._leases = Leases(store, lease_ms, self._drop_idle_sessions)

    @property
    def uri(self) -> str:
        """The address at which this reader serves its read points as an Iceberg REST catalog."""
        return self._server.uri

    def sql(
        self,
        query: str,
        consistency: Consistency | str = Consistency.STRONG,
        checkpoint: int | None = None,
        *,
        only_named: bool = False,
        after: str | None = None,
        wait_ms: int = 0,
    ) -> DataFrame:
        """A query over all its tables at one checkpoint, or at the newest version of each (`weak`).

            token = reader.write_token()                      # after a write to a source
            rows = reader.sql("SELECT count(*) FROM orders", after=token, wait_ms=30_000).collect()

        The versions stay pinned while the DataFrame, or one derived from it, is alive.

        Args:
            query: SQL that only reads. Unqualified names are tables of the reader's database.
            consistency: `strong` or `weak`.
            checkpoint: a published checkpoint to read, instead of the newest readable one.
            only_named: do not wait for other tables that share a root with the query's tables. Separate
                queries may then disagree.
            after: a write token: the answer contains everything that the tables' sources held then.
            wait_ms: for how many milliseconds to wait for such a checkpoint.

        Returns:
            The answer, evaluated when it is collected.

        Raises:
            QueryError: Spark's own class for a wrong query, `QUERY_NOT_READ_ONLY`, `READER_CLOSED`,
                `WRITE_TOKEN_INVALID`.
            CheckpointUnavailableError: no checkpoint shows all tables; `READ_NOT_YET` (retryable): no
                readable checkpoint is after the token yet.
        """
        request = Query(
            sql=query,
            consistency=Consistency(consistency),
            checkpoint=checkpoint,
            only_named=only_named,
            after=after,
            wait_ms=wait_ms,
        )
        return self._read(request)[0]

    def arrow(self, query: Query) -> QueryAnswer:
        """The whole result of a query, as Arrow.

            answer = reader.arrow(Query(sql="SELECT * FROM totals"))
            answer.rows.to_pandas(), answer.checkpoint

        Raises:
            QueryError, CheckpointUnavailableError: as `sql`, and what appears only while the query runs.
        """
        frame, resolution = self._read(query)
        return QueryAnswer(
            rows=_arrow_rows(frame, query.sql),
            checkpoint=None if resolution is None else resolution.checkpoint,
            behind={} if resolution is None else {str(name): why for name, why in resolution.behind.items()},
        )

    def _read(self, query: Query) -> tuple[DataFrame, Resolution | None]:
        """A query's DataFrame, and what it reads; None when no table of a pipeline is read."""
        self._require_open()
        after_ms = token_time_ms(query.after)
        names = self._tables(query.sql, tuple(self._database.split(".")), frozenset())
        if not names:
            query = self._at_newest_checkpoint(query)
        table_names = {name.table for name in names}
        pipeline_tables = self._known(names)
        while True:
            resolution: Resolution | None = None
            if pipeline_tables or query.checkpoint is not None:
                pinned = partial(self._pinned_session, query, list(pipeline_tables), after_ms)
                session, resolution = wait_for(pinned, query.after, query.wait_ms)
            else:
                session = self._session(_EXTERNAL_TABLES, None)
            _show_meta_tables(session, self._store, table_names, query.consistency, query.checkpoint)
            answer: DataFrame | Exception
            try:
                answer = session.sql(query.sql)
            except Exception as error:
                answer = error
            # A first run may have created a table meanwhile, whose rows no checkpoint shows yet.
            created = self._known(names - pipeline_tables)
            if not created:
                break
            pipeline_tables |= created
        if isinstance(answer, Exception):
            raise query_error(answer, query.sql) from None
        return answer, resolution

    def versions(
        self,
        tables: list[TableName] | None = None,
        consistency: Consistency | str = Consistency.STRONG,
        checkpoint: int | None = None,
        *,
        only_named: bool = False,
    ) -> Resolution:
        """The checkpoint and the version of each table, to read them with another library such as PyIceberg.

            resolution = reader.versions([TableName.parse("lake.db.orders")])
            snapshot = int(resolution.versions[TableName.parse("lake.db.orders")])

        The pin lasts one lease. Renew or release it with `pins.renew` and `pins.release` of the store.

        Args:
            tables: None: all tables.
            consistency, checkpoint, only_named: as for `sql`.

        Raises:
            CheckpointUnavailableError: no checkpoint shows all tables.
            QueryError: `READER_CLOSED`, `TOO_MANY_PINS`.
        """
        self._require_open()
        return self._store.reads.resolve(
            Consistency(consistency),
            tables,
            checkpoint,
            lease_ms=self._lease_ms,
            owner=self._owner,
            only_named=only_named,
        )

    @property
    def behind(self) -> Mapping[TableName, str]:
        """The tables that keep the last query from a newer checkpoint, each with its reason."""
        with self._lock:
            return self._behind

    def write_token(self) -> str:
        """A write token, `w` and a number: a read with it as `after` shows what the sources hold now.

        Ask for it after the write. `Reader.sql` has an example.
        """
        return write_token(self._store)

    def close(self) -> None:
        """Release all pins and stop serving. DataFrames of this reader can no longer be read."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._sessions.clear()
        self._leases.close()
        self._server.close()
        if self._own_spark:
            stop_session(self._base)

    def _tables(
        self, query: str, database: tuple[str, ...], seen: frozenset[TableName]
    ) -> frozenset[TableName]:
        """The tables that a query reads, also through persisted views."""
        tables: set[TableName] = set()
        if self._parsing is not self._base:
            # Spark's parser takes its settings from the thread's active session, not from its own session.
            set_active_session(self._parsing)
        for name in qualified(tables_in(self._parsing, query), self._catalog, database):
            view = None if name in seen or self._store.reads.knows(name) else self._source.view(name)
            if view is None:
                tables.add(name)
                continue
            text, namespace = sql_of_view(view[1])
            tables |= self._tables(text, namespace or name.namespace, seen | {name})
        return frozenset(tables)

    def _at_newest_checkpoint(self, query: Query) -> Query:
        """A strong `SHOW TABLES`, which names no table to choose a checkpoint by, at the newest readable one.
        Every other query stays as it is."""
        is_free = query.checkpoint is None and query.after is None
        if not is_free or query.consistency is not Consistency.STRONG:
            return query
        if _plan_kind(_parsed(self._parsing, query.sql)) != "ShowTables":
            return query
        checkpoints = self._store.checkpoints
        newest = checkpoints.readable_before(checkpoints.highest_used_number() + 1, 1)
        return replace(query, checkpoint=newest[0][0]) if newest else query

    def _known(self, names: Iterable[TableName]) -> frozenset[TableName]:
        """The tables that jobs of the store write or read."""
        return frozenset(name for name in names if self._store.reads.knows(name))

    def _require_open(self) -> None:
        if self._closed:
            raise QueryError("READER_CLOSED", "This reader was closed")

    def _pinned_session(
        self, query: Query, tables: list[TableName], after_ms: int | None
    ) -> tuple[SparkSession, Resolution]:
        with self._lock:
            resolution = self._store.reads.resolve(
                query.consistency,
                tables,
                query.checkpoint,
                lease_ms=self._lease_ms,
                owner=self._owner,
                at_least=CheckpointNumber(0) if self._many_clients else self._newest_read,
                only_named=query.only_named,
                after_ms=after_ms,
            )
            self._behind = resolution.behind
            if resolution.checkpoint is not None:
                if query.checkpoint is None:
                    self._newest_read = max(self._newest_read, resolution.checkpoint)
                read_point = checkpoint_read_point(resolution.checkpoint)
                return self._session(read_point, resolution.pin), resolution
            # Spark loads the tables later, when they may have newer versions: the versions are fixed here.
            read_point = f"weak-{resolution.pin}"
            versions = dict(resolution.versions)
            self._read_points.register(read_point, lambda table: versions.get(table, NEWEST))
            return self._session(read_point, resolution.pin, registered=True), resolution

    def _session(self, read_point: str, pin: str | None, *, registered: bool = False) -> SparkSession:
        """A session fixed to a read point. The pin is released after the session is garbage collected.

        The pin belongs to the session and not to the DataFrame, because DataFrames derived from the first
        one may outlive it; all of them refer to the session.
        """
        with self._lock:
            session, session_pin = self._sessions.get(read_point, (None, None))
            if session is not None and (session_pin is None or session_pin in self._leases.pins):
                self._sessions.move_to_end(read_point)
                if pin is not None:
                    self._store.pins.release(pin)
                return session
            session = self._set_up(reader_session(self._base, self._catalog, self.uri, read_point))
            # PySpark binds `RDD.toDF` to the newest session, which would keep that session and its pin
            # alive.
            _monkey_patch_RDD(self._base)
            self._use_database(session)
            if registered:
                weakref.finalize(session, self._read_points.unregister, read_point).atexit = False
            if pin is not None:
                self._leases.hold(pin, session)
            if not registered:
                self._sessions[read_point] = (session, pin)
                while len(self._sessions) > _CACHED_SESSIONS:
                    self._sessions.popitem(last=False)
            return session

    def _set_up(self, session: SparkSession) -> SparkSession:
        for key, value in self._conf.items():
            session.conf.set(key, value)
        return restrict_to_tables(session) if self._confined else session

    def _use_database(self, session: SparkSession) -> None:
        # Only by SQL: outside of a query, Spark's catalog manager loads the catalog from the settings of the
        # *active* session, and this session would then read the lake itself.
        session.sql(f"USE {quoted(self._catalog)}")
        levels = tuple(self._database.split("."))
        if levels in self._source.namespaces():
            session.sql(f"USE {quoted(self._catalog, *levels)}")

    def _drop_idle_sessions(self) -> None:
        with self._lock:
            # Without new queries, old read points would stay pinned for as long as the reader lives.
            while len(self._sessions) > (0 if self._many_clients else 1):
                self._sessions.popitem(last=False)


# -- pins ------------------------------------------------------------------------------------------------


class Leases:
    """The pins of one reader, renewed three times per lease.

    Args:
        before_renewal: called before each renewal.
    """

    def __init__(self, store: Store, lease_ms: int, before_renewal: Callable[[], None]) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._before_renewal = before_renewal
        self._pins: set[str] = set()
        # A finalizer may run while its thread holds a lock or a transaction, so it must take neither.
        # `SimpleQueue.put` is safe there.
        self._to_release: SimpleQueue[str] = SimpleQueue()
        self._thread = Thread(target=self._run, name="tautochrone-leases", daemon=True)
        self._thread.start()

    @property
    def pins(self) -> frozenset[str]:
        """The pins held now."""
        return frozenset(self._pins)

    def hold(self, pin: str, holder: object) -> None:
        """Renew `pin` until `holder` is garbage collected, or until `close`."""
        self._pins.add(pin)
        weakref.finalize(holder, self._to_release.put, pin).atexit = False

    def close(self) -> None:
        """Release all pins."""
        self._to_release.put(_CLOSE_LEASES)
        self._thread.join(timeout=30)
        for pin in self.pins:
            if not self._release(pin):
                # The store does not answer: do not wait for it again for every other pin.
                break

    def _run(self) -> None:
        period_s = self._lease_ms / 3000
        renewal_at = time.monotonic() + period_s
        while True:
            try:
                pin = self._to_release.get(timeout=max(0.001, renewal_at - time.monotonic()))
            except Empty:
                renewal_at = time.monotonic() + period_s
                self._before_renewal()
                for current in self.pins:
                    self._renew(current)
                continue
            if pin == _CLOSE_LEASES:
                return
            self._release(pin)

    def _renew(self, pin: str) -> None:
        try:
            self._store.pins.renew(pin, self._lease_ms)
        except CheckpointUnavailableError as error:
            # The process slept longer than its lease: the versions that it reads may be expired.
            self._pins.discard(pin)
            _log.warning("a pin was lost: %s", error)
        except TautochroneError as error:
            _log.warning("a lease could not be renewed: %s", error)

    def _release(self, pin: str) -> bool:
        self._pins.discard(pin)
        try:
            self._store.pins.release(pin)
        except TautochroneError as error:  # the lease runs out by itself
            _log.warning("a pin was not released, it ends with its lease: %s", error)
            return False
        return True


# -- answers ---------------------------------------------------------------------------------------------


_WITHOUT_ARROW_TYPE = (CalendarIntervalType, VariantType, YearMonthIntervalType)


def _arrow_rows(frame: DataFrame, query: str) -> pa.Table:
    """The rows of a DataFrame, with the names of its columns."""
    import pyarrow as pa

    # Two columns may have the same name, so they are renamed by position.
    numbered = frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))
    answer: Any = numbered.select(*map(_with_arrow_type, numbered.schema.fields))
    try:
        # `toArrow` casts them to a schema that is wrong for structs that are NULL, and without the time zone.
        batches = answer._collect_as_arrow(empty_list_if_zero_records=False)  # noqa: SLF001
    except (PySparkException, Py4JJavaError) as error:
        # Some errors appear only while the query runs: a division by zero, a missing file.
        raise query_error(error, query) from error
    return pa.Table.from_batches(batches).rename_columns(frame.columns)


def _with_arrow_type(field: StructField) -> Column:
    """A column, as text if Arrow has no such type, or Python no such value."""
    column = sf.col(field.name)
    if isinstance(field.dataType, VariantType):
        return sf.to_json(column).alias(field.name)
    return column.cast("string").alias(field.name) if _is_text_in_arrow(field.dataType) else column


def _is_text_in_arrow(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        has_repeated_names = len(set(kind.names)) < len(kind.names)
        return has_repeated_names or any(_is_text_in_arrow(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_text_in_arrow(kind.elementType)
    if isinstance(kind, MapType):
        return _is_text_in_arrow(kind.keyType) or _is_text_in_arrow(kind.valueType)
    return isinstance(kind, _WITHOUT_ARROW_TYPE)


# -- names in a query ------------------------------------------------------------------------------------


def query_error(error: Exception, query: str) -> QueryError:
    """A Spark exception as a `QueryError`, with Spark's class, message and SQLSTATE, and the query's line."""
    problem = problem_of(error)
    location = None if problem.line is None else f"line {problem.line} of the query"
    return QueryError(
        problem.error_class,
        problem.message,
        sqlstate=problem.sqlstate,
        location=location,
        hint=problem.hint,
        parameters=problem.parameters,
        excerpt=problem.excerpt_in(query),
    )


def tables_in(session: SparkSession, query: str) -> frozenset[tuple[str, ...]]:
    """The multipart names that a query reads, without names of its own WITH clauses.

    Raises:
        QueryError: Spark's parser refuses it, or `QUERY_NOT_READ_ONLY`.
    """
    jvm: Any = session._jvm  # noqa: SLF001
    plan = _parsed(session, query)
    described = _described(plan)
    if described is not None:
        return described
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    commands = [loader.loadClass(name) for name in _COMMANDS]
    names_read: set[tuple[str, ...]] = set()
    _collect_names(plan, frozenset(), names_read, commands)
    return frozenset(names_read)


def qualified(
    names: Iterable[tuple[str, ...]], catalog: str, database: tuple[str, ...]
) -> frozenset[TableName]:
    """Every table of `catalog` that the names can mean, with the default database `database`.

    `t.snapshots` means Iceberg's metadata table of `t` or a table of that name: both are returned.
    """
    tables: set[TableName] = set()
    for name in names:
        candidates = [name]
        if len(name) > 1 and name[-1] in _METADATA_TABLES:
            candidates.append(name[:-1])
        for parts in candidates:
            rest = parts[1:] if len(parts) > 1 and parts[0] in (catalog, _SESSION_CATALOG) else parts
            namespace = rest[:-1] or (database if rest is parts or len(rest) == 1 else ())
            if namespace and all(rest) and not any("." in part for part in (*namespace, rest[-1])):
                tables.add(TableName(catalog, namespace, rest[-1]))
    return frozenset(tables)


def sql_of_view(metadata: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The Spark SQL of an Iceberg view's current version, and the namespace of its unqualified names."""
    versions = {version["version-id"]: version for version in metadata["versions"]}
    current = versions[metadata["current-version-id"]]
    texts = [r["sql"] for r in current["representations"] if r.get("dialect", "").lower() == "spark"]
    return (texts[0] if texts else "SELECT 1"), tuple(current.get("default-namespace", ()))


def _parsed(session: SparkSession, query: str) -> Any:
    try:
        return session._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001
    except Exception as error:
        raise query_error(error, query) from None


def _plan_kind(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())


def _described(plan: Any) -> frozenset[tuple[str, ...]] | None:
    """The names that `SHOW TABLES` and `DESCRIBE name` read; None for other statements.

    What `DESCRIBE EXTENDED` also tells, such as where files are, no query does.
    """
    kind = _plan_kind(plan)
    if kind == "ShowTables":
        return frozenset()
    if (
        kind == "DescribeRelation"
        and not plan.isExtended()
        and plan.partitionSpec().isEmpty()
        # The name may also be an expression: DESCRIBE IDENTIFIER('orders').
        and _plan_kind(plan.relation()) == "UnresolvedTableOrView"
    ):
        return frozenset({tuple(_items(plan.relation().multipartIdentifier()))})
    return None


def _collect_names(
    node: Any, cte_names: frozenset[str], names_read: set[tuple[str, ...]], commands: Any
) -> None:
    kind = _plan_kind(node)
    if any(command.isInstance(node) for command in commands):
        raise QueryError(
            "QUERY_NOT_READ_ONLY",
            "Only queries can be read here (SELECT, WITH, VALUES, TABLE, FROM, SHOW TABLES, DESCRIBE name); "
            f"this is a {kind} statement",
            hint="Tables are written by the pipeline's definitions and by `taut run`.",
        )
    if kind == "UnresolvedRelation":
        name = tuple(_items(node.multipartIdentifier()))
        if len(name) > 1 or name[0].lower() not in cte_names:
            names_read.add(name)
    elif kind == "RelationTimeTravel":
        _collect_names(node.relation(), cte_names, names_read, commands)
    elif kind == "UnresolvedWith":
        # The later definitions and the query see the name; its own definition sees it if it is recursive.
        # WITH t AS (SELECT * FROM t) reads the table t.
        recursive = node.allowRecursion()
        for pair in _items(node.cteRelations()):
            alias = str(pair._1()).lower()  # noqa: SLF001
            visible = cte_names | {alias} if recursive else cte_names
            _collect_names(pair._2(), visible, names_read, commands)  # noqa: SLF001
            cte_names |= {alias}
    for child in (*_items(node.children()), *_items(node.subqueries())):
        _collect_names(child, cte_names, names_read, commands)


def _items(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


# -- tables about the topology ---------------------------------------------------------------------------


def _show_meta_tables(
    session: SparkSession,
    store: Store,
    names: Iterable[str],
    consistency: Consistency,
    checkpoint: int | None,
) -> None:
    """Create temporary views in `session` for those of `names` that are meta tables.

    They show the store as it is now. The versions are those that a query over all tables would read.

    Raises:
        CheckpointUnavailableError: `checkpoint` cannot be read.
    """
    for name in {name.upper() for name in names} & _META_TABLES.keys():
        if name == "__META_TABLE_VERSION":
            rows = _meta_versions(store, consistency, checkpoint)
        else:
            rows = _meta_relations(store, sinks=name == "__META_ETL_SINK")
        fields = [StructField(column, StringType(), nullable=False) for column in _META_TABLES[name]]
        session.createDataFrame(rows, StructType(fields)).createOrReplaceTempView(name)


def _meta_relations(store: Store, *, sinks: bool) -> list[tuple[str, ...]]:
    return [
        (job.name, str(table))
        for job in store.jobs.registered()
        for table in sorted(job.sinks if sinks else job.sources)
        if not is_clock(table)
    ]


def _meta_versions(store: Store, consistency: Consistency, checkpoint: int | None) -> list[tuple[str, ...]]:
    if (
        consistency is Consistency.STRONG
        and checkpoint is None
        and store.checkpoints.latest_published() is None
    ):
        return []
    resolution = store.reads.resolve(consistency, None, checkpoint, lease_ms=0)
    derived = {
        entry.name
        for entry in store.datasets.registered()
        if any(not is_clock(table) for table in entry.inputs)
    }
    return [
        (str(name), version, "Intermediate" if name in derived else "Root")
        for name, version in sorted(resolution.versions.items())
    ]
