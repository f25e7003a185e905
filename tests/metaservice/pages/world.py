"""Seeded stores for the pages: empty, one shop, a hundred tables, hostile names."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.definitions import (
    ColumnLineage,
    ColumnRef,
    DatasetDetails,
    ExpectationCount,
    LakeColumn,
    ViolationAction,
)
from tautochrone.model.names import NOW, CheckpointNumber, Fence, TableName, Version
from tautochrone.model.project_build import (
    BuiltTable,
    ProjectBuild,
    RowComparison,
    RowSample,
    ViewOfBuild,
)
from tautochrone.model.project_plan import ColumnChange, ColumnChangeKind, DefinitionChange
from tautochrone.model.reason import Reason, ReasonCode, unclassified
from tautochrone.model.run_report import CaptureReport, FlowSource, RunReport, SourceKind
from tautochrone.model.sink import SinkDeclaration
from tautochrone.model.source import KeptLog

__all__ = [
    "HOSTILE",
    "PLAN",
    "SEEDS",
    "Clock",
    "connected",
    "empty",
    "failing",
    "hostile",
    "many",
    "name",
    "shop",
]

STREAM, VIEW = "streaming table", "materialized view"

HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE x; --",
    "{{ 7301*9091 }}{% raw %}",
    "naïve ☃ 表 \u202etxt-exe",
    "a/b?c=d&e#f%2e%2e/",
    "x" * 300,
)
"""Parts of names; none has a dot, which would make two parts of it."""


@dataclass
class Clock:
    """Epoch milliseconds. The seeded events are in the hour before."""

    now: int

    def __call__(self) -> int:
        return self.now


@dataclass
class Seeder:
    """Writes the history of jobs."""

    store: Store
    at_ms: int
    fences: dict[str, Fence] = field(default_factory=dict)

    def start(self, job: str, pipeline: str, entries: list[DatasetEntry]) -> None:
        self.store.jobs.start_run(pipeline, job, entries)
        self.fences[job] = self.store.jobs.take_over(job, owner=f"host-{job}:4711", lease_ms=900_000)

    def cut(self, job: str, roots: Mapping[TableName, int], at_ms: int) -> int:
        versions = {table: Version(str(version)) for table, version in roots.items()}
        return self.store.checkpoints.open(job, self.fences[job], NewCheckpoint(versions, at_ms)).number

    def done(self, job: str, number: int, table: TableName, refresh: Refresh, at_ms: int) -> None:
        version = Version(f"{number}{abs(hash(str(table))) % 10**12}")
        self.store.checkpoints.record_version(
            job, self.fences[job], number, table, version, refresh, finished_at_ms=at_ms
        )

    def failed(self, job: str, number: int, table: TableName, failure: Reason, at_ms: int) -> None:
        self.store.checkpoints.record_failure(
            job, self.fences[job], number, table, failure, finished_at_ms=at_ms
        )

    def publish(self, job: str, number: int, at_ms: int) -> None:
        self.store.checkpoints.publish(job, self.fences[job], number, at_ms)


def name(table: str, namespace: str = "shop") -> TableName:
    return TableName("lake", (namespace,), table)


def outside(
    seeder: Seeder, job: str, root: TableName, delivered: TableName, names: Sequence[str], *, phase: str = ""
) -> None:
    """The run says that a flow into `root` reads a source of each name; a sink of each takes `delivered`."""
    kinds = list(SourceKind)
    sources = tuple(
        FlowSource(flow=f"flow {text}", dataset=str(root), kind=kinds[index % len(kinds)], name=text)
        for index, text in enumerate(names)
    )
    kept = KeptLog(
        name=names[0], is_own=True, distance_bytes=5, kept_bytes=16 * 1024**2, is_lost=False,
        last_read=None, drop="",
    )  # fmt: skip
    capture = CaptureReport(source=names[0], dataset=str(root), phase=phase, lag_ms=3_400, kept=(kept,))
    report = RunReport(sources=sources, captures={str(root): capture})
    seeder.store.jobs.heartbeat(job, seeder.fences[job], 900_000, report=report)
    for text in names:
        sink = SinkDeclaration(name=f"sink {text}"[:200], format="toy", tables=(delivered,))
        seeder.store.deliveries.claim(job, seeder.fences[job], sink, Fence(0))


def wide(store: Store, now: int, views: int = 60) -> None:
    """One root, many views over it, each delivered to a sink; all fail at the newest checkpoint."""
    seeder, root = Seeder(store, now), name("root")
    names = [name(f"view{number}") for number in range(views)]
    entries = [DatasetEntry(root, STREAM, "r", is_root=True)]
    entries += [DatasetEntry(view, VIEW, "v", frozenset({root})) for view in names]
    seeder.start("wide", "wide", entries)
    outside(seeder, "wide", root, names[0], [f"source{number}" for number in range(views)])
    for step in range(2):
        number = seeder.cut("wide", {root: step}, now - 60_000 + step)
        for view in names:
            if step:
                seeder.failed("wide", number, view, unclassified("it broke"), now)
            else:
                seeder.done("wide", number, view, _refresh(random.Random(1), True), now)
        seeder.publish("wide", number, now)


def narrow(store: Store, now: int) -> None:
    """The same with two views."""
    wide(store, now, 2)


def empty(_store: Store, _now: int) -> None:
    """Nothing has run yet."""


def waits(table: TableName, cause: str) -> Reason:
    return Reason.of(ReasonCode.WAITS_FOR_INPUT, input=str(table), cause=cause)


def _refresh(rng: random.Random, first: bool) -> Refresh:
    if first:
        return Refresh(
            mode=RefreshMode.FULL, reason=unclassified("first build"),
            rows_inserted=40_000, duration_ms=4_200,
            nodes=(NodeRefresh(node="Aggregate", mode=RefreshMode.FULL, reason=unclassified("no state")),),
        )  # fmt: skip
    mode = rng.choices(
        [RefreshMode.INCREMENTAL, RefreshMode.DIFF, RefreshMode.FULL, RefreshMode.NO_DATA], [14, 2, 1, 2]
    )[0]
    rows = rng.randrange(50, 2_000)
    if mode is RefreshMode.NO_DATA:
        return Refresh(mode=mode, reason=unclassified("inputs did not change"))
    return Refresh(
        mode=mode,
        reason=unclassified("0.3 % of orders changed; incremental 0.4 s expected, full 2.1 s measured"),
        rows_inserted=rows,
        rows_deleted=rows * 2 // 3,
        duration_ms=rng.randrange(250, 1_900),
        estimate_ms=rng.randrange(250, 1_500),
        delta_rows=rows * 2,
        nodes=(
            NodeRefresh(node="Aggregate", mode=mode, reason=unclassified("its groups are remembered")),
            NodeRefresh(node="Join", mode=mode, reason=unclassified("both sides are keyed")),
        ),
    )


ORDERS, PAYMENTS, RATES = name("orders"), name("payments"), TableName("lake", ("ref",), "rates")
CLEAN, DAILY, TOP = name("orders_clean"), name("daily_revenue"), name("top_customers")

SHOP = [
    DatasetEntry(ORDERS, STREAM, "o1"),
    DatasetEntry(PAYMENTS, STREAM, "p1"),
    DatasetEntry(CLEAN, VIEW, "c1", frozenset({ORDERS})),
    DatasetEntry(DAILY, VIEW, "d1", frozenset({CLEAN, PAYMENTS, RATES})),
    DatasetEntry(TOP, VIEW, "t1", frozenset({DAILY, CLEAN, NOW})),
]


def shop(store: Store, now: int, *, broken: bool = False, checkpoints: int = 40) -> None:
    """One pipeline of five tables with forty checkpoints; the last one of `broken` fails in the middle."""
    seeder, rng = Seeder(store, now), random.Random(4)
    seeder.start("shop", "shop", SHOP)
    for step in range(checkpoints):
        at_ms = now - (checkpoints - step) * 61_000
        number = seeder.cut("shop", {ORDERS: step, PAYMENTS: step, RATES: step // 9, NOW: at_ms}, at_ms)
        for table in (CLEAN, DAILY, TOP):
            refresh = _refresh(rng, step == 0)
            at_ms += refresh.duration_ms + 40
            if broken and step >= checkpoints - 2 and table is not CLEAN:
                error = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012; transformations/daily.sql:12"
                failure = unclassified(error) if table is DAILY else waits(DAILY, error)
                seeder.failed("shop", number, table, failure, at_ms)
            else:
                seeder.done("shop", number, table, refresh, at_ms)
        seeder.publish("shop", number, at_ms)
    newest = Version(str(checkpoints - 1))
    store.roots.report("shop", seeder.fences["shop"], {ORDERS: newest, PAYMENTS: newest})
    store.datasets.describe("shop", seeder.fences["shop"], _details())
    store.datasets.record_expectations(
        "shop", seeder.fences["shop"], TOP, [ExpectationCount("has an id", ViolationAction.DROP, 1_200, -3)]
    )


def _details() -> list[DatasetDetails]:
    text = (
        "CREATE MATERIALIZED VIEW daily_revenue AS\n"
        "-- revenue per day and currency\n"
        "SELECT date(o.at) AS day, sum(o.amount * r.rate) AS revenue, count(*) AS orders\n"
        "FROM orders_clean o JOIN payments p USING (order_id) JOIN ref.rates r USING (currency)\n"
        "WHERE p.state = 'paid'\nGROUP BY date(o.at)"
    )
    daily = DatasetDetails(
        dataset=DAILY,
        definition="d1",
        location="transformations/daily.sql:1",
        text=text,
        columns=(
            LakeColumn("day", "date"),
            LakeColumn("revenue", "decimal(38,6)", "in euros"),
            LakeColumn("orders", "bigint"),
        ),
        lineage=ColumnLineage(
            values={
                "day": frozenset({ColumnRef(CLEAN, "at")}),
                "revenue": frozenset({ColumnRef(CLEAN, "amount"), ColumnRef(RATES, "rate")}),
                "orders": frozenset(),
            },
            rows=frozenset(
                {ColumnRef(PAYMENTS, "state"), ColumnRef(PAYMENTS, "order_id"), ColumnRef(CLEAN, "at")}
            ),
        ),
    )
    clean = DatasetDetails(
        dataset=CLEAN,
        definition="c1",
        location="transformations/clean.py:7",
        text="def orders_clean():\n    return spark.table('orders').mapInPandas(clean, 'id int')",
        columns=(LakeColumn("id", "int"),),
        lineage=ColumnLineage(problem="its plan cannot be followed: a Python function makes the rows"),
    )
    return [daily, clean]


PLAN = "3f2a91c0"
"""A plan that is built and passed its checks."""


def built(store: Store, job: str, tables: Sequence[TableName], text: str, others: Sequence[str] = ()) -> None:
    """The plan `PLAN` of some views; and others: the first failed its checks, the next are dropped."""
    views = [
        ViewOfBuild(
            table=table,
            change=DefinitionChange.CHANGED,
            reason=unclassified(text),
            difference=(" SELECT day", f"-{text}", f"+{text} AS n") if index else None,
            columns=(ColumnChange(name=text, kind=ColumnChangeKind.RETYPED, before="int", after=text),),
            comparison=RowComparison(
                added=1_200,
                removed=3,
                changed=2,
                changed_values={text: 2},
                samples=tuple(
                    RowSample(sign=sign, columns=("day", text), rows=((text, None), ("2026-01-01", "7")))
                    for sign in "+-"
                ),
                problem=None if index else text,
            ),
        )
        for index, table in enumerate(tables)
    ]
    for number, identity in enumerate((PLAN, *others)):
        build = ProjectBuild(id=identity, job=job, base=CheckpointNumber(1), views=tuple(views))
        store.builds.begin(build)
        rows = tuple(BuiltTable(table=table, version=Version("7"), definition="n") for table in tables)
        problems = (text,) if number == 1 else ()
        store.builds.finish(replace(build, tables=rows, problems=problems, notes=(text,)))
        if number > 1:
            store.builds.remove(job, identity)


def young(store: Store, now: int) -> None:
    """The shop with few checkpoints, for tests to which its history does not matter."""
    shop(store, now, checkpoints=8)


def failing(store: Store, now: int) -> None:
    """The shop, and its newest checkpoint does not show two of the views."""
    shop(store, now, broken=True)
    built(store, "shop", [DAILY, TOP], "sum(amount)", ["0000000a", "0000000b"])


def many(store: Store, now: int) -> None:
    """A hundred tables of twenty jobs; some fail, some are behind, one checkpoint is open for an hour."""
    rng, seeder = random.Random(11), Seeder(store, now)
    for team in range(20):
        job, space = f"team-{team:02}", f"area{team % 5}"
        own = [name(f"{'raw' if n == 0 else 'view'}_{team:02}_{n}", space) for n in range(5)]
        entries = [DatasetEntry(own[0], STREAM, "r")]
        for n in range(1, 5):
            inputs = {own[n - 1], *rng.sample(own[:n], 1)}
            entries.append(DatasetEntry(own[n], VIEW, "v", frozenset(inputs)))
        seeder.start(job, f"pipeline {team}", entries)
        for step in range(2):
            cut = now - (2 - step) * 600_000 + team * 1_000
            number = seeder.cut(job, {own[0]: step}, cut)
            open_ = step == 1 and team in (3, 7)
            for n in range(1, 2 if open_ else 5):
                if step == 1 and team % 6 == 5 and n >= 2:
                    error = "[CAST_INVALID_INPUT] The value 'n/a' of the type STRING cannot be cast to INT."
                    failure = unclassified(error) if n == 2 else waits(own[n - 1], error)
                    seeder.failed(job, number, own[n], failure, cut + 900)
                else:
                    seeder.done(job, number, own[n], _refresh(rng, step == 0), cut + 300 * n)
            if not open_:
                seeder.publish(job, number, cut + 2_000 + team * 30)


WORDS, COUNT, SUM, BOTH = (name(table, "words") for table in ("words", "word_count", "word_sum", "word_join"))

CONNECTED = {
    "words": [DatasetEntry(WORDS, STREAM, "w", is_root=True)],
    "counts": [DatasetEntry(COUNT, VIEW, "c", frozenset({WORDS}))],
    "sums": [DatasetEntry(SUM, VIEW, "s", frozenset({WORDS}))],
    "joins": [DatasetEntry(BOTH, VIEW, "j", frozenset({COUNT, SUM}))],
}


def connected(store: Store, now: int) -> None:
    """Four jobs share their checkpoints: 1 is published, of 2 the sums are still made, the joins wait."""
    rng, seeder = random.Random(7), Seeder(store, now)
    for job, entries in CONNECTED.items():
        seeder.start(job, "words", entries)
    for step, at_ms in ((1, now - 90_000), (2, now - 4_000)):
        number = seeder.cut("words", {WORDS: step}, at_ms)
        seeder.publish("words", number, at_ms)
        for job, table in (("counts", COUNT), ("sums", SUM), ("joins", BOTH)):
            store.checkpoints.begin_next(job, seeder.fences[job])
            if step == 2 and job != "counts":
                continue
            seeder.done(job, number, table, _refresh(rng, step == 1), at_ms + 900)
            seeder.publish(job, number, at_ms + 1_000)
    store.checkpoints.record_wait("joins", seeder.fences["joins"], 2, "sums")


def hostile(store: Store, now: int) -> None:
    """Names, errors, reasons and definitions with HTML, JavaScript, template syntax and paths."""
    seeder = Seeder(store, now)
    tables = [name(part, part) for part in HOSTILE]
    entries = [DatasetEntry(tables[0], STREAM, "h")]
    entries += [
        DatasetEntry(table, VIEW, "h", frozenset({tables[index]})) for index, table in enumerate(tables[1:])
    ]
    job = HOSTILE[0]
    seeder.start(job, HOSTILE[1], entries)
    number = seeder.cut(job, {tables[0]: 1}, now - 60_000)
    for table in tables[1:]:
        reason = HOSTILE[0] + HOSTILE[1]
        refresh = Refresh(
            mode=RefreshMode.FULL,
            reason=unclassified(reason),
            rows_inserted=3,
            duration_ms=100,
            nodes=(NodeRefresh(node=HOSTILE[1], mode=RefreshMode.FULL, reason=unclassified(HOSTILE[0])),),
            expectations=tuple(ExpectationCount(part, ViolationAction.WARN, 1, 1) for part in HOSTILE),
        )
        if table == tables[2]:
            seeder.failed(job, number, table, unclassified(reason), now - 59_000)
        else:
            seeder.done(job, number, table, refresh, now - 59_000)
    seeder.publish(job, number, now - 58_000)
    outside(seeder, job, tables[0], tables[1], HOSTILE)
    built(store, job, tables[1:3], HOSTILE[0], ["0000000a"])
    lineage = {part: frozenset({ColumnRef(tables[0], HOSTILE[1])}) for part in HOSTILE}
    store.datasets.describe(
        job,
        seeder.fences[job],
        [
            DatasetDetails(
                dataset=table,
                definition="h",
                location=HOSTILE[0],
                text=f"SELECT '{HOSTILE[0]}' AS `{HOSTILE[1]}`",
                columns=tuple(LakeColumn(part, part, part) for part in HOSTILE),
                lineage=ColumnLineage(values=lineage, rows=frozenset({ColumnRef(table, HOSTILE[0])})),
            )
            for table in tables
        ],
    )


SEEDS = {
    "empty": empty,
    "shop": shop,
    "young": young,
    "failing": failing,
    "many": many,
    "connected": connected,
    "hostile": hostile,
    "wide": wide,
    "narrow": narrow,
}
