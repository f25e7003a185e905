"""FLIP-276's interface: registering, starting, versions, ending."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from tests.metaservice.conftest import FULL, Shop, name

from tautochrone.errors import FencedError
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.names import Version


def register(client: TestClient, job: str, role: str, table: str) -> int:
    return client.post(f"/register/{role}/{job}/lake/db/{quote(table, safe='')}").status_code


def jobs(client: TestClient) -> dict[str, dict[str, object]]:
    return {job["name"]: job for job in client.get("/api/v1/jobs").json()}


def test_versions_of_one_table_and_of_a_set(client: TestClient, shop: Shop) -> None:
    second = shop.checkpoint(2, fail=True)
    # `top` failed at the second checkpoint and holds its relatives back, so that separate reads agree.
    orders = client.get("/version/strong/lake/db/orders").json()
    assert orders["versions"] == [{"table": "lake.db.orders", "version": "1"}]
    assert (orders["checkpoint"], orders["behind"][0]["table"]) == (second - 1, "lake.db.top")
    assert "division by zero" in orders["behind"][0]["reason"]
    assert client.get("/version/strong/lake/db/orders?only_named=true").json() == {
        "consistency": "strong",
        "checkpoint": second,
        "versions": [{"table": "lake.db.orders", "version": "2"}],
        "behind": [],
    }
    tables = {"tables": ["lake.db.orders", "lake.db.top"]}
    together = client.post("/version/strong", json=tables | {"only_named": True}).json()
    assert together["checkpoint"] == second - 1
    assert [v["version"] for v in together["versions"]] == ["1", "10"]
    weak = client.post("/version/weak", json=tables).json()
    assert (weak["checkpoint"], [v["version"] for v in weak["versions"]]) == (None, ["2", "10"])
    everything = client.post("/version/strong", json={}).json()
    assert len(everything["versions"]) == 3
    assert shop.store.pins.live() == (), "a look-up must not write"


def test_versions_after_a_write(client: TestClient, shop: Shop) -> None:
    token = client.post("/api/v1/tokens").json()["token"]
    late = client.get(f"/version/strong/lake/db/top?after={token}")
    assert (late.status_code, late.json()["error_class"]) == (409, "READ_NOT_YET")
    assert (late.json()["retryable"], late.headers["retry-after"]) == (True, "1")

    def look() -> None:
        observations = {name("orders"): shop.store.now_ms() + 1}
        shop.store.jobs.heartbeat("shop", shop.fence, observations=observations, checkpoint=1)

    looking = threading.Timer(0.5, look)
    looking.start()
    # Many wait at once, and the service still answers others.
    with ThreadPoolExecutor(50) as pool:
        body = {"tables": ["lake.db.top"], "after": token, "wait_ms": 30_000}
        waiting = [pool.submit(client.post, "/version/strong", json=body) for _ in range(50)]
        assert client.get("/api/v1/jobs").status_code == 200
        assert {answer.result().json()["checkpoint"] for answer in waiting} == {1}
    looking.join()
    pin = client.post("/api/v1/pins", json={"owner": "me", "after": token})
    assert (pin.status_code, pin.json()["checkpoint"]) == (201, 1)
    assert client.get("/version/strong/lake/db/top?after=yesterday").status_code == 422
    assert client.get(f"/version/weak/lake/db/top?after={token}").status_code == 400


def test_an_unknown_table_is_404_with_our_class(client: TestClient) -> None:
    answer = client.get("/version/strong/lake/db/nope")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["error_class"] == "TABLE_NOT_FOUND"


def test_a_registration_is_seen_when_the_job_starts(client: TestClient, shop: Shop) -> None:
    assert register(client, "etl", "source", "totals") == 200
    assert register(client, "etl", "sink", "report") == 200
    assert jobs(client)["etl"]["state"] == "registered"
    assert jobs(client)["etl"]["announced"] == ["lake.db.report", "lake.db.totals"]
    assert client.get("/api/v1/lineage/lake.db.totals").json()["outputs"] == ["lake.db.top"]
    assert client.get("/version/weak/lake/db/report").status_code == 404

    started = client.post("/start/etl").json()
    # It goes on from the same instant of its sources as everybody else.
    assert started["checkpoint"] == 1
    assert started["versions"] == [{"table": "lake.db.totals", "version": "10"}]
    assert jobs(client)["etl"]["state"] == "running"
    assert jobs(client)["etl"]["announced"] == []
    lineage = client.get("/api/v1/lineage/lake.db.report").json()
    assert lineage["upstream"] == ["lake.db.orders", "lake.db.totals"]

    assert client.post("/unregister/etl").status_code == 200
    assert client.get("/api/v1/lineage/lake.db.totals").json()["outputs"] == ["lake.db.top"]
    assert jobs(client)["etl"]["state"] == "ended"
    assert client.delete("/unregister/nobody").json()["error_class"] == "JOB_NOT_FOUND"


def test_a_start_without_a_sink_is_refused(client: TestClient) -> None:
    register(client, "etl", "source", "totals")
    answer = client.post("/start/etl")
    assert (answer.status_code, answer.json()["error_class"]) == (404, "JOB_NOT_FOUND")


def test_sink_that_closes_a_cycle_is_refused(client: TestClient) -> None:
    register(client, "one", "source", "a")
    register(client, "one", "sink", "b")
    client.post("/start/one")
    assert register(client, "two", "source", "b") == 200
    answer = client.post("/register/sink/two/lake/db/a")
    assert answer.status_code == 409
    assert answer.json()["error_class"] == "TOPOLOGY_CYCLE"
    assert answer.json()["parameters"]["cycle"] == "lake.db.a → lake.db.b → lake.db.a"
    # Refused means that nothing of it was kept.
    assert jobs(client)["two"]["announced"] == ["lake.db.b"]
    # The source may come last too, and a table is no source of itself.
    assert register(client, "three", "sink", "a") == 200
    assert register(client, "three", "source", "b") == 409
    assert register(client, "four", "sink", "x") == 200
    assert register(client, "four", "source", "x") == 409


def test_second_job_of_a_cycle_cannot_start(client: TestClient) -> None:
    for job, source, sink in (("one", "a", "b"), ("two", "b", "a")):
        assert register(client, job, "source", source) == 200
        assert register(client, job, "sink", sink) == 200
    assert client.post("/start/one").status_code == 200
    assert client.post("/start/two").json()["error_class"] == "TOPOLOGY_CYCLE"
    assert jobs(client)["two"]["state"] == "registered"


def test_a_table_has_one_producing_job(client: TestClient) -> None:
    answer = client.post("/register/sink/etl/lake/db/totals")
    assert (answer.status_code, answer.json()["error_class"]) == (409, "DATASET_OWNED_BY_ANOTHER_JOB")
    answer = client.post("/register/sink/shop/lake/db/more")
    assert (answer.status_code, answer.json()["error_class"]) == (409, "JOB_NAME_TAKEN")


def test_late_end_of_an_older_run_is_ignored(client: TestClient) -> None:
    register(client, "etl", "sink", "report")
    old = client.post("/start/etl").json()["fence"]
    again = client.post("/start/etl")
    assert (again.status_code, again.json()["error_class"]) == (409, "JOB_RUNNING")
    new = client.post("/start/etl?takeover=true&run=two&owner=cluster-7").json()["fence"]
    assert new == old + 1
    assert "cluster-7" in client.post("/start/etl").json()["detail"]
    # The answer to it was lost.
    new = client.post("/start/etl?run=two&owner=cluster-7").json()["fence"]
    late = client.post(f"/unregister/etl?fence={old}")
    assert (late.status_code, late.json()["error_class"]) == (409, "JOB_FENCED")
    assert jobs(client)["etl"]["state"] == "running"
    assert client.post(f"/unregister/etl?fence={new}").status_code == 200


def test_what_an_ended_run_still_writes_is_refused(client: TestClient, shop: Shop) -> None:
    shop.store.checkpoints.open("shop", shop.fence, NewCheckpoint({name("orders"): Version("2")}, 5))
    assert client.delete("/unregister/shop").status_code == 200
    assert shop.store.checkpoints.next_for("shop") is None
    with pytest.raises(FencedError):
        shop.store.roots.report("shop", shop.fence, {name("orders"): Version("3")})
    # What was published stays readable.
    assert client.get("/version/strong/lake/db/totals").json()["checkpoint"] == 1


def test_new_job_takes_over_existing_versions(client: TestClient, shop: Shop) -> None:
    client.post("/unregister/shop")
    register(client, "heir", "sink", "orders")
    fence = client.post("/start/heir").json()["fence"]
    tables = {"tables": ["lake.db.orders", "lake.db.totals"], "checkpoint": 1}
    assert [v["version"] for v in client.post("/version/strong", json=tables).json()["versions"]] == [
        "1",
        "10",
    ]
    n = shop.store.checkpoints.open("heir", fence, NewCheckpoint({}, 9)).number
    shop.store.checkpoints.record_version("heir", fence, n, name("orders"), Version("5"), FULL)
    shop.store.checkpoints.publish("heir", fence, n, 10)
    assert client.get("/version/strong/lake/db/orders").json()["versions"][0]["version"] == "5"
    old = client.get("/version/strong/lake/db/orders?checkpoint=1").json()
    assert old["versions"][0]["version"] == "1"


@pytest.mark.parametrize(
    "table", ["it's", 'qu"ote', "back`tick", "naïve-Ω-表", " ", "a;DROP TABLE jobs", "%", "x" * 900]
)
def test_hostile_names_work_as_they_are(client: TestClient, table: str) -> None:
    assert register(client, "etl", "sink", table) == 200
    assert client.post("/start/etl").status_code == 200
    answer = client.get(f"/api/v1/datasets/{quote(f'lake.db.{table}', safe='')}")
    assert answer.json()["name"] == f"lake.db.{table}"


@pytest.mark.parametrize("table", ["a.b", "..", "x" * 1000, "tab\tstop", "nul\0"])
def test_names_that_cannot_be_are_refused(client: TestClient, table: str) -> None:
    answer = client.post(f"/register/sink/etl/lake/db/{quote(table, safe='').replace('.', '%2E')}")
    assert answer.status_code in (400, 404, 422)
    assert "etl" not in jobs(client)


def test_a_half_character_in_a_body_is_refused(client: TestClient) -> None:
    body = b'{"tables": ["lake.db.\\ud800"]}'
    answer = client.post("/version/strong", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error_class"]) == (422, "REQUEST_INVALID")
