"""As what the checkpoints of a project are published in other formats."""

from __future__ import annotations

from tautochrone.meta import Store
from tautochrone.model.sink import PUBLICATIONS, PublishedAs
from tautochrone.project.settings import Settings
from tautochrone.sinks.common.publication import listed_versions

__all__ = ["published_as"]


def published_as(settings: Settings, store: Store, number: int) -> PublishedAs:
    """By format the versions of the published tables at a checkpoint; without formats that do not show it.

    Raises:
        SinkError: the storage of a publication does not answer.
    """
    # All have settings, and each of the others would cost a question to its storage.
    delivered = {sink.name for sink in store.deliveries.sinks()}
    by_format = {
        name: listed_versions(sink, settings.sinks[sink].options, number, store.incarnation)
        for name, sink in PUBLICATIONS.items()
        if sink in delivered
    }
    return {name: versions for name, versions in by_format.items() if versions}
