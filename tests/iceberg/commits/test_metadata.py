"""What a commit says survives it: positions of flows with all that they have."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tautochrone.iceberg.commits.metadata import carry_forward, decode, encode, snapshot_metadata
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.source_position import BulkProgress, LogPosition, SourcePosition, SparkPosition

BULK = BulkProgress(
    pending={"public.cards": ("1", "2")},
    pass_at={"public.cards": 11, "public.accounts": 7},
    done={"public.cards": 3},
    partial=("public.accounts", "public.cards"),
    in_files={"public.cards": 1_700_000_000_000},
)
LOG = LogPosition(
    log="system/5/slot",
    point=7,
    marker={"public.accounts": "a/b", "public.cards": "", ".fewest.public.accounts": "3"},
    bulk=BULK,
    source_ms=12,
)
SPARK = SparkPosition(
    query_id="q",
    batch_id=3,
    offsets="v1",
    commit="v1",
    source_files=("f1", "f2"),
    stateful=True,
    topics={"0": {"orders": "id"}},
    sources={"0": "topic orders"},
)


def metadata_with(position: SourcePosition) -> CommitMetadata:
    return CommitMetadata(pipeline="p", job="j", fence=Fence(1), store="s", positions={"f": position})


@pytest.mark.parametrize(
    "position",
    [
        LOG,
        LogPosition(log="db", point=0),
        LogPosition(log="db", point=7, bulk=BulkProgress(pass_at={"a": 7}, partial=("a",))),
        SPARK,
        SparkPosition(query_id="q", batch_id=0, offsets="", commit=""),
    ],
)
def test_positions_survive_a_commit(position: SourcePosition) -> None:
    decoded = decode(encode(metadata_with(position)))
    assert decoded is not None
    assert decoded.positions == {"f": position}


@pytest.mark.parametrize("value", [LOG, BULK, SPARK])
def test_the_examples_have_a_value_in_every_field(value: object) -> None:
    """Otherwise a field that is lost would not be noticed."""
    assert all(getattr(value, field.name) for field in fields(value))  # type: ignore[arg-type]


def test_a_relation_that_only_got_columns_makes_no_shortened_log_whole() -> None:
    """Nothing of it was copied, so its old changes are still missing."""
    before = LogPosition(log="db", point=7, marker={"a": "", "b": ""}, bulk=BulkProgress(pass_at={"b": 9}))
    widened = BulkProgress(pass_at={"a": 9, "b": 9}, partial=("a",))
    shortened = CommitMetadata(
        pipeline="p", job="j", fence=Fence(1), store="s", positions={"f": before}, shortened=("a", "b")
    )
    # Through the text of each commit, as a run that was killed in between reads it.
    between = carry_forward(
        shortened, metadata_with(LogPosition(log="db", point=7, marker=before.marker, bulk=widened))
    )
    read = decode(encode(between))
    assert read is not None
    after = carry_forward(read, metadata_with(LogPosition(log="db", point=9, marker=before.marker)))
    assert after.shortened == ("a",)


def test_a_fence_says_what_the_rows_were_made_from() -> None:
    """The snapshot of the refresh may be expired when the table goes back to one of the fence."""
    refresh = CommitMetadata(
        pipeline="p",
        job="j",
        fence=Fence(1),
        store="s",
        checkpoint=CheckpointNumber(4),
        mode="incremental",
        definition="d",
        positions={"f": SPARK},
        inputs={"lake.a.b": "7"},
        companions={"lake.a.state": "9"},
        violations={"positive": 2},
    )
    fence = snapshot_metadata(refresh, CommitMetadata(pipeline="p", job="j", fence=Fence(2), store="s"))
    assert fence == replace(refresh, fence=Fence(2), checkpoint=None)
    assert carry_forward(refresh, fence) == replace(refresh, fence=Fence(2))
    root = metadata_with(SPARK)
    assert snapshot_metadata(root, metadata_with(SPARK)).mode is None
