"""A plan of analysed definitions: a job that owns nothing, over the project's store and lake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tautochrone.app.open import Project, log_event
from tautochrone.app.stores import existing_store, is_service, store_exists
from tautochrone.errors import SettingsError
from tautochrone.meta import MetaStore, Store
from tautochrone.model.catalog import Lookup
from tautochrone.project.graph import datasets_of
from tautochrone.runtime.job.effects import effects_from_environment
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.topology import JobTopology, select
from tautochrone.runtime.planning.plan_project import plan_project

if TYPE_CHECKING:
    from tautochrone.model.project_plan import ProjectPlan
    from tautochrone.project.definitions import Definitions
    from tautochrone.project.graph import Graph
    from tautochrone.project.settings import Settings

__all__ = ["plan_of_graph", "plans_of_jobs"]


def plan_of_graph(
    project: Project,
    definitions: Definitions,
    graph: Graph,
    full: Sequence[str] = (),
    *,
    everything: bool = False,
) -> ProjectPlan:
    """What the next run does with analysed definitions. Nothing is written.

    Raises:
        DefinitionError: sinks that do not fit together; `DATASET_NOT_FOUND`.
        MetaError: the store cannot be read.
        LakeError: a table cannot be read.
    """
    with _store(project.settings) as store:
        job = _unowned_job(project, project.settings, definitions, graph, store)
        selection = select(job.topology, (), full, everything=everything)
        return plan_project(job, selection.full, selection.full_sinks, has_lake=project.has_lake)


def plans_of_jobs(project: Project, definitions: Definitions, graph: Graph) -> list[ProjectPlan]:
    """What the next run of each job of a project does; see `plan_of_graph`."""
    settings = project.settings
    names = [*settings.jobs, project.spec.name] if settings.jobs else [settings.job]
    plans = []
    with _store(settings) as store:
        for name in dict.fromkeys(names):
            try:
                job = _unowned_job(project, replace(settings, job=name), definitions, graph, store)
            except SettingsError as error:
                if error.error_class != "JOB_HAS_NO_DATASETS":
                    raise
                continue
            plans.append(plan_project(job, has_lake=project.has_lake))
    return plans


@contextmanager
def _store(settings: Settings) -> Iterator[Store]:
    """The project's store, or an empty one before the first run, which makes the project's own."""
    if is_service(settings.meta_url) or store_exists(settings.meta_url):
        with existing_store(settings) as store:
            yield store
        return
    with TemporaryDirectory() as folder, MetaStore.open(f"sqlite:///{folder}/meta.db") as store:
        yield store


def _unowned_job(
    project: Project, settings: Settings, definitions: Definitions, graph: Graph, store: Store
) -> Job:
    effects = effects_from_environment()
    own = graph.only(datasets_of(settings.job, settings.jobs, definitions, graph))
    siblings = frozenset(graph.order) - frozenset(own.order)
    return Job(
        spec=project.spec,
        settings=settings,
        base=project.base,
        lake=project.lake,
        journal=Journal(store, settings.job, effects),
        read_points=_NoReadPoints(),
        effects=effects,
        emit=log_event,
        topology=JobTopology(definitions=definitions, graph=own, sibling_tables=siblings),
    )


@dataclass(frozen=True, slots=True)
class _NoReadPoints:
    """A plan reads no rows."""

    uri: str = ""

    def show(self, read_point: str, lookup: Lookup) -> None:
        """Nobody asks."""
