"""The quarantine tables: no file declares them, they follow from the settings of flows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.names import TableName
from tautochrone.model.source import QUARANTINE_SCHEMA, BadRecords, quarantine_of
from tautochrone.project.definitions import Definitions
from tautochrone.project.settings import FlowBadRecords

__all__ = ["with_quarantines"]


def with_quarantines(definitions: Definitions, settings: Mapping[str, FlowBadRecords]) -> Definitions:
    """The definitions, with a quarantine table for each streaming table with a flow that quarantines.

    Raises:
        DefinitionError: `QUARANTINE_NAME_TAKEN`, a dataset of the project has its name.
    """
    quarantining_flows = {
        flow for flow, flow_settings in settings.items() if flow_settings.policy is BadRecords.QUARANTINE
    }
    quarantine_tables: dict[TableName, Dataset] = {}
    for flow in definitions.flows:
        target = definitions.datasets.get(flow.target)
        if flow.name in quarantining_flows and target and target.kind is DatasetKind.STREAMING_TABLE:
            quarantine_tables[quarantine_of(target.name)] = _quarantine_table(target)
    for name, dataset in quarantine_tables.items():
        if name in definitions.datasets:
            raise DefinitionError(
                "QUARANTINE_NAME_TAKEN",
                f"The bad records of {dataset.bad_records_of} go into {name}, and a dataset is called so",
                location=str(definitions.datasets[name].location),
                hint="rename that dataset",
                sqlstate="42P07",
            )
    return (
        replace(definitions, datasets={**definitions.datasets, **quarantine_tables})
        if quarantine_tables
        else definitions
    )


def _quarantine_table(target: Dataset) -> Dataset:
    return Dataset(
        name=quarantine_of(target.name),
        kind=DatasetKind.STREAMING_TABLE,
        location=target.location,
        comment=f"Records on which the flows into {target.name.table} failed",
        schema_ddl=QUARANTINE_SCHEMA,
        bad_records_of=target.name,
    )
