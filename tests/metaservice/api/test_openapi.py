"""Whatever is sent: no defect, and every answer is what the OpenAPI document says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.metaservice.conftest import Shop

from tautochrone.meta import MetaStore
from tautochrone.metaservice import write_tokens
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role

pytestmark = pytest.mark.thorough

_FOLDER = tempfile.TemporaryDirectory()
_STORE = MetaStore.open(f"sqlite:///{Path(_FOLDER.name)}/meta.db")
Shop(_STORE).checkpoint(1)
_APP = create_app(access=Access(anonymous=Role.OPERATE), store=_STORE)
# The stream of events has no end: `test_events` reads it.
_SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", _APP).exclude(path="/api/v1/events")


# The service has no project to query; the last one is no JSON.
REFUSED = ("NAME_INVALID", "TOKEN_NEEDS_CHECKPOINT", "QUERIES_UNAVAILABLE", "HTTP_400")


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_tokens, "_POLL_S", 3_600)


@_SCHEMA.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation_keeps_to_its_document(case: Case) -> None:
    # Names have rules that a schema cannot say (whole characters, parts between dots, a length in all).
    answer = case.call_and_validate(excluded_checks=[positive_data_acceptance])
    if answer.status_code == 400:
        assert answer.json()["error_class"] in REFUSED
