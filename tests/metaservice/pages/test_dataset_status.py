"""The state of a dataset in one word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tautochrone.meta import DatasetStatus
from tautochrone.metaservice.pages.dataset_status import DatasetState, _state
from tautochrone.model.names import CheckpointNumber, TableName
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
