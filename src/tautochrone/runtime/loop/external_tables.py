"""Tags on external tables: they keep the versions that checkpoints name from being expired."""

from __future__ import annotations

from tautochrone.errors import TautochroneError
from tautochrone.model.lake import NO_VERSION
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.loop.cut import Cut

__all__ = ["tag_cut"]

_PREFIX = "tautochrone-cut-"


def tag_cut(job: Job, cut: Cut) -> None:
    """Tag each external table's version of the cut, and drop the oldest tags above the configured number.

    A table that cannot be tagged is reported and does not fail the run: its readers fail later, if the
    version expires before they are done.
    """
    for name in sorted(job.external_tables() & cut.roots.keys()):
        version = cut.roots[name]
        if version == NO_VERSION:
            continue
        try:
            table = job.lake.load(name)
            table.tag(version, f"{_PREFIX}{version}")
            tags = [tag for tag in table.tags() if tag.startswith(_PREFIX)]
            for tag in tags[: -job.settings.external_table_tags_kept]:
                table.untag(tag)
        except TautochroneError as error:
            reason = Reason.of(ReasonCode.TAG_FAILED, error_class=error.error_class, text=str(error))
            job.emit("outsider_not_tagged", dataset=str(name), reason=reason)
