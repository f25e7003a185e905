"""The state of a dataset in one word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tautochrone.meta import DatasetStatus
from tautochrone.metaservice.pages.graph import _outside_texts
from tautochrone.metaservice.pages.rendering import _described, _name_markup
from tautochrone.metaservice.pages.status import DatasetState, Topology, _state
from tautochrone.model.names import CheckpointNumber, TableName, file_table
from tautochrone.model.reason import Reason, ReasonCode, describe

NAME = TableName("lake", ("db",), "orders")
STATUS = DatasetStatus(
    dataset=NAME,
    job="job",
    kind="streaming table",
    version=None,
    checkpoint=None,
    mode=None,
    reason=None,
    error=None,
    lag_ms=None,
    refreshed_at_ms=None,
)


@pytest.mark.parametrize(
    ("failure", "state"),
    [
        (None, DatasetState.NEVER),
        (Reason.of(ReasonCode.WAITS_FOR_BULK, relation="public.orders"), DatasetState.BUILDING),
        (
            Reason.of(ReasonCode.WAITS_FOR_INPUT, input=str(NAME), cause="it failed"),
            DatasetState.WAITING,
        ),
        (Reason.of(ReasonCode.UNKNOWN, text="division by zero"), DatasetState.FAILING),
    ],
)
def test_state_follows_from_the_code_of_the_failure(failure: Reason | None, state: DatasetState) -> None:
    error = None if failure is None else describe(failure)
    assert _state(replace(STATUS, failure=failure, error=error), CheckpointNumber(1)) is state


def test_tables_of_files_are_shown_as_their_files() -> None:
    table = file_table("lake", "/data/orders/*", "csv of /data/orders/*", "{}")
    topology = Topology(lines={}, inputs={}, outside=(table, NAME), jobs=())
    assert (topology.file_tables, topology.external_tables) == ([table], [NAME])
    assert _described(table) == "the files in orders"
    assert _described(NAME) == str(NAME)
    assert "the files in orders" in _name_markup(table)
    assert "files__" not in _name_markup(table)
    assert _outside_texts(table) == ("orders", "files")
