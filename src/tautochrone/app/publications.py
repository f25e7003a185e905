"""As what the checkpoints of a project are published in other formats."""

from __future__ import annotations

from tautochrone.meta import Store
from tautochrone.model.sink import PUBLICATIONS, PublishedAs
from tautochrone.project.settings import Settings
from tautochrone.sinks.common.publication import listed_versions

__all__ = ["published_as"]


def published_as(settings: Settings, store: Store, number: int) -> PublishedAs:
    """By format the versions of the published tables at a checkpoint; without formats that do not show it."""
    by_format = {
        name: listed_versions(settings.sinks[sink].options["folder"], number, store.incarnation)
        for name, sink in PUBLICATIONS.items()
    }
    return {name: versions for name, versions in by_format.items() if versions}
