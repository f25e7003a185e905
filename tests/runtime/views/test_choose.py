"""Which mode is chosen, from metadata alone: the context is a handful of values here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tautochrone.errors import RefreshError
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode, RefreshPolicy
from tautochrone.model.definitions import Dataset, DatasetKind, FlowInputs, SourceLocation
from tautochrone.model.lake import ChangeKind, CommitMetadata, Fork, LakeTable, TableChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode, unclassified
from tautochrone.project.graph import ResolvedFlow
from tautochrone.project.table_properties import POLICY_PROPERTY, policy_of
from tautochrone.runtime.refresh.task import Choice, RefreshContext, RefreshTask
from tautochrone.runtime.views.choose_mode import Size, choose, require_incremental, sizes_of

VIEW, ORDERS, ITEMS = (TableName("lake", ("db",), table) for table in ("v", "orders", "items"))
STRICT = RefreshPolicy.INCREMENTAL_STRICT
UNVERSIONED = Reason.of(ReasonCode.UNVERSIONED_SOURCE, sources=["csv:x"])


class World:
    """Change it, then `choose`."""

    def __init__(self) -> None:
        self.policy: str | None = None
        self.default = RefreshPolicy.AUTO
        self.definition: str | None = "d"
        self.new_definition = "d"
        self.changes: dict[TableName, TableChange] = {}
        self.inputs: dict[str, str] = {str(ORDERS): "1", str(ITEMS): "1"}
        self.sizes = {ORDERS: Size(changed_rows=10, rows=1_000_000), ITEMS: Size(changed_rows=0, rows=50)}
        self.history: list[Refresh] = []
        self.applied: Refresh | None = None
        self.flow = SimpleNamespace(
            linear=False,
            linear_reason="Join",
            deterministic=True,
            deterministic_reason="",
            inputs=FlowInputs(batch=frozenset({ORDERS, ITEMS})),
        )

    def moved(self, table: TableName, kind: ChangeKind = ChangeKind.CHANGED) -> None:
        self.changes[table] = TableChange(kind=kind, reason=unclassified(f"{table.table} was {kind}"))

    def context(self) -> RefreshContext:
        def table(name: TableName) -> Any:
            return SimpleNamespace(change_between=lambda _old, _new: self.changes[name])

        context = SimpleNamespace(load_input=table, history=lambda _table: tuple(self.history))
        return cast(RefreshContext, context)

    def task(self) -> RefreshTask:
        properties = {} if self.policy is None else {POLICY_PROPERTY: self.policy}
        location = SourceLocation("views.sql", 3)
        dataset = Dataset(VIEW, DatasetKind.MATERIALIZED_VIEW, location, properties=properties)
        metadata = CommitMetadata(
            pipeline="p", job="j", fence=Fence(1), store="s", definition=self.new_definition
        )
        last_commit = replace(metadata, definition=self.definition, inputs=self.inputs)
        return RefreshTask(
            table=cast(LakeTable, None),
            fork=Fork(table=VIEW, version=Version("9"), fence=Fence(1), commit_metadata=last_commit),
            flows=(cast(ResolvedFlow, self.flow),),
            checkpoint=CheckpointNumber(7),
            cut_at_ms=0,
            inputs={name: Version("2" if name in self.changes else "1") for name in (ORDERS, ITEMS)},
            policy=policy_of(dataset, self.default),
            metadata=metadata,
            location=str(location),
            applied=self.applied,
        )

    def choose(self, *obstacles: str, forced: Reason | None = None, planned: bool = True) -> Choice:
        return choose(
            self.context(),
            self.task(),
            forced=forced,
            obstacles=(lambda: [*map(unclassified, obstacles)]) if planned else None,
            sizes=lambda name, _old, _new: self.sizes.get(name, Size()),
        )


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("part", "code"), [(5, ReasonCode.INPUT_TYPES_CHANGED), (6, ReasonCode.PROJECT_MOVED)]
)
def test_what_no_author_changed_is_compared(world: World, part: int, code: ReasonCode) -> None:
    before = list("1234567")

    def choice(*differ: int) -> tuple[RefreshMode, ReasonCode]:
        after = ["0" if number in differ else text for number, text in enumerate(before)]
        world.definition, world.new_definition = ".".join(before), ".".join(after)
        choice = world.choose()
        return choice.mode, choice.reason.code

    columns, query = 4, 0
    assert choice(part) == (RefreshMode.DIFF, code)
    assert choice(part, query) == (RefreshMode.FULL, ReasonCode.DEFINITION_CHANGED)
    assert choice(5, part, columns) == (RefreshMode.FULL, ReasonCode.INPUT_TYPES_CHANGED)
    world.policy = RefreshPolicy.INCREMENTAL_STRICT
    assert choice(part) == (RefreshMode.FULL, code)
    world.policy = RefreshPolicy.FULL
    assert choice(part) == (RefreshMode.FULL, ReasonCode.POLICY_IS_FULL)


@pytest.mark.parametrize("policy", list(RefreshPolicy))
def test_no_news_and_new_definitions_under_every_policy(world: World, policy: RefreshPolicy) -> None:
    world.policy = policy
    assert world.choose() == Choice(
        RefreshMode.NO_DATA, Reason.of(ReasonCode.NO_INPUT_CHANGED), policy=policy
    )
    world.definition = "other"
    reason = Reason.of(ReasonCode.DEFINITION_CHANGED, parts=[])
    assert world.choose() == Choice(RefreshMode.FULL, reason, policy=policy)
    world.definition = None
    assert world.choose() == Choice(RefreshMode.FULL, Reason.of(ReasonCode.FIRST_BUILD), policy=policy)


def test_a_change_is_followed(world: World) -> None:
    world.moved(ORDERS)
    choice = world.choose()
    assert choice.mode is RefreshMode.INCREMENTAL
    costs = "incremental 0.3 s expected, full 0.3 s expected"
    assert str(choice.reason) == f"less than 0.01 % of orders changed; {costs}"
    assert choice.ranges == {ORDERS: (Version("1"), Version("2"))}
    assert (choice.estimate_ms, choice.delta_rows) == (300, 10)


def test_linear_query_appends_unless_policy_is_full(world: World) -> None:
    world.flow.linear = True
    world.moved(ORDERS, ChangeKind.APPEND)
    for policy in (RefreshPolicy.AUTO, RefreshPolicy.INCREMENTAL, STRICT):
        world.default = policy
        assert (world.choose().mode, world.choose().delta_rows) == (RefreshMode.APPEND, 10)
    world.policy = "full"
    assert (world.choose().mode, str(world.choose().reason)) == (
        RefreshMode.FULL,
        "its refresh policy is full",
    )
    world.policy = None
    world.moved(ITEMS)
    assert world.choose().mode is RefreshMode.INCREMENTAL


def test_the_views_own_policy_comes_before_the_projects(world: World) -> None:
    world.moved(ORDERS)
    world.default = RefreshPolicy.FULL
    assert world.choose().mode is RefreshMode.FULL
    world.policy = "incremental"
    assert (world.choose().mode, world.choose().policy) == (
        RefreshMode.INCREMENTAL,
        RefreshPolicy.INCREMENTAL,
    )


def test_what_cannot_be_followed_is_compared_or_refused(world: World) -> None:
    world.moved(ORDERS)
    assert (world.choose("recursive").mode, str(world.choose("recursive").reason)) == (
        RefreshMode.DIFF,
        "recursive",
    )
    assert str(world.choose(planned=False).reason) == "Join"
    world.policy = STRICT
    with pytest.raises(RefreshError) as caught:
        world.choose("recursive")
    assert (caught.value.error_class, caught.value.location) == ("REFRESH_NOT_INCREMENTAL", "views.sql:3")
    assert "recursive" in caught.value.message
    assert "--full-refresh v" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda w: w.moved(ORDERS, ChangeKind.UNKNOWN), "orders was unknown"),
        (lambda w: w.inputs.pop(str(ORDERS)), "lake.db.orders is a new input"),
        (lambda w: vars(w.flow).update(deterministic=False, deterministic_reason="rand()"),
         "rand() returns other values each time"),
        (lambda w: vars(w.flow).update(inputs=FlowInputs(unversioned=("csv:/data/x.csv",))),
         "it reads csv:/data/x.csv, which has no versions"),
    ],
)  # fmt: skip
def test_why_a_planned_view_cannot_follow(world: World, spoil: Any, reason: str) -> None:
    world.moved(ORDERS)
    spoil(world)
    assert (world.choose().mode, str(world.choose().reason)) == (RefreshMode.DIFF, reason)


def test_forced_comparison(world: World) -> None:
    choice = world.choose(forced=UNVERSIONED)
    assert (choice.mode, str(choice.reason)) == (RefreshMode.DIFF, "it reads csv:x, which has no versions")
    world.policy = STRICT
    with pytest.raises(RefreshError, match="which has no versions"):
        world.choose(forced=UNVERSIONED)


def test_only_refreshes_of_the_same_definition_count(world: World) -> None:
    """After the definition changed, what the old one took says nothing."""
    world.moved(ORDERS)

    def full(code: ReasonCode, ms: int) -> Refresh:
        return Refresh(mode=RefreshMode.FULL, reason=Reason.of(code, parts=[]), duration_ms=ms)

    old = [full(ReasonCode.POLICY_IS_FULL, 10)] * 3
    world.history = old
    assert world.choose().mode is RefreshMode.FULL
    world.history = [full(ReasonCode.DEFINITION_CHANGED, 9_000), *old]
    assert "full 1.0 s expected" in str(world.choose().reason)
    # A build was applied, and followed by a computation in the same refresh.
    applied = NodeRefresh(
        node="built rows",
        mode=RefreshMode.FULL,
        reason=Reason.of(ReasonCode.BUILD_APPLIED, plan="0123abcd", checkpoint=1),
    )
    query = NodeRefresh(node="query", mode=RefreshMode.FULL, reason=Reason.of(ReasonCode.POLICY_IS_FULL))
    new = replace(full(ReasonCode.POLICY_IS_FULL, 9_000), nodes=(applied, query))
    world.history = [new, *old]
    assert "full 1.0 s expected" in str(world.choose().reason)
    world.history = old
    world.applied = replace(new, reason=applied.reason, nodes=(applied,))
    assert world.choose().mode is RefreshMode.INCREMENTAL


def test_the_plan_is_made_only_for_a_change(world: World) -> None:
    def never() -> tuple[str, ...]:
        raise AssertionError

    world.inputs = {str(ORDERS): "1"}
    task = replace(world.task(), inputs={ORDERS: Version("1")})
    assert choose(world.context(), task, obstacles=never).mode is RefreshMode.NO_DATA


def test_sizes_come_from_metadata_and_from_who_reads_the_change() -> None:
    def table(rows: int) -> Any:
        return SimpleNamespace(row_count=lambda version: rows + int(version))

    load_input = {ORDERS: table(100), ITEMS: table(7_000)}.__getitem__
    sizes = sizes_of(load_input, lambda _name, old, new: int(new) - int(old))
    assert sizes(ORDERS, Version("1"), Version("5")) == Size(changed_rows=4, rows=105)
    assert sizes(ITEMS, Version("2"), Version("2")) == Size(changed_rows=0, rows=7_002)


def test_strict_holds_every_node_to_it(world: World) -> None:
    nodes = [
        NodeRefresh(node="join", mode=RefreshMode.INCREMENTAL, reason=unclassified("telescoping")),
        NodeRefresh(node="window", mode=RefreshMode.DIFF, reason=unclassified("no rule")),
    ]
    require_incremental(replace(world.task(), policy=RefreshPolicy.INCREMENTAL), nodes)
    strict = replace(world.task(), policy=STRICT)
    require_incremental(strict, nodes[:1])
    with pytest.raises(RefreshError, match=r"REFRESH_NOT_INCREMENTAL.*window needs diff: no rule"):
        require_incremental(strict, nodes)
