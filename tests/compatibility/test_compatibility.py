"""Constructs of Spark Declarative Pipelines, run by Spark's own pipelines and by `taut`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from . import taut
from .construct import SAME, Outcome, Table, compare
from .document import DOCUMENT, NOT_RUN, documented_verdicts
from .suite import CHAPTERS, CONSTRUCTS
from .suite.remarks import REMARKS
from .vanilla import vanilla


def test_every_construct_is_documented() -> None:
    verdicts = documented_verdicts(DOCUMENT.read_text("utf-8"))
    guide = {title for title in verdicts if title.startswith("sample ")}
    titles = [construct.title for construct in CONSTRUCTS]
    assert [title for title in verdicts if title not in guide] == titles, (
        "run `python -m tests.compatibility GUIDE`"
    )
    assert len(titles) >= 60
    assert [title for title, count in Counter(titles).items() if count > 1] == []
    assert {c.chapter for c in CONSTRUCTS} | {"guide"} == CHAPTERS.keys()
    unexplained = [
        c.name for c in CONSTRUCTS if verdicts[c.title] not in (*SAME, NOT_RUN) and c.name not in REMARKS
    ]
    assert not unexplained, f"these need a remark: {unexplained}"
    assert not REMARKS.keys() - {c.name for c in CONSTRUCTS} - {"guide"}


def test_outcomes_are_compared_by_rows_and_classes() -> None:
    table = Table.of("struct<x:int>", [(2,), (1,)])
    assert table == Table.of("struct<x:int>", [(1,), (2,)])
    runs, other = Outcome(tables={"a": table}), Outcome(tables={"a": Table.of("struct<x:int>", [(1,)])})
    refused, differently = Outcome(error="Error: [AA.BB] no. SQLSTATE: 1"), Outcome(error="[CC] no")
    assert (refused.error_class, differently.error_class) == ("AA.BB", "CC")
    pairs = [
        (runs, runs),
        (runs, other),
        (refused, refused),
        (refused, differently),
        (refused, runs),
        (runs, refused),
    ]
    assert [compare(*pair) for pair in pairs] == [
        "same rows", "other rows", "same refusal", "both refuse", "only taut runs it", "only Spark runs it",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_constructs_do_as_documented(spark: SparkSession, tmp_path: Path) -> None:
    documented = documented_verdicts(DOCUMENT.read_text("utf-8"))
    verdicts = {}
    with vanilla(tmp_path / "server") as server:
        for construct in CONSTRUCTS:
            theirs = server.run(construct, tmp_path / "vanilla" / construct.name)
            ours = taut.run(construct, tmp_path / "taut" / construct.name, spark)
            verdicts[construct.title] = compare(theirs, ours)
    expected = {title: documented[title] for title in verdicts if documented[title] != NOT_RUN}
    assert {title: verdicts[title] for title in expected} == expected
