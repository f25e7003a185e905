"""The client and the commands on it: over HTTP and on a store they say the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI, Response

from tautochrone.cli.main import main
from tautochrone.errors import MetaError
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.client import Client
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.metaservice.http.validation import parse_table_name

from .conftest import Shop
from .serving import serving

TOKEN = "a-token-that-may-operate"


@pytest.fixture
def uri(shop: Shop) -> Iterator[str]:
    app = create_app(access=Access.by_tokens({TOKEN: Role.OPERATE}), store=shop.store)
    with serving(app) as served_uri:
        yield served_uri


@pytest.fixture(params=["store", "http"])
def taut(
    request: pytest.FixtureRequest, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:  # fmt: skip
    """Run a command against the store's file or the service; what it printed."""
    monkeypatch.setenv("TAUTOCHRONE_META_TOKEN", TOKEN)
    url = uri if request.param == "http" else f"sqlite:///{tmp_path}/meta.db"

    def run(*arguments: str) -> str:
        assert main([*arguments, "--meta", url]) == 0
        return capsys.readouterr().out

    return run


def test_lineage_as_trees(taut: Callable[..., str]) -> None:
    assert taut("lineage", "totals").splitlines() == [
        "lake.db.totals",
        "  ← lake.db.orders",
        "  → lake.db.top",
    ]
    assert taut("lineage", "db.TOP", "--up").splitlines() == [
        "lake.db.top", "  ← lake.db.totals", "    ← lake.db.orders"]  # fmt: skip
    assert taut("lineage", "lake.db.orders", "--up").splitlines() == ["lake.db.orders"]
    lineage = json.loads(taut("lineage", "totals", "--json", "--down"))
    assert (lineage["downstream"], "upstream" in lineage) == (["lake.db.top"], False)


def test_jobs_and_pins(taut: Callable[..., str], shop: Shop) -> None:
    shop.store.reads.resolve(owner="a notebook", lease_ms=60_000)
    (job,) = [json.loads(line) for line in taut("jobs", "--json").splitlines()]
    assert (job["name"], job["fence"], job["newest_done"], len(job["sinks"])) == ("shop", 1, 1, 3)
    assert "shop" in taut("jobs")
    (pin,) = [json.loads(line) for line in taut("pins", "--json").splitlines()]
    assert (pin["owner"], pin["checkpoint"]) == ("a notebook", 1)
    assert "a notebook" in taut("pins")


def test_a_token_says_what_a_read_must_show(taut: Callable[..., str], uri: str, shop: Shop) -> None:
    token = taut("token").strip()
    assert json.loads(taut("token", "--json"))["token"] >= token
    with Client(uri, TOKEN) as client:
        with pytest.raises(MetaError, match="READ_NOT_YET") as late:
            client.versions(["lake.db.top"], after=token)
        assert late.value.retryable
        observations = {parse_table_name("lake.db.orders"): shop.store.now_ms() + 1}
        shop.store.jobs.heartbeat("shop", shop.fence, observations=observations, checkpoint=1)
        assert client.versions(["lake.db.top"], after=token).checkpoint == 1
        assert client.write_token() >= token


@pytest.mark.parametrize("name", ["nope", "lake.db.nope"])
def test_unknown_names_fail_the_same_way(uri: str, tmp_path: Path, name: str,
                                         monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setenv("TAUTOCHRONE_META_TOKEN", TOKEN)
    for url in (uri, f"sqlite:///{tmp_path}/meta.db"):
        assert main(["lineage", name, "--meta", url]) == 1
        assert capsys.readouterr().err.startswith("[DATASET_NOT_FOUND]")


def test_a_job_by_the_client(uri: str, shop: Shop) -> None:
    with Client(uri, TOKEN) as client:
        client.register("etl", sources=["lake.db.totals"], sinks=["lake.db.a`b c"])
        started = client.start("etl")
        assert started.checkpoint == 1
        assert [job.name for job in client.jobs()] == ["etl", "shop"]
        with pytest.raises(MetaError, match="TOPOLOGY_CYCLE") as caught:
            client.register("etl", sources=["lake.db.a`b c"])
        assert caught.value.parameters["cycle"].count("→") == 1
        client.unregister("etl", started.fence)
        pin = client.pin("me", ["lake.db.top"], lease_ms=50_000)
        client.renew_pin(pin.id, 60_000)
        assert [p.id for p in client.pins()] == [pin.id]
        client.release_pin(pin.id)
        assert client.versions(["lake.db.top"]).versions[0].version == "10"


def test_unreachable_service_and_wrong_service_are_told_apart() -> None:
    with pytest.raises(MetaError, match="META_SERVICE_UNREACHABLE") as caught:
        Client("http://127.0.0.1:1").jobs()
    assert caught.value.retryable
    another_app = FastAPI()
    another_app.get("/api/v1/jobs")(lambda: Response("<html>", media_type="text/html"))
    with serving(another_app) as uri, Client(uri, TOKEN) as client:
        for ask in (client.jobs, client.pins):
            with pytest.raises(MetaError, match="META_SERVICE_UNKNOWN"):
                ask()


def test_a_wrong_token_is_told_and_not_shown(uri: str) -> None:
    with (
        Client(uri, "some-other-token-value") as client,
        pytest.raises(MetaError, match="TOKEN_UNKNOWN") as caught,
    ):
        client.jobs()
    assert "some-other" not in caught.value.render()
