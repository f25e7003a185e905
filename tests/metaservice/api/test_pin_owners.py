"""Pins belong to who made them, are short for readers, and are few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.metaservice.conftest import Shop

from tautochrone.meta import Store
from tautochrone.meta.sql import reads
from tautochrone.metaservice.http.access import LONGEST_LEASE_MS, Access, Role

READ, OTHER, OPERATE = "a-token-that-may-read", "another-one-that-reads", "a-token-that-may-operate"
TOKENS = Access.by_tokens({READ: Role.READ, OTHER: Role.READ, OPERATE: Role.OPERATE})
HOUR_MS = 3_600_000
CENTURIES_MS = 9_023_372_036_854


@pytest.fixture
def call(with_access: Callable[[Access], TestClient]) -> Callable[..., Any]:
    client = with_access(TOKENS)

    def made(token: str, method: str, **arguments: Any) -> Any:
        answer = client.post(f"/rpc/{method}", headers={"Authorization": f"Bearer {token}"}, json=arguments)
        content = answer.json()
        return content["answer"] if answer.status_code == 200 else _class_of(content)

    return made


def _class_of(content: Any) -> Any:
    return content.get("error_class") or content["error"]["error_class"]


@pytest.fixture
def ask(with_access: Callable[[Access], TestClient]) -> Callable[..., Any]:
    client = with_access(TOKENS)

    def made(token: str, method: str, path: str, **more: Any) -> Any:
        answer = client.request(method, path, headers={"Authorization": f"Bearer {token}"}, **more)
        return answer.status_code, answer.json() if answer.content else None

    return made


@pytest.mark.parametrize("lease_ms", [CENTURIES_MS, LONGEST_LEASE_MS[Role.READ] + 1, -1])
def test_lease_of_a_reader_is_bounded(call: Callable[..., Any], store: Store, lease_ms: int) -> None:
    assert call(READ, "reads.resolve", lease_ms=lease_ms) == "LEASE_INVALID"
    pin = call(READ, "reads.resolve", lease_ms=60_000)["pin"]
    assert call(READ, "pins.renew", pin=pin, lease_ms=lease_ms) == "LEASE_INVALID"
    (pinned,) = store.pins.live()
    assert pinned.expires_at_ms < store.now_ms() + HOUR_MS + 1_000


def test_lease_over_http_has_the_same_bound(ask: Callable[..., Any], store: Store) -> None:
    request = {"owner": "me", "lease_ms": LONGEST_LEASE_MS[Role.READ] + 1}
    status, problem = ask(READ, "POST", "/api/v1/pins", json=request)
    assert (status, problem["error_class"]) == (422, "LEASE_INVALID")
    assert ask(OPERATE, "POST", "/api/v1/pins", json=request)[0] == 201
    assert ask(READ, "POST", "/api/v1/pins", json=request | {"lease_ms": HOUR_MS})[0] == 201
    assert len(store.pins.live()) == 2


@pytest.mark.parametrize("owner", [OPERATE, OTHER])
def test_reader_cannot_release_or_renew_pins_of_others(
    call: Callable[..., Any], ask: Callable[..., Any], store: Store, owner: str
) -> None:
    pin = call(owner, "reads.resolve", lease_ms=60_000, owner="them")["pin"]
    before = store.pins.live()
    assert call(READ, "pins.release", pin=pin) == "PIN_NOT_YOURS"
    assert call(READ, "pins.renew", pin=pin, lease_ms=120_000) == "PIN_NOT_YOURS"
    assert call(READ, "pins.renew", pin=pin, lease_ms=1, if_within_ms=0) == "PIN_NOT_YOURS"
    for method, path in (("DELETE", f"/api/v1/pins/{pin}"), ("POST", f"/api/v1/pins/{pin}/renew")):
        status, problem = ask(READ, method, path, json={})
        assert (status, problem["error_class"]) == (403, "PIN_NOT_YOURS")
    assert store.pins.live() == before
    assert call(owner, "pins.renew", pin=pin, lease_ms=120_000) is None
    assert call(owner, "pins.release", pin=pin) is None
    assert store.pins.live() == ()


def test_pins_of_local_processes_are_not_readers_pins(call: Callable[..., Any], store: Store) -> None:
    pin = store.reads.resolve(owner="a run").pin
    assert call(READ, "pins.release", pin=pin) == "PIN_NOT_YOURS"
    assert call(OPERATE, "pins.release", pin=pin) is None
    assert call(READ, "pins.release", pin=pin) is None, "what is gone is fine"


def test_callers_cannot_name_another_owner(call: Callable[..., Any], store: Store) -> None:
    pin = store.reads.resolve(owner="a run").pin
    for owner in (None, "operate", "read"):
        assert call(READ, "pins.release", pin=pin, by=owner) == "META_CALL_UNREADABLE"
        assert call(READ, "reads.resolve", by=owner) == "META_CALL_UNREADABLE"
    assert len(store.pins.live()) == 1


def test_pins_per_reader_are_limited(
    call: Callable[..., Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reads.MAX_PINS_PER_PRINCIPAL == 1_000
    monkeypatch.setattr(reads, "MAX_PINS_PER_PRINCIPAL", 20)
    for _ in range(20):
        pin = call(READ, "reads.resolve", lease_ms=60_000)["pin"]
    assert call(READ, "reads.resolve", lease_ms=60_000) == "TOO_MANY_PINS"
    assert call(READ, "reads.resolve", lease_ms=0)["pin"] == "", "looking up holds nothing"
    assert call(OTHER, "reads.resolve", lease_ms=60_000)["pin"]
    call(READ, "pins.release", pin=pin)
    assert call(READ, "reads.resolve", lease_ms=60_000)["pin"]
    assert len(store.pins.live()) == 21


def test_answers_are_repeated_only_to_their_caller(
    with_access: Callable[[Access], TestClient], shop: Shop
) -> None:
    client = with_access(TOKENS)

    def made(token: str, method: str) -> Any:
        headers = {"Authorization": f"Bearer {token}", "Tautochrone-Call": "the-same"}
        return client.post(f"/rpc/{method}", headers=headers, json={}).json()

    first = made(OPERATE, "reads.resolve")["answer"]["pin"]
    assert made(OPERATE, "reads.resolve")["answer"]["pin"] == first
    assert made(READ, "reads.resolve")["answer"]["pin"] != first
    assert isinstance(made(OPERATE, "pins.live")["answer"], list)
    assert len(shop.store.pins.live()) == 2
