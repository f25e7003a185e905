"""A target reads the ingested tables of another one at a checkpoint, and never writes what is that one's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.harness import Pipeline

import tautochrone.project.targets
from tautochrone.app.stores import project_store
from tautochrone.errors import CheckpointUnavailableError, LakeError, MetaError
from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.runtime.maintenance.maintain import Maintenance

pytestmark = pytest.mark.spark

_DEFINITIONS = """
    from pyspark import pipelines as dp

    @dp.table
    def orders():
        return spark.readStream.format("json").schema("id BIGINT, amount BIGINT").load("{folder}/landing")

    @dp.table
    def large():
        return spark.sql("SELECT * FROM STREAM orders WHERE amount > 1")

    @dp.materialized_view(table_properties={{"tautochrone.sinks": "shop"}})
    def totals():
        return spark.sql("SELECT count(*) AS n, sum(amount) AS amount FROM orders")
"""
_TARGETS = """
    [run]
    target = "prod"

    [targets.prod]
    production = true
    sinks_enabled = false

    [targets.dev]
    storage = "dev"
    roots_from = "prod"

    [targets.prod.maintenance]
    keep = "0s"
    keep_last = 1
    history = "0s"
    min_files = 2

    [sinks.shop]
    format = "kafka"

    [flows.orders]
    max_files_per_trigger = 100
"""
ORDERS = TableName.parse("lake.default.orders")


class Targets:
    """Both targets of one project."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.landing = folder / "landing"
        self.landing.mkdir()
        self.prod = Pipeline(folder, spark, settings=_TARGETS, target="prod")
        self.prod.write("definitions/all.py", _DEFINITIONS.format(folder=folder))
        self.dev = Pipeline(folder, spark, settings=_TARGETS, target="dev")

    def land(self, *amounts: int) -> None:
        number = len(list(self.landing.iterdir()))
        lines = [json.dumps({"id": 100 * number + i, "amount": amount}) for i, amount in enumerate(amounts)]
        (self.landing / f"{number}.json").write_text("\n".join(lines))

    def configure(self, settings: str) -> None:
        """Both with other settings, from the next run on."""
        self.dev.write("tautochrone.toml", settings)
        self.prod.reload()
        self.dev.reload()

    def maintain_prod(self) -> None:
        """Expire and compact what nobody needs, as if ten hours had passed but for the leases of pins."""
        with self.prod.opened() as (job, _):
            self.prod.execute(job)
            Maintenance(job, now_ms=lambda: time.time_ns() // 1_000_000 + 36_000_000).run(orphans=False)

    def files_of_prod(self) -> dict[Path, int]:
        """All files of the other target but its store, with the times of their last change."""
        storage = Path(self.prod.settings.storage)
        return {
            path: path.stat().st_mtime_ns
            for path in storage.rglob("*")
            if path.is_file() and not path.name.startswith("meta.db")
        }


@pytest.fixture
def targets(tmp_path: Path, spark: SparkSession) -> Iterator[Targets]:
    targets = Targets(tmp_path, spark)
    yield targets
    targets.dev.close()
    targets.prod.close()


def roots_of(happened: Any) -> tuple[int, list[str], list[str]]:
    (event,) = happened.of("roots_of_target")
    return event["checkpoint"], event["datasets"], event["ingested"]


def test_roots_are_read_at_a_checkpoint_and_nothing_is_written_there(targets: Targets) -> None:
    targets.land(1, 2, 3)
    targets.prod.run()
    before = targets.files_of_prod()
    first = targets.dev.run()
    assert roots_of(first) == (1, [str(ORDERS)], [])
    assert targets.dev.query("SELECT * FROM totals") == [(3, 6)]
    assert targets.dev.query("SELECT amount FROM large") == [(2,), (3,)]
    assert [event["reason_code"] for event in first.of("sinks_off")] == ["TARGET_NOT_PRODUCTION"]

    # What arrives is news for this target only when the other one has published it.
    targets.land(4)
    targets.dev.run()
    assert targets.dev.query("SELECT * FROM totals") == [(3, 6)]
    assert targets.files_of_prod() == before
    dev_folder = Path(targets.dev.settings.storage) / "warehouse/default/orders"
    assert not list(dev_folder.rglob("*.parquet"))

    targets.prod.run()
    before = targets.files_of_prod()
    second = targets.dev.run()
    assert roots_of(second)[0] == 2
    assert second.refresh("totals")["mode"] != "full"
    assert second.refresh("large")["mode"] == "append"
    assert targets.dev.query("SELECT * FROM totals") == [(4, 10)]
    targets.dev.verify()
    assert targets.files_of_prod() == before
    # Each run replaces the metadata, and the file before the last one goes.
    for _ in range(2):
        targets.land(5)
        targets.prod.run()
        targets.dev.run()
    assert len(list(dev_folder.rglob("*.metadata.json"))) == 2
    assert targets.dev.query("SELECT * FROM totals") == [(6, 20)]


def test_a_chosen_checkpoint_stays_until_another_one_is_chosen(targets: Targets) -> None:
    newest = _TARGETS.replace('keep = "0s"', 'keep = "1h"')
    first = newest.replace('roots_from = "prod"', 'roots_from = "prod"\n    roots_checkpoint = 1')
    targets.configure(first)
    targets.land(1)
    targets.prod.run()
    targets.land(2)
    targets.prod.run()
    assert roots_of(targets.dev.run())[0] == 1
    assert targets.dev.query("SELECT * FROM totals") == [(1, 1)]
    targets.configure(newest)
    targets.dev.run()
    assert targets.dev.query("SELECT * FROM totals") == [(2, 3)]
    # An earlier one is chosen: a stream cannot go back.
    targets.configure(first)
    happened = targets.dev.run()
    assert "STREAM_INPUT_CHANGED" in happened.failure("large")
    assert targets.dev.query("SELECT * FROM totals") == [(2, 3)]
    assert targets.dev.query("SELECT count(*) FROM orders") == [(2,)]
    targets.dev.run(full=["large"])
    assert targets.dev.query("SELECT * FROM totals") == [(1, 1)]
    assert targets.dev.query("SELECT count(*) FROM large") == [(0,)]
    targets.configure(first.replace("roots_checkpoint = 1", "roots_checkpoint = 99"))
    with pytest.raises(CheckpointUnavailableError):
        targets.dev.run()


def test_the_checkpoint_is_pinned_while_it_is_read(targets: Targets) -> None:
    for amount in range(4):
        targets.land(amount)
        targets.prod.run()
        targets.dev.run()
    with project_store(targets.prod.settings) as store:
        pins = store.pins.live()
        # That of this run, and that of the run before.
        assert sorted(int(pin.checkpoint or 0) for pin in pins) == [3, 4]
        assert {pin.owner for pin in pins} == {"target dev of test"}
        hours = (pins[0].expires_at_ms - store.now_ms()) / 3_600_000
        assert 23 < hours <= 24


def test_a_pin_that_ends_during_a_run_is_an_event(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    targets.land(1)
    targets.prod.run()
    monkeypatch.setattr(tautochrone.project.targets, "_PINNED_MS", 1500)
    targets.dev.reload()
    with targets.dev.opened() as (job, happened):
        targets.dev.execute(job)
        with project_store(targets.prod.settings) as store:
            for pin in store.pins.live():
                store.pins.release(pin.id)
        deadline = time.monotonic() + 20
        while not happened.of("roots_pin_lost") and time.monotonic() < deadline:
            time.sleep(0.05)
        (event,) = happened.of("roots_pin_lost")
    assert (event["target"], event["checkpoint"]) == ("prod", 1)
    assert "PIN_EXPIRED" in str(event["reason"])


def test_starts_that_fail_keep_what_views_stand_on(targets: Targets) -> None:
    targets.land(1)
    targets.prod.run()
    targets.dev.run()
    for amount in (2, 3, 4):
        targets.land(amount)
        targets.prod.run()
        # Dies once its tables are shown, before the cut.
        effects = StrikingEffects(Strike(Step.META_OPEN, "before", "crash"))
        with pytest.raises(Crash), targets.dev.opened(effects) as (job, _):
            targets.dev.execute(job)
    # A start that never owns the job leaves no pin.
    with targets.dev.opened():
        pass
    targets.dev.plan()
    with project_store(targets.prod.settings) as store:
        assert sorted(int(pin.checkpoint or 0) for pin in store.pins.live()) == [1, 4]
    targets.maintain_prod()
    happened = targets.dev.run()
    assert happened.refresh("large")["mode"] == "append"
    assert targets.dev.query("SELECT * FROM totals") == [(4, 10)]


def test_a_second_start_changes_nothing_below_the_first(targets: Targets) -> None:
    targets.land(1)
    targets.prod.run()
    targets.dev.run()
    targets.land(2)
    targets.prod.run()
    with targets.dev.opened() as (job, _):
        before = job.lake.load(ORDERS).current_version()
        targets.dev.execute(job)
        assert job.lake.load(ORDERS).current_version() != before


def test_a_run_that_waited_takes_no_older_checkpoint(targets: Targets) -> None:
    targets.land(1)
    targets.prod.run()
    other = Pipeline(targets.dev.folder, targets.dev.session, settings=_TARGETS, target="dev")
    with targets.dev.opened() as (job, happened):
        targets.land(2)
        targets.prod.run()
        assert roots_of(other.run())[0] == 2
        targets.dev.execute(job)
        assert roots_of(happened)[0] == 2
    other.close()
    assert targets.dev.query("SELECT * FROM totals") == [(2, 3)]


def test_pinned_versions_survive_the_maintenance_of_the_other_target(targets: Targets) -> None:
    targets.land(1, 2)
    targets.prod.run()
    targets.dev.run()
    for amount in (3, 4):
        targets.land(amount)
        targets.maintain_prod()
    assert targets.dev.query("SELECT sum(amount) FROM orders") == [(3,)]
    happened = targets.dev.run()
    assert targets.dev.query("SELECT * FROM totals") == [(4, 10)]
    assert targets.dev.query("SELECT amount FROM large") == [(2,), (3,), (4,)]
    # What changed between the two checkpoints is still known there.
    assert happened.refresh("totals")["reason_code"] == "FEW_INPUT_ROWS"
    assert happened.refresh("large")["mode"] == "append"


def test_a_root_whose_versions_were_removed_is_taken_anew(targets: Targets) -> None:
    targets.land(1, 2)
    targets.prod.run()
    targets.dev.run()
    with project_store(targets.prod.settings) as store:
        for pin in store.pins.live():
            store.pins.release(pin.id)
    for amount in (3, 4, 5):
        targets.land(amount)
        targets.prod.run()
    targets.maintain_prod()
    happened = targets.dev.run()
    assert happened.refresh("totals")["reason_code"] == "VERSION_EXPIRED"
    assert "--full-refresh default.large" in happened.of("refresh_failed")[-1]["hint"]
    # Both are shown at one checkpoint, so the view waits for the streaming table.
    assert targets.dev.query("SELECT * FROM totals") == [(2, 3)]
    targets.dev.run(full=["large"])
    assert targets.dev.query("SELECT * FROM totals") == [(5, 15)]
    assert targets.dev.query("SELECT count(*) FROM large") == [(4,)]


def test_it_must_have_run(targets: Targets) -> None:
    with pytest.raises(MetaError) as caught:
        targets.dev.run()
    assert caught.value.error_class == "TARGET_HAS_NO_CHECKPOINT"
    assert caught.value.hint == "`taut run --target prod` first"
    targets.land(1)
    targets.prod.run()
    targets.dev.run()
    assert targets.dev.query("SELECT * FROM totals") == [(1, 1)]


def test_a_table_that_only_this_target_defines_is_ingested_here(targets: Targets) -> None:
    targets.land(1)
    targets.prod.run()
    more = targets.dev.folder / "definitions/more.py"
    more.write_text((targets.dev.folder / "definitions/all.py").read_text().split("@dp.table")[0]
        + "    @dp.table\n    def others():\n        return spark.readStream.format('json')"
        f".schema('id BIGINT').load('{targets.landing}')\n")  # fmt: skip
    more.write_text("\n".join(line.removeprefix("    ") for line in more.read_text().splitlines()))
    happened = targets.dev.run()
    assert roots_of(happened) == (1, [str(ORDERS)], ["lake.default.others"])
    assert targets.dev.query("SELECT count(*) FROM others") == [(1,)]


def test_a_plan_knows_what_the_other_target_ingests_meanwhile(targets: Targets) -> None:
    targets.land(1)
    targets.prod.run()
    targets.dev.run()
    more = f"""
from pyspark import pipelines as dp

@dp.table
def others():
    return spark.readStream.format("json").schema("id BIGINT").load("{targets.landing}")
"""
    (targets.prod.folder / "definitions/more.py").write_text(more)
    others = TableName.parse("lake.default.others")
    assert others in [each.dataset for each in targets.dev.plan().datasets]
    targets.prod.run()
    assert others not in [each.dataset for each in targets.dev.plan().datasets]


def test_a_table_with_a_flow_from_outside_and_one_from_the_lake(targets: Targets) -> None:
    mixed = f"""
from pyspark import pipelines as dp

dp.create_streaming_table("mixed")

@dp.append_flow(target="mixed")
def from_outside():
    return spark.readStream.format("json").schema("id BIGINT, amount BIGINT").load("{targets.landing}")

@dp.append_flow(target="mixed")
def from_lake():
    return spark.sql("SELECT * FROM STREAM orders")

@dp.materialized_view
def counted():
    return spark.sql("SELECT count(*) AS n FROM mixed")
"""
    (targets.prod.folder / "definitions/mixed.py").write_text(mixed)
    targets.land(1)
    targets.prod.run()
    assert roots_of(targets.dev.run()) == (1, ["lake.default.mixed", str(ORDERS)], [])
    assert targets.dev.query("SELECT * FROM counted") == [(2,)]


def test_a_table_of_auto_cdc_is_read_with_its_updates(targets: Targets) -> None:
    latest = f"""
from pyspark import pipelines as dp

dp.create_streaming_table("latest")

@dp.temporary_view
def changes():
    return spark.readStream.format("json").schema("id BIGINT, amount BIGINT").load("{targets.landing}")

dp.create_auto_cdc_flow(target="latest", source="changes", keys=["id"], sequence_by="amount")

@dp.materialized_view
def summed():
    return spark.sql("SELECT count(*) AS n, sum(amount) AS amount FROM latest")
"""
    (targets.prod.folder / "definitions/latest.py").write_text(latest)
    targets.land(1, 2)
    targets.prod.run()
    assert roots_of(targets.dev.run()) == (1, ["lake.default.latest", str(ORDERS)], [])
    assert targets.dev.query("SELECT * FROM summed") == [(2, 3)]
    (targets.landing / "update.json").write_text('{"id": 0, "amount": 9}')
    # Its update replaces a file, which is compacted there before the next run here.
    targets.maintain_prod()
    happened = targets.dev.run()
    assert happened.refresh("summed")["reason_code"] != "VERSION_EXPIRED"
    assert targets.dev.query("SELECT * FROM summed") == [(2, 11)]
    targets.dev.verify()


def test_a_table_of_the_target_itself_is_not_replaced(targets: Targets) -> None:
    targets.land(1, 2)
    targets.prod.run()
    own = _TARGETS.replace('roots_from = "prod"', "")
    targets.dev.write("tautochrone.toml", own)
    targets.dev.reload()
    targets.dev.run()
    targets.dev.write("tautochrone.toml", _TARGETS)
    targets.dev.reload()
    with pytest.raises(LakeError) as caught:
        targets.dev.run()
    assert caught.value.error_class == "TARGET_ROOT_EXISTS"
    assert targets.dev.query("SELECT count(*) FROM orders") == [(2,)]


def test_a_target_does_not_go_on_to_write_the_table_that_it_read(targets: Targets) -> None:
    targets.land(1, 2)
    targets.prod.run()
    targets.dev.run()
    targets.dev.write("tautochrone.toml", _TARGETS.replace('roots_from = "prod"', ""))
    targets.dev.reload()
    with pytest.raises(LakeError) as caught:
        targets.dev.run()
    assert caught.value.error_class == "TABLE_ALREADY_EXISTS"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [Step.LAKE_CREATE, Step.LAKE_FOLLOW])
def test_a_run_that_dies_while_it_takes_the_roots(targets: Targets, step: Step, when: str) -> None:
    targets.land(1, 2)
    targets.prod.run()
    effects = StrikingEffects(Strike(step, when, "crash", on="orders"))
    with pytest.raises(Crash), targets.dev.opened(effects) as (job, _):
        targets.dev.execute(job)
    assert effects.struck
    targets.dev.run()
    assert targets.dev.query("SELECT * FROM totals") == [(2, 3)]


def test_a_table_with_files_of_another_target_is_not_opened(targets: Targets) -> None:
    targets.land(1)
    targets.prod.run()
    (metadata,) = (Path(targets.prod.settings.storage) / "warehouse/default/totals/metadata").glob(
        "00001-*.json"
    )
    with targets.dev.opened() as (job, _):
        stolen = TableName.parse("lake.default.stolen")
        job.lake.register(stolen, str(metadata))
        with pytest.raises(LakeError) as caught:
            job.lake.load(stolen)
        assert caught.value.error_class == "TABLE_OF_ANOTHER_TARGET"
        with pytest.raises(LakeError):
            job.lake.schema(stolen)
        path = f"{targets.prod.settings.storage}/warehouse/default/totals/data"
        targets.dev.session.sql(
            "CREATE TABLE lake.default.elsewhere (id BIGINT) USING iceberg "
            f"TBLPROPERTIES ('write.data.path' = '{path}')"
        )
        with pytest.raises(LakeError):
            job.lake.schema(TableName.parse("lake.default.elsewhere"))
