"""Files that nothing refers to: found, told, deleted, and nothing else with them."""

from __future__ import annotations

import pytest

from tautochrone.errors import SettingsError
from tautochrone.iceberg.maintenance.orphans import path_of
from tautochrone.runtime.maintenance.maintain import Maintenance
from tautochrone.runtime.maintenance.orphans import OrphanRemoval

from .conftest import Upkept


@pytest.mark.parametrize(
    "location",
    ["/w/a b/x.parquet", "file:/w/a b/x.parquet", "file:///w/a b/x.parquet", "s3://bucket/w//a b/x.parquet",
     "abfss://c@account.host/w/a b/x.parquet"],
)  # fmt: skip
def test_a_file_has_one_path(location: str) -> None:
    assert path_of(location) == "/w/a b/x.parquet"


@pytest.mark.spark
def test_an_age_below_a_day_is_refused(upkept: Upkept) -> None:
    with pytest.raises(SettingsError, match=r"maintenance\.orphans cannot be '23h'") as refused:
        upkept.set("orphans", '"23h"')
    assert refused.value.hint is not None
    assert "at least 24h" in refused.value.hint


@pytest.mark.spark
def test_what_is_told_dry_is_deleted(upkept: Upkept) -> None:
    upkept.view("totals")
    upkept.add()
    upkept.pipeline.run()
    upkept.pipeline.session.sql("CREATE TABLE lake.default.theirs USING iceberg AS SELECT 1 AS id")
    theirs = upkept.orphan("theirs")
    state = next(path for path in upkept.folder("_tautochrone").iterdir() if "totals" in path.name)
    old = [upkept.orphan("events"), upkept.orphan("totals"), upkept.orphan(state.name, "_tautochrone")]
    upkept.grow_old()
    young = upkept.orphan("events")
    with upkept.pipeline.opened() as (job, happened):
        maintenance = Maintenance(job)
        maintenance.run(dry_run=True)
        previews = happened.of("orphans_removed")
        listed = {path_of(file) for event in previews for file in event["files"]}
        assert {str(path) for path in old} <= listed
        assert str(theirs) not in listed
        assert str(young) not in listed
        assert all(path.exists() for path in old)
        announced = {event["dataset"]: (event["count"], event["bytes"]) for event in previews}
        maintenance.run()
        done = [event for event in happened.of("orphans_removed") if not event["dry_run"]]
        assert {event["dataset"]: (event["count"], event["bytes"]) for event in done} == announced
        assert not any(path.exists() for path in old)
        assert theirs.exists()
        assert young.exists()
        before = len(happened)
        maintenance.run()
        assert not [event for event in happened[before:] if event["event"].startswith("orphans")]
    upkept.add()
    happened = upkept.pipeline.run()
    assert happened.state == "COMPLETED"
    assert happened.mode("totals")[0] == "incremental"
    assert upkept.ids("events") == list(range(upkept.rows))
    upkept.pipeline.verify()


@pytest.mark.spark
def test_a_run_looks_once_in_a_period(upkept: Upkept) -> None:
    for _ in range(2):
        upkept.add()
        upkept.pipeline.run()
    with upkept.pipeline.opened() as (job, _):
        # The checkpoint before the newest tells when an earlier process looked.
        now = [job.store.checkpoints.unexpired(job.name)[-2].at_ms]
        removal = OrphanRemoval(job, lambda: now[0])
        due: list[bool] = []
        for hours in (0, 24, 0, 24, 0):
            now[0] += hours * 3_600_000
            due.append(removal.due())
        assert due == [False, True, False, True, False]
    orphan = upkept.orphan("events")
    upkept.grow_old()
    upkept.set("orphans_every", '"1ms"')
    upkept.add()
    removals = upkept.pipeline.run().of("orphans_removed")
    assert {event["dataset"] for event in removals} >= {"lake.default.events"}
    assert not orphan.exists()


@pytest.mark.spark
def test_a_folder_behind_a_symbolic_link(upkept: Upkept) -> None:
    """Somebody moved a table to another disk."""
    upkept.add()
    upkept.pipeline.run()
    folder, moved = upkept.folder("default") / "events", upkept.folder("elsewhere")
    folder.rename(moved)
    folder.symlink_to(moved, target_is_directory=True)
    upkept.add()
    upkept.pipeline.run()
    orphan = upkept.orphan("events")
    upkept.grow_old()
    with upkept.pipeline.opened() as (job, happened):
        Maintenance(job).run()
    (removal,) = (e for e in happened.of("orphans_removed") if e["dataset"] == "lake.default.events")
    assert removal["count"] == 1
    assert not orphan.exists()
    assert upkept.ids("events") == list(range(upkept.rows))


@pytest.mark.spark
def test_a_table_that_keeps_files_elsewhere_is_told(upkept: Upkept) -> None:
    upkept.stream("clean")
    upkept.add()
    upkept.pipeline.run()
    upkept.pipeline.session.sql(
        "ALTER TABLE lake.default.clean SET TBLPROPERTIES ('write.data.path' = 'file:/elsewhere')"
    )
    with upkept.pipeline.opened() as (job, happened):
        maintenance = Maintenance(job)
        maintenance.run()
        (skipped,) = happened.of("orphans_skipped")
        assert skipped["dataset"] == "lake.default.clean"
        assert "write.data.path" in skipped["reason"]
        assert not maintenance.failed


@pytest.mark.spark
def test_a_table_of_somebody_else_is_left_alone(upkept: Upkept) -> None:
    upkept.stream("clean")
    upkept.add()
    upkept.pipeline.run()
    upkept.pipeline.session.sql("DROP TABLE lake.default.clean")
    upkept.pipeline.session.sql("CREATE TABLE lake.default.clean USING iceberg AS SELECT 1 AS id")
    theirs = upkept.orphan("clean")
    upkept.grow_old()
    with upkept.pipeline.opened() as (job, happened):
        Maintenance(job).run()
    (skipped,) = happened.of("orphans_skipped")
    assert "was not written by this pipeline" in skipped["reason"]
    assert theirs.exists()
