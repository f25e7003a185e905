"""What cannot be proven is refused table by table, and then nothing at all is changed."""

from __future__ import annotations

import shutil

import pytest

from tautochrone.errors import LakeError, SettingsError
from tautochrone.runtime.adoption.adoptable import Action

from .world import VIEWS, Built

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


def refused(built: Built) -> dict[str, str]:
    """Error classes by dataset; the survey changes nothing."""
    before = built.pipeline.pointers()
    findings = built.survey()
    assert built.pipeline.pointers() == before
    return {
        name: finding.error.error_class for name, finding in findings.items() if finding.error is not None
    }


def test_every_doubt_has_its_class(built: Built) -> None:
    run = built.pipeline.session.sql
    run("INSERT INTO lake.default.sales VALUES ('z', 1, 1.0)")
    run("DROP TABLE lake.default.dear")
    folders = built.storage / "_checkpoints" / "lake" / "default"
    shutil.rmtree(folders / "both" / "far")
    offsets = folders / "hourly" / "hourly" / "0" / "offsets"
    newest = max(int(file.name) for file in offsets.iterdir() if file.name.isdigit())
    (offsets / str(newest + 1)).write_text("v1\n{}\n{}")
    run("INSERT INTO lake.default.orders VALUES (99, 'a', 9.0, NULL)")
    assert refused(built) == {
        "sales": "ADOPTION_ROWS_DIFFER",
        "dear": "ADOPTION_TABLE_MISSING",
        "both": "ADOPTION_POSITION_UNKNOWN",
        "hourly": "ADOPTION_POSITION_UNKNOWN",
        "cheap": "ADOPTION_STREAM_BEHIND",
    }
    before = built.pipeline.pointers()
    with pytest.raises(LakeError) as caught:
        built.adopt()
    assert caught.value.error_class == "ADOPTION_REFUSED"
    assert built.pipeline.pointers() == before


def test_what_the_definitions_say_now_counts(built: Built) -> None:
    views = VIEWS.replace("SELECT id, kind FROM", "SELECT id, kind, rand() AS r FROM")
    built.pipeline.write("definitions/views.sql", views.replace("count(*) AS n", "count(*) AS m"))
    assert refused(built) == {"sales": "ADOPTION_COLUMNS_DIFFER", "dear": "ADOPTION_COLUMNS_DIFFER"}
    shuffled = VIEWS.replace("price >= 3", "price >= 3 AND rand() >= 0")
    built.pipeline.write("definitions/views.sql", shuffled)
    assert refused(built) == {"dear": "ADOPTION_NOT_PROVABLE"}


def test_state_that_is_gone(built: Built) -> None:
    shutil.rmtree(built.storage / "_checkpoints" / "lake" / "default" / "hourly" / "hourly" / "0" / "state")
    assert refused(built) == {"hourly": "ADOPTION_POSITION_UNKNOWN"}


def test_tables_of_another_pipeline(built: Built) -> None:
    built.name("other")
    built.adopt()
    built.name("shop")
    # Another job, or the name of the job would be refused before the tables are looked at.
    (built.folder / "tautochrone.toml").write_text('[run]\njob = "shop"\n')
    assert set(refused(built).values()) == {"TABLE_OF_ANOTHER_PIPELINE"}


def test_views_are_rebuilt_when_told(built: Built) -> None:
    run = built.pipeline.session.sql
    run("INSERT INTO lake.default.sales VALUES ('z', 1, 1.0)")
    run("DROP TABLE lake.default.dear")
    with pytest.raises(SettingsError, match="ADOPTION_REBUILD_OF_STREAM"):
        built.survey("orders")
    findings = built.survey("sales", "dear")
    assert findings["top"].action is Action.REBUILD, "it reads a view that is rebuilt"
    assert findings["orders"].action is Action.ADOPT
    happened = built.adopt("sales", "dear")
    assert happened.of("checkpoint")[-1]["failed"] == [
        f"lake.default.{name}" for name in ("dear", "sales", "top")
    ]
    first = built.run()
    assert {first.mode(name) for name in ("sales", "dear", "top")} == {("full", "first build")}
    built.check()


def test_a_pipeline_that_runs_takes_over_nothing_more(built: Built) -> None:
    built.adopt()
    built.pipeline.session.sql("CREATE TABLE lake.default.new USING iceberg AS SELECT 1 AS one")
    built.pipeline.write("definitions/new.sql", "CREATE MATERIALIZED VIEW new AS SELECT 1 AS one;\n")
    with pytest.raises(LakeError, match="ADOPTION_TOO_LATE"):
        built.survey()
