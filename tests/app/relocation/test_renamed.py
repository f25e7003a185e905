"""A pipeline with another name in its spec: refused with a hint, whose command may die and be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Happened

from tautochrone.errors import LakeError
from tautochrone.model.effects import Step
from tautochrone.runtime.adoption.renaming import hand_over
from tautochrone.runtime.refresh.states import STATE_NAMESPACE

from .world import SPEC, Died, Dying, Shop

pytestmark = pytest.mark.spark


def refused(shop: Shop) -> tuple[LakeError, Happened]:
    with shop.pipeline.opened() as (job, happened), pytest.raises(LakeError) as raised:
        shop.pipeline.execute(job)
    return raised.value, happened


def test_renamed_pipeline_keeps_its_tables_and_history(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop.new(tmp_path / "shop", spark)
    shop.add(1, 2, 3, 4)
    before = shop.run().checkpoints[-1]
    shop.pipeline.write("spark-pipeline.yml", SPEC.replace("name: shop", "name: store"))
    shop.pipeline.reload()
    error, happened = refused(shop)
    assert error.error_class == "TABLE_OF_ANOTHER_PIPELINE"
    assert error.hint is not None
    assert "taut adopt --from-pipeline shop" in error.hint
    assert not happened.of("heartbeat_missed")
    for step in (Step.META_BELONG, Step.META_TAKE_OVER, Step.LAKE_COMMIT_METADATA):
        dying = Dying(step, before=False)
        with shop.pipeline.opened(dying) as (job, _), pytest.raises(Died):
            hand_over(job, "shop")
    assert refused(shop)[0].error_class == "TABLE_OF_ANOTHER_PIPELINE"
    with shop.pipeline.opened() as (job, happened):
        assert hand_over(job, "shop") > 0
    with shop.pipeline.opened() as (job, _):
        assert hand_over(job, "shop") == 0
        states = [table for table in job.lake.tables() if table.namespace == STATE_NAMESPACE]
        writers = [job.lake.load(state).fork().commit_metadata for state in states]
        assert {writer and writer.pipeline for writer in writers} == {"store"}
    shop.add(5)
    happened = shop.run()
    assert happened.checkpoints[-1] > before
    assert not happened.of("heartbeat_missed")
    shop.check()
    assert [row.name for row in shop.pipeline.job.store.jobs.states()] == ["store"]
    assert shop.pipeline.query("SELECT count(*) FROM orders", checkpoint=before) == [(4,)]
    shop.pipeline.close()
