"""One setting says where the store is; what opens it, reads it and examines it agrees."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.stores import Backing, ServiceThread, fresh_postgres

from tautochrone.app.finding import Finding, State
from tautochrone.app.health import health_findings
from tautochrone.app.locate import Options, locate
from tautochrone.app.stores import existing_store, open_store
from tautochrone.cli.main import main
from tautochrone.errors import MetaError
from tautochrone.meta import MetaStore
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.rpc import RemoteStore
from tautochrone.reader import Leases

pytestmark = pytest.mark.thorough

SPEC = "name: shop\nstorage: storage\nlibraries:\n  - glob: {include: t/**}\n"


@pytest.fixture
def options(tmp_path: Path) -> Options:
    (tmp_path / "spark-pipeline.yml").write_text(SPEC)
    return Options(spec=str(tmp_path / "spark-pipeline.yml"))


def test_the_url_decides(tmp_path: Path) -> None:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as store:
        service = ServiceThread(store)
        with open_store(service.url) as remote, open_store(f"sqlite:///{tmp_path}/meta.db") as local:
            assert isinstance(remote, RemoteStore)
            assert type(local) is MetaStore
            assert remote.incarnation == local.incarnation == store.incarnation
        service.stop()


def test_reading_creates_no_store(options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for url in (fresh_postgres(), f"sqlite:///{tmp_path}/none.db"):
        monkeypatch.setenv("TAUTOCHRONE_META_URL", url)
        for _ in range(2):
            with pytest.raises(MetaError, match="META_STORE_MISSING"):
                existing_store(locate(options)[1])
        MetaStore.open(url).close()
        existing_store(locate(options)[1]).close()


def test_reading_command_uses_the_service(
    options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as store:
        store.jobs.start_run("shop", "shop", [])
        store.checkpoints.open("shop", store.jobs.take_over("shop"), NewCheckpoint({}, 1))
        service = ServiceThread(store, "let-me-in")
        monkeypatch.setenv("TAUTOCHRONE_META_URL", service.url)
        assert main(["checkpoints", "--spec", str(options.spec)]) == 1
        assert "META_SERVICE_REFUSED" in capsys.readouterr().err
        monkeypatch.setenv("TAUTOCHRONE_META_TOKEN", "let-me-in")
        assert main(["checkpoints", "--spec", str(options.spec), "--json"]) == 0
        assert '"checkpoint": 1, "state": "open"' in capsys.readouterr().out
        service.stop()


def _store_finding(options: Options, monkeypatch: pytest.MonkeyPatch) -> Finding:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")  # so that no Spark is started
    return next(finding for finding in health_findings(options) if finding.check == "store")


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "http"])
def test_doctor_knows_every_kind(
    options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    backing = Backing(kind, tmp_path)
    backing.open()
    monkeypatch.setenv("TAUTOCHRONE_META_URL", backing.shared())
    finding = _store_finding(options, monkeypatch)
    assert finding.state is State.OK, finding
    assert kind in finding.detail
    backing.close()


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_doctor_reports_an_unreachable_store(
    options: Options, monkeypatch: pytest.MonkeyPatch, unused_port: int, scheme: str
) -> None:
    url = f"{scheme}://joe:let-me-hide@127.0.0.1:{unused_port}"
    monkeypatch.setenv("TAUTOCHRONE_META_URL", url + "/shop" * (scheme == "postgresql"))
    finding = _store_finding(options, monkeypatch)
    assert finding.state is State.FAILED
    assert finding.error == {"http": "META_SERVICE_UNREACHABLE", "postgresql": "META_STORE_FAILED"}[scheme]
    assert finding.hint
    assert "let-me-hide" not in f"{finding}"


class Holder:
    """What keeps a pin."""


def test_pins_are_renewed_over_http_by_a_thread(tmp_path: Path) -> None:
    backing = Backing("http", tmp_path)
    remote = backing.open()
    remote.jobs.start_run("shop", "job", [])
    fence = remote.jobs.take_over("job")
    remote.checkpoints.publish(
        "job", fence, remote.checkpoints.open("job", fence, NewCheckpoint({}, 1)).number, 2
    )
    beats: list[Any] = []
    leases = Leases(remote, 3_000, lambda: beats.append(1))
    holders = [Holder(), Holder()]
    for holder in holders:
        leases.hold(remote.reads.resolve(lease_ms=3_000).pin, holder)
    while len(beats) < 4:  # longer than a lease
        time.sleep(0.05)
    assert remote.pins.pinned_checkpoints() == {1}
    del holder
    holders.clear()
    gc.collect()
    leases.close()
    assert backing.execute("SELECT count(*) FROM pins") == 0
    backing.close()


def test_close_does_not_wait_for_an_unreachable_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as store:
        service = ServiceThread(store)
        remote = RemoteStore(service.url, retry_ms=200)
        leases, holder = Leases(remote, 60_000, lambda: None), Holder()
        for pin in range(50):
            leases.hold(str(pin), holder)
        service.stop()
        leases.close()
        assert caplog.text.count("a pin was not released") == 1
        remote.close()
