"""One view fails: its siblings go on, what is downstream waits, and all catch up after a repair."""

from __future__ import annotations

import pytest
from tests.support.harness import Pipeline

from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, decode

from .conftest import ExternalWriter

pytestmark = pytest.mark.spark

VIEWS = """
CREATE MATERIALIZED VIEW shares AS SELECT id, 100 DIV amount AS share FROM raw.orders;
CREATE MATERIALIZED VIEW best AS SELECT max(share) AS best FROM shares;
CREATE MATERIALIZED VIEW numbers AS SELECT id, CAST(kind AS INT) AS number FROM raw.others;
CREATE MATERIALIZED VIEW ids AS SELECT id FROM raw.orders;
"""


@pytest.fixture
def failing(pipeline: Pipeline, writer: ExternalWriter) -> Pipeline:
    """`shares` cannot divide by zero, `numbers` cannot cast `x`."""
    pipeline.write("definitions/views.sql", VIEWS)
    writer.table("others").overwrite(writer.rows((1, "11", 1)))
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    writer.append((4, "b", 0))
    writer.table("others").append(writer.rows((2, "x", 1)))
    return pipeline


def test_siblings_go_on(failing: Pipeline, writer: ExternalWriter) -> None:
    happened = failing.run()
    assert happened.state == "FAILED"
    shares, numbers = happened.failure("shares"), happened.failure("numbers")
    assert shares.startswith("[DIVIDE_BY_ZERO] lake.default.shares")
    assert numbers.startswith("[CAST_INVALID_INPUT] lake.default.numbers")
    assert "definitions/views.sql:" in shares
    assert happened.failure("best") == f"waits for lake.default.shares: {shares}"
    for text in (shares, numbers):
        assert "\n" not in text
        assert "org.apache" not in text
    assert happened.mode("ids")[0] == "append"
    assert happened.of("checkpoint")[-1]["failed"] == [
        "lake.default.best",
        "lake.default.numbers",
        "lake.default.shares",
    ]
    # The checkpoint is published for the views that have it. Strong reads stay at the last checkpoint of
    # all related datasets, so that separate queries agree. `only_named` considers the named
    # tables alone.
    assert failing.query("SELECT count(*) FROM ids") == [(3,)]
    assert failing.query("SELECT count(*) FROM shares JOIN ids USING (id)", only_named=True) == [(3,)]
    assert failing.query("SELECT count(*) FROM ids", only_named=True) == [(4,)]
    assert failing.query("SELECT count(*) FROM ids", checkpoint=1) == [(3,)]
    assert failing.query("SELECT count(*) FROM shares", checkpoint=1) == [(3,)]

    # Data repaired: both catch up from where they were, in one step.
    writer.table().delete("amount = 0")
    writer.append((5, "b", 1))
    writer.table("others").delete("kind = 'x'")
    happened = failing.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    failing.verify()
    assert failing.query("SELECT best FROM best") == [(100,)]
    assert failing.query("SELECT id, number FROM numbers") == [(1, 11)]


@pytest.mark.slow
def test_definition_repaired(failing: Pipeline, writer: ExternalWriter) -> None:
    assert failing.run().state == "FAILED"
    # Without new data it is tried once a run, because the cause may be gone.
    failing.write(
        "definitions/views.sql",
        VIEWS.replace("100 DIV amount", "try_divide(100, amount)").replace("CAST", "TRY_CAST"),
    )
    happened = failing.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    assert happened.mode("shares") == ("full", "the definition changed: its query")
    failing.verify()
    assert failing.query("SELECT id, number FROM numbers") == [(1, 11), (2, None)]
    writer.append((6, "b", 2))
    happened = failing.run()
    assert happened.mode("shares")[0] == "append"
    failing.verify()


def test_commit_metadata_belongs_to_its_own_table(pipeline: Pipeline, writer: ExternalWriter) -> None:
    """Views that are refreshed at the same time: each commit says what belongs to its own table."""
    count = 4
    pipeline.write(
        "definitions/views.sql",
        "".join(
            f"CREATE MATERIALIZED VIEW v{n} AS SELECT id + {n} AS id FROM raw.{source};\n"
            for n in range(count)
            for source in [("orders", "others")[n % 2]]
        ),
    )
    pipeline.run()
    writer.append((10, "p", 1))
    writer.table("others").append(writer.rows((10, "p", 1)))
    assert pipeline.run().state == "COMPLETED"
    pipeline.verify()
    job = pipeline.job
    for n in range(count):
        table = next(name for name in job.topology.derived_tables if name.table == f"v{n}")
        source = ("lake.raw.orders", "lake.raw.others")[n % 2]
        rows = pipeline.session.sql(f"SELECT summary FROM {table.sql}.snapshots").collect()
        metadata = [decode(row.summary[COMMIT_METADATA_KEY]) for row in rows]
        commits = [
            commit_metadata
            for commit_metadata in metadata
            if commit_metadata is not None and commit_metadata.checkpoint is not None
        ]
        assert [commit_metadata.checkpoint for commit_metadata in commits] == [1, 2]
        for commit_metadata in commits:
            assert commit_metadata.definition == job.topology.fingerprint(table)
            assert set(commit_metadata.inputs) == {source}
            checkpoint = job.store.checkpoints.get(int(commit_metadata.checkpoint or 0))
            assert commit_metadata.inputs[source] == {str(k): v for k, v in checkpoint.roots.items()}[source]
