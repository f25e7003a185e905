"""A view for which computing everything is cheaper keeps nothing for the next change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.harness import Pipeline

from tautochrone.model import limits
from tautochrone.model.checkpoint import RefreshMode, RefreshPolicy
from tautochrone.model.names import TableName
from tautochrone.runtime.views import choose_mode as choose
from tautochrone.runtime.views.choose_mode import Decision, Estimate, Facts

pytestmark = pytest.mark.spark

VIEW = TableName("lake", ("default",), "totals")


@pytest.fixture
def pipeline(pipeline: Pipeline) -> Pipeline:
    pipeline.session.sql("CREATE NAMESPACE lake.src")
    pipeline.session.sql("CREATE TABLE lake.src.t AS SELECT id, id % 7 AS k FROM range(3000)")
    pipeline.write(
        "definitions/v.sql",
        "CREATE MATERIALIZED VIEW totals AS SELECT k, count(*) AS n FROM src.t GROUP BY k;",
    )
    return pipeline


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Callable[[RefreshMode], None]:
    """Has `auto` decide for a mode from now on."""
    decide = choose.decide

    def to(mode: RefreshMode) -> None:
        def decision(policy: RefreshPolicy, facts: Facts) -> Decision:
            return replace(decide(policy, facts), mode=mode)

        monkeypatch.setattr(choose, "decide", decision)

    return to


def companions(pipeline: Pipeline) -> int:
    commit_metadata = pipeline.job.tables[VIEW].fork().commit_metadata
    assert commit_metadata is not None
    return len(commit_metadata.companions)


def test_the_state_goes_and_comes_back(pipeline: Pipeline, decided: Callable[[RefreshMode], None]) -> None:
    modes = []
    for step, mode in enumerate([None, RefreshMode.FULL, RefreshMode.INCREMENTAL, RefreshMode.INCREMENTAL]):
        if mode is not None:
            decided(mode)
        pipeline.session.sql(f"INSERT INTO lake.src.t VALUES ({-step}, {step})")
        happened = pipeline.run()
        modes.append((happened.mode("totals")[0], companions(pipeline)))
    assert len(pipeline.verify()) == 1
    assert modes == [("full", 1), ("full", 0), ("full", 1), ("incremental", 1)]
    past = [record.refresh for record in pipeline.job.store.history.refreshes(VIEW)]
    assert past[1] is not None
    assert str(past[1].reason) == "the view has no state default__totals__1 yet"


def test_after_a_large_change_the_state_is_up_to_date(
    pipeline: Pipeline, decided: Callable[[RefreshMode], None]
) -> None:
    pipeline.run()
    decided(RefreshMode.FULL)
    pipeline.session.sql("INSERT INTO lake.src.t SELECT id, id % 5 FROM range(3000)")
    assert pipeline.run().mode("totals")[0] == "full"
    assert companions(pipeline) == 1
    decided(RefreshMode.INCREMENTAL)
    pipeline.session.sql("DELETE FROM lake.src.t WHERE id < 9")
    assert pipeline.run().mode("totals")[0] == "incremental"
    assert len(pipeline.verify()) == 1


@pytest.mark.parametrize(("kind", "driver_rows"), [("BIGINT", 20_000), ("BIGINT", 1), ("DOUBLE", 20_000)])
def test_views_above_follow_what_is_computed_anew(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, kind: str, driver_rows: int
) -> None:
    """With more rows than the driver keeps, whole files are written anew; that is no change for others."""
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", driver_rows)
    estimate = choose.estimate

    def estimated(facts: Facts) -> Estimate:
        ms = 9_000 if facts.changed[0].name == "t" else 1
        return replace(estimate(facts), incremental_ms=ms, full_ms=1_000)

    monkeypatch.setattr(choose, "estimate", estimated)
    pipeline.write(
        "definitions/v.sql",
        f"CREATE MATERIALIZED VIEW some AS SELECT id % 1500 AS g, CAST(sum(k) AS {kind}) AS s "
        "FROM src.t GROUP BY 1;"
        "CREATE MATERIALIZED VIEW totals AS SELECT s, count(*) AS n FROM some GROUP BY s",
    )
    pipeline.run()
    pipeline.session.sql("INSERT INTO lake.src.t VALUES (7, 1), (8, 2)")
    happened = pipeline.run()
    below = happened.refresh("some")
    if kind == "DOUBLE":
        assert (below["mode"], below["rows_deleted"]) == ("full", 1500)
    else:
        assert (below["mode"], below["rows_inserted"], below["rows_deleted"]) == ("diff", 2, 2)
        assert {r["code"] for r in below["reason_params"]["reasons"]} == {
            "ESTIMATED_COSTS",
            "COMPARED_FOR_READERS",
        }
        assert happened.mode("totals")[0] == "incremental"
        assert happened.refresh("totals")["delta_rows"] == 4
        assert happened.refresh("totals")["rows_inserted"] < 6
    assert len(pipeline.verify()) == 2
