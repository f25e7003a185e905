"""The tables beside that take bad records: no file declares them, the settings of flows call for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.names import TableName
from tautochrone.model.quarantine import QUARANTINE_SCHEMA, BadRecords, quarantine_of
from tautochrone.project.definitions import Definitions
from tautochrone.project.settings import FlowBadRecords

__all__ = ["with_quarantines"]


def with_quarantines(definitions: Definitions, wanted: Mapping[str, FlowBadRecords]) -> Definitions:
    """The definitions with a table beside each streaming table one of whose flows quarantines.

    Raises:
        DefinitionError: `QUARANTINE_NAME_TAKEN`, a dataset of the project is called so.
    """
    quarantining = {flow for flow, said in wanted.items() if said.policy is BadRecords.QUARANTINE}
    made: dict[TableName, Dataset] = {}
    for flow in definitions.flows:
        target = definitions.datasets.get(flow.target)
        if flow.name in quarantining and target and target.kind is DatasetKind.STREAMING_TABLE:
            made[quarantine_of(target.name)] = _quarantine_table(target)
    for name, dataset in made.items():
        if name in definitions.datasets:
            raise DefinitionError(
                "QUARANTINE_NAME_TAKEN",
                f"The bad records of {dataset.bad_records_of} go into {name}, and a dataset is called so",
                location=str(definitions.datasets[name].location),
                hint="rename that dataset",
                sqlstate="42P07",
            )
    return replace(definitions, datasets={**definitions.datasets, **made}) if made else definitions


def _quarantine_table(target: Dataset) -> Dataset:
    return Dataset(
        name=quarantine_of(target.name),
        kind=DatasetKind.STREAMING_TABLE,
        location=target.location,
        comment=f"Records on which the flows into {target.name.table} failed",
        schema_ddl=QUARANTINE_SCHEMA,
        bad_records_of=target.name,
    )
