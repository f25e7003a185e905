"""What an external writer may do to a table that views read, and what each refresh makes of it."""

from __future__ import annotations

import pytest
from tests.support.harness import Happened, Pipeline

from tautochrone.model.effects import Step

from .conftest import KINDS, ExternalWriter

pytestmark = pytest.mark.spark

TINY = "its inputs hold few rows"
LINEAR = "rows were only added to inputs of a linear query"


def right(pipeline: Pipeline, writer: ExternalWriter, happened: Happened) -> None:
    """`big` says what the external table says by hand, other views what it says by Spark."""
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    if len(pipeline.job.topology.derived_tables) > 1:
        pipeline.verify()
    orders = writer.table().scan().to_arrow().to_pylist()
    big = sorted((row["id"], row["amount"]) for row in orders if row["amount"] >= 10)
    assert pipeline.query("SELECT * FROM big") == big


def right_top(pipeline: Pipeline, writer: ExternalWriter) -> None:
    """The view of a view, by hand."""
    kinds = [row["kind"] for row in writer.table().scan().to_arrow().to_pylist()]
    top = sorted({(kind,) for kind in kinds if kinds.count(kind) > 1})
    assert pipeline.query("SELECT * FROM top") == top


def test_appends_then_no_news(pipeline: Pipeline, writer: ExternalWriter) -> None:
    pipeline.write("definitions/kinds.sql", KINDS)
    first = pipeline.run()
    right(pipeline, writer, first)
    right_top(pipeline, writer)
    assert first.mode("big") == ("full", "first build")

    writer.append((4, "b", 30))
    second = pipeline.run()
    right(pipeline, writer, second)
    right_top(pipeline, writer)
    assert second.mode("big") == ("append", LINEAR)
    assert second.refresh("big")["rows_inserted"] == 1
    assert second.mode("totals") == ("diff", TINY)
    # The limit is told once, although `top` is compared too.
    assert second.mode("top") == ("diff", TINY)
    assert [event["rows"] for event in second.of("few_input_rows")] == [1000]
    assert second.mode("apart")[0] == "no_data"
    commits = pipeline.effects.by_subject
    for table in ("big", "totals", "top", "apart"):
        steps = {step: commits[step, f"lake.default.{table}"] for step in Step if "lake." in step}
        moved = sum(steps[step] for step in (Step.LAKE_PREPARE, Step.LAKE_COMMIT, Step.LAKE_COMMIT_STAGED))
        assert moved <= 2, (table, steps)
        assert steps[Step.LAKE_FENCE] == 1
        assert moved == (0 if table == "apart" else 1), (table, steps)

    before = pipeline.spark_jobs()
    pointers = pipeline.pointers()
    third = pipeline.run()
    assert pipeline.spark_jobs() == before
    assert third.checkpoints == []
    assert third.state == "COMPLETED"
    # A takeover fences its tables; nothing else is written, and nothing at all to the external table.
    assert set(pipeline.effects.steps) == {Step.META_START, Step.META_TAKE_OVER, Step.LAKE_FENCE}
    after = pipeline.pointers()
    assert {name for name in after if after[name] != pointers[name]} == {
        "default.apart", "default.big", "default.top", "default.totals"
    }  # fmt: skip


def test_overwrite_delete_and_roll_back(pipeline: Pipeline, writer: ExternalWriter) -> None:
    pipeline.write("definitions/totals.sql", KINDS.partition(";")[0] + ";")
    right(pipeline, writer, pipeline.run())
    start = writer.table().current_snapshot().snapshot_id

    writer.table().overwrite(writer.rows((7, "c", 70), (8, "c", 5)))
    happened = pipeline.run()
    right(pipeline, writer, happened)
    mode, reason = happened.mode("big")
    assert (mode, reason) == ("diff", TINY)

    writer.table().delete("id = 7")
    happened = pipeline.run()
    right(pipeline, writer, happened)
    mode, reason = happened.mode("big")
    assert (mode, reason) == ("diff", TINY)

    writer.table().manage_snapshots().rollback_to_snapshot(start).commit()
    happened = pipeline.run()
    right(pipeline, writer, happened)
    mode, reason = happened.mode("big")
    assert mode == "diff"
    assert "is not in the history of lake.raw.orders" in reason

    writer.append((4, "b", 30))
    happened = pipeline.run()
    right(pipeline, writer, happened)
    assert happened.mode("big") == ("append", LINEAR)


def test_replaced(pipeline: Pipeline, writer: ExternalWriter) -> None:
    right(pipeline, writer, pipeline.run())
    writer.replace((1, "z", 99))
    happened = pipeline.run()
    right(pipeline, writer, happened)
    mode, reason = happened.mode("big")
    assert mode == "diff"
    assert "lake.raw.orders" in reason
    assert "replaced" in reason

    writer.append((2, "z", 98))
    pipeline.session.sql(
        "CREATE OR REPLACE TABLE lake.raw.orders USING iceberg AS SELECT 5L AS id, 'y' AS kind, 50L AS amount"
    )
    happened = pipeline.run()
    right(pipeline, writer, happened)
    mode, reason = happened.mode("big")
    assert mode == "diff"
    assert "replaced" in reason
    assert pipeline.query("SELECT * FROM big", checkpoint=1) == [(2, 10), (3, 20)]


def test_empty_at_first(pipeline: Pipeline, writer: ExternalWriter) -> None:
    writer.catalog.drop_table("raw.orders")
    writer.create("orders")
    right(pipeline, writer, pipeline.run())
    writer.append((1, "a", 50))
    happened = pipeline.run()
    right(pipeline, writer, happened)
    writer.replace()
    happened = pipeline.run()
    right(pipeline, writer, happened)
    assert happened.mode("big")[0] == "diff"


@pytest.mark.parametrize("tagged", [True, False])
def test_expired(pipeline: Pipeline, writer: ExternalWriter, tagged: bool) -> None:
    if not tagged:
        pipeline.write("tautochrone.toml", "[external_tables]\ntag = false\n")
    right(pipeline, writer, pipeline.run())
    writer.append((4, "b", 30))
    # What Iceberg's own maintenance does, on a day when everything is too old.
    pipeline.session.sql(
        "CALL lake.system.expire_snapshots(table => 'raw.orders', "
        "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)"
    )
    happened = pipeline.run()
    right(pipeline, writer, happened)
    mode, reason = happened.mode("big")
    if tagged:
        assert (mode, reason) == ("append", LINEAR)
    else:
        assert mode == "diff"
        assert "lake.raw.orders is gone: expired" in reason


def test_dropped(pipeline: Pipeline, writer: ExternalWriter) -> None:
    """Siblings go on, the old checkpoint stays readable, and it catches up when the table is back."""
    pipeline.write("definitions/kinds.sql", KINDS)
    right(pipeline, writer, pipeline.run())
    with pipeline.opened() as (job, happened):
        writer.catalog.drop_table("raw.orders")
        writer.table("others").append(writer.rows((2, "x", 2)))
        pipeline.execute(job)
        assert happened.state == "FAILED"
        assert "[TABLE_OR_VIEW_NOT_FOUND]" in happened.failure("big")
        assert "lake.raw.orders" in happened.failure("big")
        assert happened.failure("top").startswith("waits for lake.default.totals")
        assert "\tat " not in happened.failure("top")
        assert happened.mode("apart")[0] == "diff"
        assert pipeline.query("SELECT * FROM apart") == [(2,)]
        assert pipeline.query("SELECT * FROM big", checkpoint=1) == [(2, 10), (3, 20)]
        writer.create("orders", (9, "q", 90))
        pipeline.execute(job)
    right(pipeline, writer, happened)
    right_top(pipeline, writer)
