"""A plan of the next run of a project. It needs no Spark while its files, settings and environment stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tautochrone.app.locate import Options, locate
from tautochrone.app.stores import existing_store, is_service, require_release, store_exists
from tautochrone.app.unchanged import has_same_definitions, program_of
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.project_plan import DatasetPlan, DefinitionChange, ProjectPlan, Treatment
from tautochrone.model.reason import Reason, ReasonCode

if TYPE_CHECKING:
    from tautochrone.project.settings import Settings

__all__ = ["plan"]


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
        MetaError: the store cannot be read; `META_STORE_OTHER_RELEASE`.
        LakeError: a table cannot be read.
    """
    spec, settings = located = locate(options)
    if not full and not everything:
        unchanged = _unchanged(settings, program_of(spec, settings))
        if unchanged is not None:
            return unchanged
    require_release(settings)
    from tautochrone.app.launch import launch

    launch(settings, short_lived=True)
    from tautochrone.app.open import Project, log_event
    from tautochrone.app.plan_graph import plan_of_graph

    with Project(options, log_event, short_lived=True, located=located) as project:
        definitions, graph = project.analysed(None if everything else full)
        return plan_of_graph(project, definitions, graph, full, everything=everything)


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
