"""Drops a build: the branches of its tables, the tables that only it made, then its record."""

from __future__ import annotations

from tautochrone.meta import Store
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.effects import Effects, Step
from tautochrone.model.names import TableName
from tautochrone.model.project_build import ProjectBuild

__all__ = ["drop_build"]


def drop_build(store: Store, lake: LakeCatalog, effects: Effects, build: ProjectBuild) -> None:
    """Delete a build. Repeatable: the record goes last. A run of the job may go on meanwhile."""
    # A build that died has not recorded which tables it wrote: any dataset of its job may have its branch.
    for name in sorted(name for name in build.datasets if lake.exists(name)):
        lake.buildable(name).drop_build(build.branch)
        if name in build.created and _is_unused(store, lake, build, name):
            stored = lake.stored_table(name)
            lake.drop(stored)
            lake.delete_files(stored)
    effects.perform(Step.META_DROP_BUILD, build.id, lambda: store.builds.remove(build.id))


def _is_unused(store: Store, lake: LakeCatalog, build: ProjectBuild, name: TableName) -> bool:
    """Whether nobody else has the table: no run registered it or gave it rows, no other build needs it."""
    others = [other for other in store.builds.of_job(build.job) if other.id != build.id]
    if any(name in other.created for other in others) or store.datasets.job_of(name) is not None:
        return False
    metadata = lake.load(name).fork().commit_metadata
    return metadata is not None and metadata.job == build.job and metadata.definition is None
