"""`taut publish`: tables that others damaged are noticed, set aside, and published anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.sinks.publications.test_publication import SETTINGS, Published
from tests.support.paimon import append_rows

from tautochrone.cli.main import main
from tautochrone.model.effects import Step
from tautochrone.runtime.delivery.repair import repair
from tautochrone.runtime.job.topology import declared_sinks
from tautochrone.runtime.loop.takeover import take_over

pytestmark = pytest.mark.spark


@pytest.fixture
def published(tmp_path: Path, spark: SparkSession) -> Iterator[Published]:
    publication = Published(tmp_path, spark, SETTINGS)
    yield publication
    publication.pipeline.close()


def damage(published: Published) -> dict[str, str]:
    """Damage one table in each format; by format the table."""
    (log,) = published.folder.glob("delta/default*/orders/_delta_log")
    (log / f"{len(list(log.glob('0*.json'))):020d}.json").write_text('{"commitInfo": {}}')
    files = published.folder.glob("hudi/default*/totals/*.parquet")
    max(files, key=lambda path: path.stem.rpartition("_")[2]).unlink()
    (orders,) = published.folder.glob("paimon/default*/orders")
    append_rows(orders, {"id": "int64", "name": "string", "amount": "float64"}, {"id": 77})
    return {"delta": "orders", "hudi": "totals", "paimon": "orders"}


def test_damaged_tables_are_published_anew(published: Published, capsys: pytest.CaptureFixture[str]) -> None:
    published.add((1, "a", 1.5), (2, "b", 2.0))
    published.run()
    published.add((3, "a", 3.25))
    published.run()
    command = ["publish", "--json", "--spec", str(published.pipeline.folder / "spark-pipeline.yml")]
    assert main(command) == 0
    damaged = damage(published)
    capsys.readouterr()
    assert main(command) == 1
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines = [line for line in printed if "event" not in line]
    codes = {"hudi": "PUBLISHED_FILES_DIFFER"}
    assert {(line["sink"], line["dataset"], line["reason_code"]) for line in lines} == {
        (f"{name}-publication", f"lake.default.{table}", codes.get(name, "PUBLISHED_LOG_DAMAGED"))
        for name, table in damaged.items()
    }
    # It dies after the first table was set aside.
    effects = StrikingEffects(Strike(Step.SINK_SET_ASIDE, "after", "crash"))
    with published.pipeline.opened(effects) as (job, _):
        take_over(job)
        with pytest.raises(Crash):
            repair(job, declared_sinks(job.topology, job.settings.sinks), ())
    assert main([*command, "--repair", "--takeover"]) == 0
    published.check(last=1)
    for name, table in damaged.items():
        (aside,) = (published.folder / name / "set-aside").glob(f"*/{table}/*")
        assert any(aside.rglob("*.parquet"))
        # No list of an earlier checkpoint names a version of the table that begins anew.
        assert [table in tables for tables in published.versions(name).values()][:-1] == [False]
    published.add((4, "b", 4.0))
    published.run()
    published.check(last=1)
    assert main(command) == 0
