"""A view is built again when a setting that may change its rows changes, wherever that is set."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.harness import Pipeline

pytestmark = pytest.mark.spark

ZONE = "spark.sql.session.timeZone"
SPEC = "name: test\nstorage: storage\nlibraries:\n  - glob: {include: definitions/**}\n"
PYTHON = """
    from pyspark import pipelines as dp

    @dp.table
    def events():
        return spark.readStream.schema("at timestamp").json({folder!r})

    @dp.materialized_view
    def hours():
        return spark.sql("SELECT hour(at) AS hour, count(*) AS n FROM events GROUP BY ALL")
"""
SALTED = """
    from pyspark import pipelines as dp

    @dp.materialized_view
    def salted():
        return spark.sql(f"SELECT count(*) AS n, '{spark.conf.get('my.secret', '')}' AS salt FROM events")
"""
SQL = "CREATE MATERIALIZED VIEW days AS SELECT DISTINCT date_format(at, 'yyyy-MM-dd') AS day FROM events;"


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    pipeline.write("definitions/p.py", PYTHON.format(folder=str(tmp_path / "in")))
    pipeline.write("in/1.json", '{"at": "2026-01-01T20:30:00Z"}')
    return pipeline


def configure(pipeline: Pipeline, **settings: str) -> None:
    lines = [f'  {name.replace("_", ".")}: "{text}"\n' for name, text in settings.items()]
    pipeline.write("spark-pipeline.yml", SPEC + "configuration:\n" * bool(lines) + "".join(lines))


def refresh_codes(pipeline: Pipeline) -> dict[str, str]:
    happened = pipeline.run()
    assert happened.state == "COMPLETED", list(happened)
    return {refresh["dataset"].split(".")[-1]: refresh["reason_code"] for refresh in happened.of("refresh")}


def test_views_follow_the_time_zone_of_all_four_places(pipeline: Pipeline) -> None:
    def rows() -> list[tuple[object, ...]]:
        return pipeline.query("SELECT hour, n, day FROM hours, days")

    pipeline.write("definitions/v.sql", SQL)
    refresh_codes(pipeline)
    assert rows() == [(20, 1, "2026-01-01")]
    changed = {"hours": "DEFINITION_CHANGED", "days": "DEFINITION_CHANGED"}
    pipeline.write("spark-defaults.conf", f"{ZONE} Europe/Berlin\n")
    assert refresh_codes(pipeline) == changed
    assert rows() == [(21, 1, "2026-01-01")]
    configure(pipeline, spark_sql_session_timeZone="Asia/Tokyo")
    assert refresh_codes(pipeline) == changed
    assert rows() == [(5, 1, "2026-01-02")]
    pipeline.write("tautochrone.toml", f'[spark.conf]\n"{ZONE}" = "America/New_York"\n')
    assert refresh_codes(pipeline) == changed
    assert rows() == [(15, 1, "2026-01-01")]
    pipeline.reload({ZONE: "UTC"})
    assert refresh_codes(pipeline) == changed
    assert rows() == [(20, 1, "2026-01-01")]
    # UTC is what a session has without any setting.
    pipeline.reload()
    for file in ("spark-defaults.conf", "tautochrone.toml"):
        (pipeline.folder / file).unlink()
    configure(pipeline)
    pipeline.write("in/2.json", '{"at": "2026-01-01T20:40:00Z"}')
    assert "DEFINITION_CHANGED" not in refresh_codes(pipeline).values()
    pipeline.verify()
    assert rows() == [(20, 2, "2026-01-01")]


def test_only_settings_that_may_change_rows_count(pipeline: Pipeline) -> None:
    pipeline.write("definitions/s.py", SALTED)
    refresh_codes(pipeline)
    configure(
        pipeline,
        spark_sql_session_timeZone="UTC",
        spark_sql_ansi_enabled="TRUE",
        spark_sql_shuffle_partitions="3",
        spark_hadoop_fs_own_option="1",
        my_password="hunter2",
    )
    pipeline.write("in/2.json", '{"at": "2026-01-01T20:40:00Z"}')
    assert "DEFINITION_CHANGED" not in refresh_codes(pipeline).values()
    # What a query puts into its rows counts, whatever it is.
    configure(pipeline, my_secret="pepper")
    assert refresh_codes(pipeline)["salted"] == "DEFINITION_CHANGED"
    assert pipeline.query("SELECT n, salt FROM salted") == [(2, "pepper")]
    configure(pipeline, my_secret="salt")
    codes = refresh_codes(pipeline)
    assert (codes["salted"], codes["hours"]) == ("DEFINITION_CHANGED", "NO_INPUT_CHANGED")
    configure(pipeline, my_secret="salt", my_own="1")
    assert set(refresh_codes(pipeline).values()) == {"DEFINITION_CHANGED"}
    pipeline.verify()
