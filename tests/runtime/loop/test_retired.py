"""A dataset that leaves the project is said to: by the run, and by `taut status` while its table is there."""

from __future__ import annotations

import pytest
from tests.support.harness import Pipeline

from tautochrone.cli.status import _is_left
from tautochrone.model.names import TableName

pytestmark = pytest.mark.spark

OLD = TableName("lake", ("default",), "old")


def test_a_view_leaves_and_comes_back(pipeline: Pipeline) -> None:
    pipeline.write("definitions/v.sql", "CREATE MATERIALIZED VIEW kept AS SELECT 1 AS number")
    file = pipeline.write("definitions/old.sql", "CREATE MATERIALIZED VIEW old AS SELECT 2 AS number")
    assert not pipeline.run().of("datasets_retired")
    file.unlink()
    pipeline.reload()
    (event,) = pipeline.run().of("datasets_retired")
    assert event["datasets"] == [str(OLD)]
    assert pipeline.job.store.datasets.retired() == (OLD,)
    assert _is_left(pipeline.settings.catalog, OLD, None)
    assert not pipeline.run().of("datasets_retired")
    pipeline.write("definitions/old.sql", "CREATE MATERIALIZED VIEW old AS SELECT 2 AS number")
    pipeline.reload()
    assert not pipeline.run().of("datasets_retired")
    assert pipeline.job.store.datasets.retired() == ()
    file.unlink()
    pipeline.reload()
    pipeline.run()
    pipeline.session.sql("DROP TABLE lake.default.old")
    assert not _is_left(pipeline.settings.catalog, OLD, None)
    # A later table of the name is not the one that the project had.
    pipeline.session.sql("CREATE TABLE lake.default.old (number INT) USING iceberg")
    identity = pipeline.job.store.datasets.table_id(OLD)
    assert identity is not None
    assert not _is_left(pipeline.settings.catalog, OLD, identity)
