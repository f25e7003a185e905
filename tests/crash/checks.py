"""What must hold whatever crashed, read by PyIceberg and computed in Python: no line of ours between.

1. every streaming table holds exactly its source's rows       2. no target is open
3. every published checkpoint shows all its tables at one cut  4. nothing stays prepared
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from tautochrone.iceberg.reads.reading import BRANCH_PREFIX
from tautochrone.meta import MetaStore, Store
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import TableName
from tautochrone.model.sink import DeliveryState
from tautochrone.runtime.views.verify import verify
from tautochrone.testing.sqlite_sink import SqliteSink

from .project import Sources, amount, kind
from .world import World

__all__ = ["check", "check_mirror", "check_tables", "published", "pyiceberg", "verify_all"]

Rows = Counter[tuple[Any, ...]]


def pyiceberg(sources: Sources) -> SqlCatalog:
    """The same tables, seen by another implementation."""
    storage = sources.storage
    return SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")


def check(world: World) -> None:
    """All of the above, then the newest checkpoint by our own `verify` too."""
    verify_all(world, check_tables(world.sources)[-1:])
    check_mirror(world)


def check_mirror(world: World) -> None:
    """The sink shows the newest published checkpoint, each row as often as the lake."""
    sources = world.sources
    if not (sources.folder / "transformations" / "mirror.py").exists():
        return
    sink = SqliteSink("mirror", str(sources.mirror_file))
    catalog = pyiceberg(sources)
    with MetaStore.open(f"sqlite:///{sources.storage}/meta.db") as store:
        shown = sink.published()
        assert shown is not None
        newest = published(store)[-1]
        assert (shown.transaction.incarnation, shown.checkpoint) == (store.incarnation, newest)
        lake = _read(catalog, store, newest)
        for name in ("events", "shown"):
            rows = Counter(sink.rows(TableName("lake", ("default",), name)))
            assert rows == lake[name], (name, rows - lake[name], lake[name] - rows)
        (status,) = [sink_status for sink_status in store.deliveries.sinks() if sink_status.name == "mirror"]
        assert status.state is DeliveryState.ACTIVE, status
        assert status.intent is None, status
        assert status.delivered is not None
        assert status.delivered.versions == shown.versions
    catalog.close()
    sink.close()


def check_tables(sources: Sources) -> list[int]:
    """All of the above; the numbers that can be read. Without Spark."""
    catalog = pyiceberg(sources)
    with MetaStore.open(f"sqlite:///{sources.storage}/meta.db") as store:
        numbers = published(store)
        assert store.checkpoints.next_for("crash") is None
        tables: dict[str, Rows] = {}
        seen = {number: _read(catalog, store, number) for number in numbers}
        # Another pipeline may have checkpoints of its own in the store.
        numbers = [number for number in numbers if seen[number]]
        for number in numbers:
            tables = seen[number]
            _one_cut(tables, sources, number)
        assert tables["events"] == Counter((i, kind(i), amount(i)) for i in sources.events)
        names = ("names",) if sources.defines("names") else ()
        for name in (*names, *(f"copy_{n}" for n in range(1, sources.copies + 1))):
            assert tables[name] == Counter(sources.names), name
        if "labels" in tables:
            assert tables["labels"] == Counter(sources.outside)
        assert store.checkpoints.failures_at(numbers[-1]) == {}
    for identifier in catalog.list_tables("default"):
        refs = catalog.load_table(identifier).metadata.refs
        assert not [name for name in refs if name.startswith(BRANCH_PREFIX)], identifier
    catalog.close()
    return numbers


def verify_all(world: World, numbers: Iterable[int]) -> None:
    """`taut verify` at these checkpoints."""
    with world.open() as project:
        definitions, graph = project.analysed()
        store = project.store()
        read_points = project.open_read_point_server(store)
        for number in numbers:
            views = [view for view in graph.order if view in store.checkpoints.versions_at(number)]
            for verdict in verify(project.base, store, read_points, definitions, graph, views, number):
                assert verdict.equal, verdict


def published(store: Store) -> list[int]:
    """Numbers that can be read, in order."""
    newest = store.checkpoints.newest(limit=1000)
    return sorted(int(c.number) for c in newest if c.state is CheckpointState.PUBLISHED)


def _read(catalog: SqlCatalog, store: Store, number: int) -> dict[str, Rows]:
    rows_by_table: dict[str, Rows] = {}
    for name, version in store.checkpoints.versions_at(number).items():
        if name.namespace == ("default",):
            table = catalog.load_table(f"default.{name.table}")
            rows_by_table[name.table] = _bag(table.scan(snapshot_id=int(version)).to_arrow())
    return rows_by_table


def _bag(rows: pa.Table) -> Rows:
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def _one_cut(tables: dict[str, Rows], sources: Sources, number: int) -> None:
    """Every derived table is the function of the roots that its definition says."""
    events = tables["events"]
    assert all(count == 1 for count in events.values()), (number, events)
    assert {row[0] for row in events} <= sources.events, number
    # A checkpoint that a new store has from the lake lacks tables that no view reads.
    names = tables["names"] if "named" in tables else Counter()
    expected: dict[str, Rows] = {
        "clean": Counter(row for row in events if row[2] % 5),
        "totals": _totals(events),
        "named": Counter(
            (identity, name)
            for identity, event_kind, value in events
            for (name_kind, name), copies in names.items()
            for _ in range(copies)
            if value % 5 and event_kind == name_kind
        ),
        "balance": Counter([(len(events), len(events))]),
    }
    for name, rows in expected.items():
        assert name not in tables or tables[name] == rows, (
            number,
            name,
            tables[name] - rows,
            rows - tables[name],
        )
    columns = max((len(row) - 2 for row in tables.get("big", ())), default=0)
    big = Counter((i, v, *(v * n for n in range(1, columns + 1))) for i, _, v in events if v > 50)
    assert tables.get("big", big) == big, (number, tables["big"], big)


def _totals(events: Rows) -> Rows:
    groups: dict[int, list[int]] = {}
    for _, event_kind, value in events:
        groups.setdefault(event_kind, []).append(value)
    return Counter((event_kind, len(values), sum(values)) for event_kind, values in groups.items())
