"""Two tables that read one source by flows of their own: they are reported, with both locations."""

from __future__ import annotations

from tautochrone.project.graph import shared_sources

from .conftest import ProjectMaker, lake

READS = """
    from pyspark.sql import SparkSession

    def folder(path):
        return SparkSession.active().readStream.schema("x INT").json(path)

    @dp.table
    def one():
        return folder("{folder}/in")

    @dp.table
    def two():
        return folder("file:{folder}/in/")

    @dp.table
    def other():
        return folder("{folder}/elsewhere")

    @dp.materialized_view
    def fanned_out():
        return SparkSession.active().table("other")

    @dp.table
    def also_fanned_out():
        return SparkSession.active().readStream.table("other")

    dp.create_streaming_table("both")

    @dp.append_flow(target="both")
    def first():
        return folder("{folder}/third")

    @dp.append_flow(target="both")
    def second():
        return folder("{folder}/third")
"""


def test_one_folder_into_two_tables(project: ProjectMaker) -> None:
    for name in ("in", "elsewhere", "third"):
        (project.folder / name).mkdir()
    (shared_source,) = shared_sources(project.python(READS.format(folder=project.folder)))
    assert shared_source.source == f"files in {project.folder}/in"
    assert shared_source.tables == (lake("one"), lake("two"))
    assert shared_source.locations == ("defs/a.py:8", "defs/a.py:12")
