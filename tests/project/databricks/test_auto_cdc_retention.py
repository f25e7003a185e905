"""AUTO CDC that forgets old deletions: what comes later than that is refused and counted, never merged."""

from __future__ import annotations

from typing import Any

import pytest

from tautochrone.errors import DefinitionError
from tautochrone.model import limits
from tautochrone.runtime.views import verify

from .conftest import DialectProject
from .test_expectations import refresh_counts

pytestmark = pytest.mark.spark

USERS = """
from pyspark import pipelines as dp
from pyspark.sql.functions import expr

EVENTS = "id INT, name STRING, operation STRING, at TIMESTAMP"
KEPT = {"tautochrone.tombstone-retention": "2 days"}

@dp.table
def events():
    return spark.readStream.schema(EVENTS).json("@IN@/events")

for name, ignores_nulls in (("newest", False), ("values", True))[:@TABLES@]:
    dp.create_streaming_table(name, table_properties=KEPT)
    dp.create_auto_cdc_flow(
        target=name,
        source="events",
        keys=["id"],
        sequence_by="at",
        apply_as_deletes=expr("operation = 'delete'"),
        except_column_list=["operation", "at"],
        ignore_null_updates=ignores_nulls,
    )
"""


def define(project: DialectProject, retention: str = "2 days", *, tables: int) -> None:
    project.define("users.py", USERS.replace("2 days", retention).replace("@TABLES@", str(tables)))


def event(id_: int, day: int, name: str | None = None) -> dict[str, Any]:
    """A deletion without a name."""
    operation = "delete" if name is None else "update"
    return {"id": id_, "name": name, "operation": operation, "at": f"2026-03-{day:02d}T00:00:00Z"}


def remembered(project: DialectProject, table: str) -> list[int]:
    """The keys of the state's newest version."""
    rows = project.pipeline.session.table(f"lake._tautochrone.default__{table}__0").select("k0").distinct()
    return sorted(row[0] for row in rows.collect())


def verdict_of(project: DialectProject, table: str) -> verify.Verdict:
    (verdict,) = (verdict for verdict in project.pipeline.verify() if verdict.dataset.table == table)
    return verdict


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "tables", [["newest"], pytest.param(["newest", "values"], marks=pytest.mark.slow)], ids=len
)
def test_late_events_of_forgotten_deletions_are_refused(
    project: DialectProject, monkeypatch: pytest.MonkeyPatch, tables: list[str]
) -> None:
    monkeypatch.setattr(limits, "MAX_STATE_RUNS", 0)
    define(project, tables=len(tables))
    project.json("events/1.json", event(1, 1, "Ana"), event(2, 1, "Bo"), event(1, 2), event(2, 5))
    project.build()
    # The horizon is 3 March: the deletion of 1 is forgotten, that of 2 is not.
    project.json("events/2.json", event(3, 10, "Cy"))
    project.run()
    for table in tables:
        assert remembered(project, table) == [2, 3]
    # Nothing was refused, so all events at once give the same rows, and a difference would be one.
    assert project.verdicts["newest"]
    with monkeypatch.context() as patch:
        patch.setattr(verify, "recompute", lambda *_: (1, 0))
        with pytest.raises(AssertionError, match="equal=False, missing=1"):
            project.pipeline.verify()
    # Now it is 8 March. Without the deletion of 1 this event would bring the row back.
    project.json("events/3.json", event(1, 1, "late"), event(4, 7, "new"), event(5, 8, "Di"))
    happened = project.pipeline.run()
    for table in tables:
        refused = happened.refresh(table)
        assert refused["reason_code"] == "SEVERAL"
        merged, late = refused["reason_params"]["reasons"]
        assert merged["code"] == "EVENTS_MERGED"
        assert late["code"] == "LATE_EVENTS_REFUSED"
        assert late["params"] == {"events": 2, "horizon": "2026-03-08T00:00:00.000000Z"}
        assert refresh_counts(refused) == {"tautochrone.tombstone-retention": (2, 2)}
        assert project.rows(f"SELECT * FROM {table}") == [(3, "Cy"), (5, "Di")]
        assert remembered(project, table) == [3, 5]
    # All events at once would give 4: whoever verifies is told why that is no fault.
    verdict = verdict_of(project, "newest")
    assert verdict.equal is None
    assert "2 events came too late" in (verdict.reason or "")
    # Only late ones: the table keeps its version, and says why.
    project.json("events/4.json", event(6, 2, "late"))
    refused = project.pipeline.run().refresh("newest")
    assert refused["mode"] == "no_data"
    assert refused["reason_params"]["reasons"][1]["params"]["events"] == 1
    assert refresh_counts(refused) == {"tautochrone.tombstone-retention": (3, 1)}
    # A longer retention cannot bring back what is forgotten.
    define(project, "90 days", tables=len(tables))
    project.json("events/5.json", event(1, 1, "late"))
    assert "AUTO_CDC_CHANGED" in project.pipeline.run().failure("newest")
    project.build(full=tables)
    assert [row[0] for row in project.rows("SELECT id FROM newest")] == [3, 4, 5, 6]


def test_retention_needs_times_and_events(project: DialectProject) -> None:
    project.json("events/1.json", event(1, 1, "Ana"))
    wrong = {
        'sequence_by="at"': ('sequence_by="id"', "TOMBSTONE_RETENTION_WITHOUT_TIME"),
        '"2 days"': ('"soon"', "INVALID_TOMBSTONE_RETENTION"),
        "ignore_null_updates=ignores_nulls": ("stored_as_scd_type=2", "TOMBSTONE_RETENTION_NOT_SUPPORTED"),
        "@dp.table\n": ("@dp.table(table_properties=KEPT)\n", "TOMBSTONE_RETENTION_NOT_SUPPORTED"),
    }
    for old, (new, error_class) in wrong.items():
        project.define("users.py", USERS.replace("@TABLES@", "2").replace(old, new))
        with pytest.raises(DefinitionError) as refused:
            project.pipeline.run()
        assert refused.value.error_class == error_class
