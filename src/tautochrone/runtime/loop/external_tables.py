"""Tags on external tables: they keep the versions that checkpoints name from being expired."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import TautochroneError
from tautochrone.model import events
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.lake import NO_VERSION
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["tag_cut"]

_PREFIX = "tautochrone-cut-"


def tag_cut(lake: LakeCatalog, versions: Mapping[TableName, Version], kept: int, emit: events.Emit) -> None:
    """Tag each external table's version of the cut, and drop the oldest tags when it has more than `kept`.

    A table that cannot be tagged is reported and does not fail the run: its readers fail later, if the
    version expires before they are done.
    """
    for name, version in sorted(versions.items()):
        if version == NO_VERSION:
            continue
        try:
            table = lake.load(name)
            table.tag(version, f"{_PREFIX}{version}")
            tags = [tag for tag in table.tags() if tag.startswith(_PREFIX)]
            for tag in tags[:-kept]:
                table.untag(tag)
        except TautochroneError as error:
            reason = Reason.of(ReasonCode.TAG_FAILED, error_class=error.error_class, text=str(error))
            emit(events.OutsiderNotTagged(dataset=str(name), reason=reason))
