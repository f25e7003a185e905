"""A plan of a project that is built: its views, its checks, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from tautochrone.project.unit_test_files import read_unit_tests
from tautochrone.redaction import redacted
from tautochrone.runtime.planning.build import BuildPrice, build, survey
from tautochrone.runtime.planning.plan_project import plan_project
from tautochrone.runtime.unit_tests.runner import Outcome, UnitTests

if TYPE_CHECKING:
    from tautochrone.app.open import Project
    from tautochrone.model.names import TableName
    from tautochrone.model.project_build import BuiltTable, ProjectBuild
    from tautochrone.project.graph import Graph
    from tautochrone.runtime.job.job import Job

__all__ = ["build_project"]


def build_project(
    project: Project,
    job: Job,
    price: Callable[[BuildPrice, int], None],
    built: Callable[[BuiltTable, int], None],
) -> ProjectBuild | None:
    """Build what the plan of a job changes; None: it changes nothing that a build computes.

    Args:
        job: of the project; it is not taken over.
        price: called before anything is written, with the number of the base checkpoint.
        built: called after each view, with the milliseconds that it took.

    Raises:
        DefinitionError, MetaError: as of `survey`.
        RefreshError, LakeError: as of `build`; nothing is left.
    """
    planned = plan_project(job, has_lake=project.has_lake)
    surveyed = survey(job, planned)
    if not surveyed.views:
        return None
    price(surveyed.price, int(surveyed.base.number))
    return build(job, surveyed, lambda views: _failed_unit_tests(project, job.graph, views), built)


def _failed_unit_tests(project: Project, graph: Graph, views: Collection[TableName]) -> list[str]:
    """What the unit tests of some views say that fail."""
    settings, spec = project.settings, project.spec
    names = {view.table.lower() for view in views}
    tests = [
        test
        for test in read_unit_tests(spec.root, (Path(settings.storage), Path(spec.storage_path)))
        if test.model.parts[-1].lower() in names
    ]
    if not tests:
        return []
    results = UnitTests(graph, project.base, settings.catalog.name).run(tests)
    return [
        f"unit test {result.test.name} of {result.test.model}: "
        + (redacted(str(result.error)) if result.error else "its rows are others than expected")
        for result in results
        if result.outcome is not Outcome.PASSED
    ]
