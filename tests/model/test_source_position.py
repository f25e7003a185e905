"""Versions of snapshots: their types, their texts and their order."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tautochrone.errors import IngestError
from tautochrone.iceberg.commits.metadata import decode, encode
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import Fence
from tautochrone.model.source_position import position_of_version, require_later, version_at

NAIVE = datetime(2026, 1, 5, 7, 30, 0, 5)  # noqa: DTZ001 (functions return such times)


class NumpyInteger:
    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("version", "kind", "read"),
    [
        (0, "bigint", 0),
        (-(2**63), "bigint", -(2**63)),
        (NumpyInteger(), "bigint", 7),
        ("", "string", ""),
        ("2026-01-05 07", "string", "2026-01-05 07"),
        (1.5, "double", 1.5),
        (date(2026, 1, 5), "date", date(2026, 1, 5)),
        (NAIVE, "timestamp", NAIVE),
        (datetime(2026, 1, 5, tzinfo=UTC), "timestamp", datetime(2026, 1, 5, tzinfo=UTC)),
        (Decimal("1.50"), "decimal(38,18)", Decimal("1.50")),
    ],
)
def test_version_survives_a_commit(version: Any, kind: str, read: Any) -> None:
    position = position_of_version(version, "f")
    metadata = CommitMetadata(pipeline="p", job="j", fence=Fence(1), store="s", positions={"f": position})
    decoded = decode(encode(metadata))
    assert decoded is not None
    assert decoded.positions == {"f": position}
    assert position.version_type == kind
    assert version_at(position) == read
    assert type(version_at(position)) is type(read)


@pytest.mark.parametrize(
    "version",
    [None, True, 2**63, float("nan"), float("inf"), Decimal(10**20), Decimal("1e-19"), (1, 2), b"1"],
)
def test_other_versions_are_refused(version: Any) -> None:
    with pytest.raises(IngestError) as caught:
        position_of_version(version, "customers")
    assert caught.value.error_class == "AUTO_CDC_SNAPSHOT_VERSION_TYPE"
    assert "customers" in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "error_class"),
    [
        (9, 10, None),
        ("9", "10", "AUTO_CDC_SNAPSHOT_VERSION_ORDER"),
        (2, 2, "AUTO_CDC_SNAPSHOT_VERSION_ORDER"),
        (2, 1, "AUTO_CDC_SNAPSHOT_VERSION_ORDER"),
        (2, "3", "AUTO_CDC_SNAPSHOT_VERSION_TYPE"),
        (date(2026, 1, 5), NAIVE, "AUTO_CDC_SNAPSHOT_VERSION_TYPE"),
        (NAIVE, datetime(2027, 1, 5, tzinfo=UTC), "AUTO_CDC_SNAPSHOT_VERSION_TYPE"),
        (date(2026, 1, 5), date(2026, 1, 6), None),
    ],
)
def test_version_follows_the_newest(old: Any, new: Any, error_class: str | None) -> None:
    positions = position_of_version(new, "f"), position_of_version(old, "f")
    if error_class is None:
        require_later(*positions, "f")
        return
    with pytest.raises(IngestError) as caught:
        require_later(*positions, "f")
    assert caught.value.error_class == error_class
    assert caught.value.hint
