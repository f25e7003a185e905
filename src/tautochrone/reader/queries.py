"""The table names in a query, from Spark's parser, and whether the query only reads.

Names are not resolved here: the caller knows which of them are tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from tautochrone.errors import QueryError
from tautochrone.model.names import TableName
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["qualified", "query_error", "sql_of_view", "tables_in"]

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


def query_error(error: Exception, query: str) -> QueryError:
    """A Spark exception as a `QueryError`, with Spark's class, message and SQLSTATE, and the query's line."""
    problem = problem_of(error)
    location = None if problem.line is None else f"line {problem.line} of the query"
    return QueryError(
        problem.error_class,
        problem.message,
        sqlstate=problem.sqlstate,
        location=location,
        parameters=problem.parameters,
        excerpt=problem.excerpt_in(query),
    )


def tables_in(session: SparkSession, query: str) -> frozenset[tuple[str, ...]]:
    """The multipart names that a query reads, without names of its own WITH clauses.

    Raises:
        QueryError: Spark's parser refuses it, or `QUERY_NOT_READ_ONLY`.
    """
    jvm: Any = session._jvm  # noqa: SLF001
    try:
        plan = session._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001
    except Exception as error:
        raise query_error(error, query) from None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    commands = [loader.loadClass(name) for name in _COMMANDS]
    names_read: set[tuple[str, ...]] = set()
    _collect(plan, frozenset(), names_read, commands)
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


def _collect(node: Any, cte_names: frozenset[str], names_read: set[tuple[str, ...]], commands: Any) -> None:
    kind = node.getClass().getSimpleName()
    if any(command.isInstance(node) for command in commands):
        raise QueryError(
            "QUERY_NOT_READ_ONLY",
            f"Only queries can be read here (SELECT, WITH, VALUES, TABLE, FROM); this is a {kind} statement",
            hint="Tables are written by the pipeline's definitions and by `taut run`.",
        )
    if kind == "UnresolvedRelation":
        name = tuple(_items(node.multipartIdentifier()))
        if len(name) > 1 or name[0].lower() not in cte_names:
            names_read.add(name)
    elif kind == "RelationTimeTravel":
        _collect(node.relation(), cte_names, names_read, commands)
    elif kind == "UnresolvedWith":
        # The later definitions and the query see the name; its own definition sees it if it is recursive.
        # WITH t AS (SELECT * FROM t) reads the table t.
        recursive = node.allowRecursion()
        for pair in _items(node.cteRelations()):
            alias = str(pair._1()).lower()  # noqa: SLF001
            visible = cte_names | {alias} if recursive else cte_names
            _collect(pair._2(), visible, names_read, commands)  # noqa: SLF001
            cte_names |= {alias}
    for child in (*_items(node.children()), *_items(node.subqueries())):
        _collect(child, cte_names, names_read, commands)


def _items(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
