"""Whatever is sent by a reader: no defect, and nothing changes but its own pins."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from sqlalchemy import select
from starlette.testclient import TestClient

from tautochrone.meta import MetaStore
from tautochrone.meta.database.tables import metadata
from tautochrone.meta.wire import remote_calls
from tautochrone.metaservice import write_tokens
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import LONGEST_LEASE_MS, Access, Role

from .conftest import Shop

pytestmark = pytest.mark.thorough

READ, OPERATE = "a-token-that-may-read", "a-token-that-may-operate"
BEARER = {"Authorization": f"Bearer {READ}"}
_FOLDER = tempfile.TemporaryDirectory()
READING_CALLS = sorted(name for name, call in remote_calls().items() if call.for_readers)
_STORE = MetaStore.open(f"sqlite:///{Path(_FOLDER.name)}/meta.db")
Shop(_STORE).checkpoint(1)
_THEIRS = _STORE.reads.resolve(owner="somebody else", lease_ms=LONGEST_LEASE_MS[Role.OPERATE]).pin
_TOKENS = Access.by_tokens({READ: Role.READ, OPERATE: Role.OPERATE})
_APP = create_app(access=_TOKENS, store=_STORE)
_CLIENT = TestClient(_APP, raise_server_exceptions=False, headers=BEARER)
_SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", _APP, headers=BEARER).exclude(path="/api/v1/events")
_FEW = {"deadline": None, "suppress_health_check": list(HealthCheck)}

INTEGERS = st.one_of(
    st.integers(-3, 5), st.sampled_from([2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63) - 1, 10**400])
)
TEXTS = st.one_of(
    st.sampled_from(
        ["shop", "lake.db.totals", "lake.db.orders", "", "a.b", "a\0.b.c", "\ud800", "x" * 20_000]
    ),
    st.sampled_from([_THEIRS, "strong", "weak", "published", "-1", "１２"]),
    st.text(max_size=20),
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def likely(hint: Any) -> st.SearchStrategy[Any]:
    """What an argument may be, in JSON, by its type hint; anything where the hint says little."""
    kinds, origin = get_args(hint), get_origin(hint)
    base = hint
    while hasattr(base, "__supertype__"):
        base = base.__supertype__
    if base is bool:
        return st.booleans()
    if base is int:
        return INTEGERS
    if origin in (Iterable, Collection, Sequence, tuple, frozenset):
        return st.lists(likely(kinds[0]), max_size=3)
    if origin in (dict, Mapping):
        return st.dictionaries(TEXTS, likely(kinds[1]), max_size=3)
    if type(None) in kinds:
        return st.one_of(st.none(), *(likely(kind) for kind in kinds if kind is not type(None)))
    return TEXTS if isinstance(base, type) else ANYTHING


def dump() -> dict[str, list[tuple[str, ...]]]:
    """All tables, without the pins of this test's reader."""
    with _STORE._database.read() as connection:
        rows_by_table: dict[str, list[tuple[str, ...]]] = {}
        for table in metadata.sorted_tables:
            query = select(table)
            if table.name == "pins":
                query = query.where(table.c.holder.is_(None) | table.c.holder.not_like("read:%"))
            rows_by_table[table.name] = sorted(tuple(map(repr, row)) for row in connection.execute(query))
    return rows_by_table


_BEFORE = dump()


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_tokens, "_POLL_S", 3_600)


def reconcile_store() -> None:
    """Nothing changed but pins of the reader, which are short."""
    assert dump() == _BEFORE
    latest = _STORE.now_ms() + LONGEST_LEASE_MS[Role.READ]
    for pin in _STORE.pins.live():
        if pin.id != _THEIRS:
            assert pin.expires_at_ms <= latest
            _STORE.pins.release(pin.id)


def call(method: str, arguments: Any) -> None:
    answer = _CLIENT.post(
        f"/rpc/{method}",
        content=json.dumps(arguments).encode("utf-8", "surrogatepass"),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code in (200, 403, 409, 422), answer.text
    if answer.status_code == 409:
        assert not answer.json()["error"]["error_class"].startswith("META_STORE_"), answer.text


def fuzzed(method: str, data: st.DataObject) -> None:
    hints = remote_calls()[method].hints
    arguments = st.fixed_dictionaries({}, optional={name: likely(hint) for name, hint in hints.items()})
    call(method, data.draw(st.one_of(arguments, st.dictionaries(st.sampled_from([*hints, "x"]), ANYTHING))))
    reconcile_store()


def test_a_reader_makes_no_call_that_writes() -> None:
    for method in remote_calls().keys() - set(READING_CALLS):
        answer = _CLIENT.post(f"/rpc/{method}", json={})
        assert (answer.status_code, answer.json()["error_class"]) == (403, "ROLE_MISSING"), method
    reconcile_store()


@pytest.mark.parametrize("method", READING_CALLS)
@given(data=st.data())
@settings(max_examples=3, **_FEW)
def test_a_call_by_a_reader_changes_nothing(method: str, data: st.DataObject) -> None:
    fuzzed(method, data)


@pytest.mark.slow
@pytest.mark.parametrize("method", READING_CALLS)
@given(data=st.data())
@settings(max_examples=300, **_FEW)
def test_many_calls_by_a_reader_change_nothing(method: str, data: st.DataObject) -> None:
    fuzzed(method, data)


def keeps_to_the_document(case: Case) -> None:
    # Names have rules that a schema cannot say.
    excluded = [positive_data_acceptance]
    header = case.meta.components.get(ParameterLocation.HEADER) if case.meta is not None else None
    if header is not None and header.mode.is_negative:
        # What is wrong is that it has no token, and it gets one here.
        excluded.append(negative_data_rejection)
    case.call_and_validate(headers=BEARER, excluded_checks=excluded)
    reconcile_store()


@_SCHEMA.parametrize()
@settings(max_examples=3, **_FEW)
def test_every_operation_by_a_reader_changes_nothing(case: Case) -> None:
    keeps_to_the_document(case)


@pytest.mark.slow
@_SCHEMA.parametrize()
@settings(max_examples=400, **_FEW)
def test_every_operation_by_a_reader_changes_nothing_long(case: Case) -> None:
    keeps_to_the_document(case)


def test_every_reading_call_is_one_of_the_store() -> None:
    assert remote_calls().keys() >= set(READING_CALLS)
    assert len(READING_CALLS) > 60
