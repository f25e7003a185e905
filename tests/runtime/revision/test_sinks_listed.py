"""A revision lists the sinks that read its tables, however they are declared."""

from __future__ import annotations

import pytest

from tautochrone.runtime.job.topology import tables_of_sinks

from .world import SETTINGS, World, name

pytestmark = pytest.mark.spark

_SINKS = """
    from pyspark import pipelines as dp
    from tautochrone.testing import sqlite_sink

    dp.create_sink("mirror", sqlite_sink.FORMAT, {"path": "mirror.db"})
    dp.create_sink("lines", "json", {"path": "lines"})

    @dp.append_flow(target="mirror")
    def to_mirror():
        return spark.readStream.table("events")

    @dp.append_flow(target="lines")
    def to_lines():
        return spark.readStream.table("clean").where("id > 1")

    @dp.materialized_view(table_properties={"tautochrone.sinks": "mirror, archive"})
    def shown():
        return spark.read.table("totals")
"""


def test_sinks_of_flows_properties_and_settings(world: World) -> None:
    from tautochrone.testing import sqlite_sink

    world.pipeline.write("definitions/sinks.py", _SINKS)
    archive = (
        f'[sinks.archive]\nformat = "{sqlite_sink.FORMAT}"\n[sinks.archive.options]\npath = "archive.db"\n'
    )
    world.pipeline.write("tautochrone.toml", SETTINGS + archive)
    with world.pipeline.opened() as (job, _):
        assert tables_of_sinks(job.topology, job.settings.sinks) == {
            "mirror": {name("events"), name("shown")},
            "archive": {name("shown")},
            "lines": {name("clean")},
        }
