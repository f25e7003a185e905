"""Outsiders' tables at a cut: a tag keeps the version that a checkpoint names from their expiry."""

from __future__ import annotations

from tautochrone.errors import TautochroneError
from tautochrone.model.lake import NO_VERSION
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.loop.cut import Cut

__all__ = ["tag_cut"]

_PREFIX = "tautochrone-cut-"


def tag_cut(job: Job, cut: Cut) -> None:
    """Tag each outsider's version of the cut, and drop tags beyond the number that is kept.

    Not being allowed to tag is no failure: the version may expire before its readers are done, and
    they are told so then.
    """
    for name in sorted(job.external_tables() & cut.roots.keys()):
        version = cut.roots[name]
        if version == NO_VERSION:
            continue
        try:
            table = job.lake.load(name)
            table.tag(version, f"{_PREFIX}{version}")
            kept = [tag for tag in table.tags() if tag.startswith(_PREFIX)]
            for tag in kept[: -job.settings.external_table_tags_kept]:
                table.untag(tag)
        except TautochroneError as error:
            job.emit("outsider_not_tagged", dataset=str(name), reason=str(error))
