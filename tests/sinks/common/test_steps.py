"""What each step of a transaction refuses, and the digests by which contents are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from tautochrone.errors import SinkContentError, SinkError, SinkFencedError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.sink import Digest, RowDifference, SentChunk
from tautochrone.sinks.common.steps import (
    differing_rows,
    require_fence,
    require_same_content,
    require_visible,
    signed_frames,
    total_digest,
)
from tautochrone.testing.sink_conformance import ORDERS
from tautochrone.testing.sqlite_sink import ListRows

SENT = [SentChunk(table=ORDERS, number=number, digest=Digest(2, str(number))) for number in (0, 1)]


def test_an_older_owner_is_refused() -> None:
    require_fence("mirror", Fence(3), Fence(3))
    with pytest.raises(SinkFencedError):
        require_fence("mirror", Fence(2), Fence(3))


@pytest.mark.parametrize("visible", [None, CheckpointNumber(6), CheckpointNumber(8)])
def test_only_the_visible_checkpoint_is_audited(visible: CheckpointNumber | None) -> None:
    require_visible("mirror", CheckpointNumber(7), CheckpointNumber(7))
    with pytest.raises(SinkError) as refused:
        require_visible("mirror", visible, CheckpointNumber(7))
    assert refused.value.error_class == "SINK_CHECKPOINT_GONE"


@pytest.mark.parametrize(
    "arrived",
    [
        {0: Digest(2, "0")},
        {0: Digest(2, "0"), 1: Digest(2, "2")},
        {0: Digest(2, "0"), 1: Digest(2, "1"), 2: Digest(1, "1")},
    ],
)
def test_chunks_that_lack_differ_or_were_not_sent_are_refused(arrived: Mapping[int, Digest]) -> None:
    require_same_content("mirror", SENT, {(ORDERS, chunk.number): chunk.digest for chunk in SENT})
    with pytest.raises(SinkContentError):
        require_same_content("mirror", SENT, {(ORDERS, number): digest for number, digest in arrived.items()})


def test_digests_do_not_depend_on_order_and_cancel() -> None:
    assert total_digest([(5, 1), (7, 1), (5, -1)]) == total_digest([(7, 1)]) == {"": Digest(1, f"{7:016x}")}
    assert total_digest([(5, 1), (5, -1)]) == total_digest([]) == {}


def test_rows_that_went_come_before_those_that_came() -> None:
    removed, added = ListRows(["id"], [(1,)]), ListRows(["id"], [(2,)])
    assert signed_frames(RowChange(removed=removed, added=added)) == [(removed, -1), (added, 1)]
    assert signed_frames(RowChange(removed=None, added=added)) == [(added, 1)]


def test_differing_rows_are_counted_on_both_sides() -> None:
    differences = differing_rows(Counter("aab"), Counter("abbc"), limit=2)
    assert differences == [
        RowDifference(row="a", in_sink=2, in_lake=1),
        RowDifference(row="b", in_sink=1, in_lake=2),
    ]
