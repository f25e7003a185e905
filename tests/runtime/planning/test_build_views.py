"""What is kept of a build for people is bounded, however many views it has."""

from __future__ import annotations

from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName
from tautochrone.model.project_plan import DatasetPlan, DefinitionChange, Treatment
from tautochrone.model.reason import unclassified
from tautochrone.runtime.planning.build_views import views_of_build


def test_differences_of_many_views_are_cut_together() -> None:
    plans = [
        DatasetPlan(
            dataset=TableName("lake", ("shop",), f"v{number}"),
            kind=DatasetKind.MATERIALIZED_VIEW,
            change=DefinitionChange.CHANGED,
            treatment=Treatment.BUILD,
            mode=RefreshMode.FULL,
            reason=unclassified("x"),
            difference=("+" + "x" * 500,) * 200,
        )
        for number in range(100)
    ]
    views = views_of_build(plans)
    assert views_of_build(plans[:1]) == views[:1]
    assert [view.table for view in views] == [plan.dataset for plan in plans]
    assert views[0].difference is not None
    assert len(views[0].difference) == 81
    assert views[-1].difference == ("…",)
    assert sum(len(line) for view in views for line in view.difference or ()) < 201_000
