"""What a dataset's expectations must fulfil."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import keyed_apply_of
from tautochrone.model.definitions import Dataset, DatasetKind, Expectation, ViolationAction
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.definitions import DefinitionWarning, is_view

__all__ = ["uncounted", "unique"]


def unique(expectations: tuple[Expectation, ...], dataset: Dataset) -> tuple[Expectation, ...]:
    """The expectations of a dataset.

    Raises:
        DefinitionError: `DUPLICATE_EXPECTATION`, two have one name.
    """
    names = [expectation.name for expectation in expectations]
    for name in names:
        if names.count(name) > 1:
            raise DefinitionError(
                "DUPLICATE_EXPECTATION",
                f"Dataset {dataset.name} has several expectations called {name!r}",
                sqlstate="42710",
                location=str(dataset.location),
                hint="Their rows are counted by name: give each its own.",
            )
    return expectations


def uncounted(datasets: Iterable[Dataset]) -> Iterator[DefinitionWarning]:
    """Warnings about views, which hold no rows that could be counted.

    Raises:
        DefinitionError: `EXPECTATION_OF_VIEW`, a view has an expectation that should fail a refresh;
            `EXPECTATION_NOT_SUPPORTED`, a table that is merged by key has one.
    """
    for dataset in datasets:
        if not dataset.expectations:
            continue
        if keyed_apply_of(dataset.properties, str(dataset.location)) is not None:
            raise DefinitionError(
                "EXPECTATION_NOT_SUPPORTED",
                f"The rows of {dataset.name} are merged by key, and it has expectations",
                sqlstate="0A000",
                location=str(dataset.location),
                hint="Give them to the table that its flow reads, or to a view over it.",
            )
        if not is_view(dataset):
            continue
        failing = [e.name for e in dataset.expectations if e.action is ViolationAction.FAIL]
        if failing:
            raise DefinitionError(
                "EXPECTATION_OF_VIEW",
                f"The {dataset.kind} {dataset.name} has the expectation {failing[0]!r}, which "
                "fails a refresh, and a view has none",
                sqlstate="0A000",
                location=str(dataset.location),
                hint="Give the expectation to the table that reads the view, or make the view a "
                f"{DatasetKind.MATERIALIZED_VIEW}.",
            )
        names = ", ".join(e.name for e in dataset.expectations)
        reason = Reason.of(ReasonCode.EXPECTATION_NOT_COUNTED, dataset=str(dataset.name), expectations=names)
        yield DefinitionWarning(dataset.location, reason)
