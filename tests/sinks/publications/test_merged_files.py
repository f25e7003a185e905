"""Small files that were merged are no change to those who read the changes of a Delta table."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects

from tautochrone.model.effects import Step
from tautochrone.runtime.loop.takeover import take_over
from tautochrone.runtime.maintenance.maintain import Maintenance

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.sinks.publications.test_publication import SETTINGS, Published


def actions(published: Published, kind: str, version: int) -> list[dict[str, Any]]:
    path = published.folder / "delta/default/orders/_delta_log" / f"{version:020d}.json"
    lines = map(json.loads, path.read_text().splitlines())
    return [line[kind] for line in lines if kind in line]


def added_rows(published: Published, version: int) -> dict[bool, int]:
    """Of the files of a version, by whether their rows are new."""
    rows = {True: 0, False: 0}
    for add in actions(published, "add", version):
        rows[add["dataChange"]] += json.loads(add["stats"])["numRecords"]
    return rows


def test_merged_files_beside_new_rows(tmp_path: Path, spark: SparkSession) -> None:
    published = Published(tmp_path, spark, SETTINGS + "[maintenance]\nenabled = false\nmin_files = 2\n")
    for number in range(3):
        published.add((number, "a", 1.0), (number + 10, "b", 2.0))
        published.run()
    # A batch that is in no checkpoint when files are merged.
    published.add((3, "c", 1.0))
    effects = StrikingEffects(Strike(Step.META_OPEN, "before", "crash"))
    with published.pipeline.opened(effects) as (job, _), contextlib.suppress(Crash):
        published.pipeline.execute(job)
    assert effects.struck
    with published.pipeline.opened() as (job, happened):
        take_over(job)
        Maintenance(job).run()
    (merged,) = [event for event in happened.of("compacted") if event["dataset"].endswith(".orders")]
    assert (merged["files_before"], merged["files_after"]) == (3, 1)
    published.add((4, "d", 1.0))
    published.run()
    version = int(published.versions()[max(published.versions())]["orders"])
    assert added_rows(published, version) == {False: 6, True: 2}
    removes = actions(published, "remove", version)
    assert len(removes) == 3
    assert not any(remove["dataChange"] for remove in removes)
    published.check(last=1)
    published.pipeline.close()
