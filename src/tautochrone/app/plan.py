"""A plan of the next run of a project: what is compared with what is deployed, and what needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tautochrone.app.locate import Options, locate
from tautochrone.app.open import Project, log_event
from tautochrone.app.stores import existing_store, is_service, store_exists
from tautochrone.app.unchanged import has_same_definitions, program_of
from tautochrone.meta import MetaStore, Store
from tautochrone.model.catalog import Lookup
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.project_plan import DatasetPlan, DefinitionChange, ProjectPlan, Treatment
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.graph import datasets_of
from tautochrone.runtime.job.effects import effects_from_environment
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.topology import JobTopology, select
from tautochrone.runtime.planning.plan_project import plan_project

if TYPE_CHECKING:
    from tautochrone.project.definitions import Definitions
    from tautochrone.project.graph import Graph
    from tautochrone.project.settings import Settings

__all__ = ["plan", "plan_of_graph"]


def plan(options: Options, full: Sequence[str] = (), *, everything: bool = False) -> ProjectPlan:
    """What the next run of a project does. Nothing is written.

    Spark starts only where definitions have to be evaluated: not while the files, settings and environment
    are those of the last run.

    Args:
        options: the command line's options.
        full: names of datasets and sinks as `taut run --full-refresh` takes them.
        everything: all of them, as with `--full-refresh-all`.

    Raises:
        DefinitionError: what does not fit together in the project.
        MetaError: the store cannot be read.
        LakeError: a table cannot be read.
    """
    spec, settings = located = locate(options)
    if not full and not everything:
        unchanged = _unchanged(settings, program_of(spec, settings))
        if unchanged is not None:
            return unchanged
    from tautochrone.app.launch import launch

    launch(settings, short_lived=True)
    with Project(options, log_event, short_lived=True, located=located) as project:
        definitions, graph = project.analysed(None if everything else full)
        return plan_of_graph(project, definitions, graph, full, everything=everything)


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
        job = _unowned_job(project, definitions, graph, store)
        selection = select(job.topology, (), full, everything=everything)
        return plan_project(job, selection.full, selection.full_sinks, has_lake=project.has_lake)


@contextmanager
def _store(settings: Settings) -> Iterator[Store]:
    """The project's store, or an empty one before the first run, which makes the project's own."""
    if is_service(settings.meta_url) or store_exists(settings.meta_url):
        with existing_store(settings) as store:
            yield store
        return
    with TemporaryDirectory() as folder, MetaStore.open(f"sqlite:///{folder}/meta.db") as store:
        yield store


def _unowned_job(project: Project, definitions: Definitions, graph: Graph, store: Store) -> Job:
    settings, effects = project.settings, effects_from_environment()
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


def _unchanged(settings: Settings, program: str | Reason) -> ProjectPlan | None:
    """The plan of definitions that are those of the last complete run; None: that is not known without
    evaluating them."""
    if isinstance(program, Reason) or is_service(settings.meta_url) or not store_exists(settings.meta_url):
        return None
    with existing_store(settings) as store:
        if not has_same_definitions(store, settings, program):
            return None
        latest = store.checkpoints.latest_published(settings.job)
        details = store.datasets.details_of_job(settings.job)
        return ProjectPlan(
            job=settings.job,
            checkpoint=None if latest is None else latest.number,
            datasets=tuple(
                DatasetPlan(
                    dataset=entry.name,
                    kind=DatasetKind(entry.kind),
                    change=DefinitionChange.UNCHANGED,
                    treatment=Treatment.LEAVE,
                    reason=Reason.of(ReasonCode.DEFINITION_UNCHANGED),
                    location=details[entry.name].location if entry.name in details else None,
                )
                for entry in store.datasets.registered(settings.job)
            ),
            is_compared=False,
        )
