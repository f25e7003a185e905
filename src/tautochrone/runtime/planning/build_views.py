"""What people see of the views of a build, within bounds: the store keeps it, and pages load it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.model.project_build import ProjectBuild, RowComparison, RowSample, ViewOfBuild
from tautochrone.model.project_plan import DatasetPlan
from tautochrone.redaction import redacted
from tautochrone.runtime.job.job import Job

__all__ = ["SAMPLED_ROWS", "record_comparisons", "row_sample", "views_of_build"]

SAMPLED_ROWS = 5
"""So many rows of each sign are kept."""
_LINES, _LINE = 80, 200
_ALL_LINES = 200_000
"""Characters of the differences of the definitions of one build together."""
_COLUMNS, _VALUE = 20, 80
_ALL_SAMPLES = 200_000
"""Characters of the samples of one build together."""
_CUT = "…"


def views_of_build(planned: Sequence[DatasetPlan]) -> tuple[ViewOfBuild, ...]:
    """The views of a plan that a build computes. The differences that come last are cut where all are too
    large."""
    left, views = _ALL_LINES, []
    for part in planned:
        difference = None if part.difference is None else _first_lines(part.difference)
        if difference:
            left -= sum(map(len, difference))
            difference = difference if left >= 0 else (_CUT,)
        views.append(
            ViewOfBuild(
                table=part.dataset,
                change=part.change,
                reason=part.reason,
                difference=difference,
                cause=part.same_text_cause if part.difference == () else None,
                columns=part.columns,
            )
        )
    return tuple(views)


def _first_lines(lines: Sequence[str]) -> tuple[str, ...]:
    shown = tuple(_short(redacted(line), _LINE) for line in lines[:_LINES])
    return shown if len(lines) <= _LINES else (*shown, _CUT)


def row_sample(sign: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> RowSample:
    """The first of some rows, and of each row the first columns.

    Example:
        >>> row_sample("+", ["id", "note"], [[1, None]])
        RowSample(sign='+', columns=('id', 'note'), rows=(('1', None),))
    """
    first = list(rows)[:SAMPLED_ROWS]
    values = (
        tuple(None if value is None else _short(redacted(str(value)), _VALUE) for value in row[:_COLUMNS])
        for row in first
    )
    return RowSample(sign=sign, columns=tuple(columns[:_COLUMNS]), rows=tuple(values))


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + _CUT


def record_comparisons(
    job: Job, build: ProjectBuild, comparisons: Mapping[TableName, RowComparison]
) -> ProjectBuild:
    """Keep how the rows of a build differ. The samples that come last are left out where all are too large.

    Raises:
        MetaError: `BUILD_NOT_FOUND`, somebody dropped the build meanwhile.
    """
    left, views = _ALL_SAMPLES, []
    for view in build.views:
        comparison = comparisons.get(view.table)
        if comparison is not None:
            left -= sum(len(value or "") for each in comparison.samples for row in each.rows for value in row)
            comparison = comparison if left >= 0 else replace(comparison, samples=())
        views.append(replace(view, comparison=comparison))
    compared = replace(build, views=tuple(views))
    job.effects.perform(Step.META_BUILT, build.id, lambda: job.store.builds.finish(compared))
    return compared
