"""`taut publish`: tables that others damaged are noticed, set aside, and published anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.sinks.publications.test_publication import SETTINGS, Published
from tests.support.paimon import append_rows

from tautochrone.model.effects import Step
from tautochrone.runtime.delivery.repair import repair, survey
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


def damages(published: Published) -> set[tuple[str, str, str]]:
    with published.pipeline.opened() as (job, _):
        damaged = survey(job.lake, declared_sinks(job.topology, job.settings.sinks), ())
        return {(each.sink, each.dataset.table, str(each.reason.code)) for each in damaged}


def test_damaged_tables_are_published_anew(published: Published) -> None:
    published.add((1, "a", 1.5), (2, "b", 2.0))
    published.run()
    published.add((3, "a", 3.25))
    published.run()
    assert damages(published) == set()
    damaged = damage(published)
    codes = {"hudi": "PUBLISHED_FILES_DIFFER"}
    assert damages(published) == {
        (f"{name}-publication", table, codes.get(name, "PUBLISHED_LOG_DAMAGED"))
        for name, table in damaged.items()
    }
    # It dies after the first table was set aside.
    effects = StrikingEffects(Strike(Step.SINK_SET_ASIDE, "after", "crash"))
    with published.pipeline.opened(effects) as (job, _):
        take_over(job)
        with pytest.raises(Crash):
            repair(job, declared_sinks(job.topology, job.settings.sinks), ())
    with published.pipeline.opened() as (job, happened):
        take_over(job)
        repair(job, declared_sinks(job.topology, job.settings.sinks), ())
        assert len(happened.of("sink_table_set_aside")) == 2
    for name, table in damaged.items():
        (aside,) = (published.folder / name / "set-aside").glob(f"*/{table}/*")
        assert any(aside.rglob("*.parquet"))
        # No list of an earlier checkpoint names a version of the table that begins anew.
        assert table not in next(iter(published.versions(name).values()))
    # The table that was set aside before the crash is begun anew by the next run.
    published.add((4, "b", 4.0))
    published.run()
    published.check(last=1)
    assert damages(published) == set()
