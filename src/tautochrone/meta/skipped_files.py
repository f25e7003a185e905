"""Files that the sources of streaming tables skipped, as their jobs tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select, update

from tautochrone.errors import MetaError
from tautochrone.meta import tables as t
from tautochrone.meta.repository import Repository
from tautochrone.model.names import Fence, TableName
from tautochrone.model.sources import MOST_PATHS, SkippedFiles, SkipReason

__all__ = ["Skipped", "skipped_of"]

_D = t.datasets.c


class Skipped(Repository):
    """What flows did not take in of their sources' files."""

    def note_skipped_files(
        self, job: str, fence: Fence, dataset: TableName, flow: str, skipped: Iterable[SkippedFiles]
    ) -> None:
        """Replace what is known of one flow into `dataset`. Saying it twice is saying it once.

        Files that went away before they were read stay known: nobody will meet them again.

        Raises:
            FencedError: a newer owner exists.
            MetaError: `DATASET_NOT_FOUND`, it is not a dataset of the job.
        """
        with self._fenced(job, fence) as connection:
            mine = (_D.name == str(dataset)) & (_D.job == job)
            row = connection.execute(select(_D.skipped_files).where(mine)).first()
            if row is None:
                raise MetaError("DATASET_NOT_FOUND", f"{dataset} is not a dataset of job {job}")
            known: dict[str, Any] = dict(row.skipped_files or {})
            said = {str(one.reason): {"count": one.count, "paths": [*one.paths]} for one in skipped}
            gone = known.get(flow, {}).get(SkipReason.MISSING.value)
            if gone is not None:
                said[SkipReason.MISSING.value] = _both(gone, said.get(SkipReason.MISSING.value))
            known[flow] = said
            connection.execute(update(t.datasets).where(mine).values(skipped_files=known))

    def skipped_files(self, dataset: TableName) -> tuple[SkippedFiles, ...]:
        """What is known of all flows into `dataset`; empty for a dataset that nobody has registered."""
        with self._read() as connection:
            query = select(_D.skipped_files).where(_D.name == str(dataset))
            return skipped_of(connection.execute(query).scalar())


def skipped_of(found: Mapping[str, Any] | None) -> tuple[SkippedFiles, ...]:
    """What is stored of a dataset."""
    return tuple(
        SkippedFiles(flow, SkipReason(reason), said["count"], tuple(said["paths"]))
        for flow, reasons in sorted((found or {}).items())
        for reason, said in sorted(reasons.items())
    )


def _both(known: dict[str, Any], told: dict[str, Any] | None) -> dict[str, Any]:
    if told is None:
        return known
    new = [path for path in told["paths"] if path not in known["paths"]]
    unnamed = max(0, told["count"] - len(told["paths"])) if new else 0
    return {"count": known["count"] + len(new) + unnamed, "paths": [*new, *known["paths"]][:MOST_PATHS]}
