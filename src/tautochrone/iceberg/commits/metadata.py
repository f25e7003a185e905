"""Stores `CommitMetadata` as JSON under one key of Iceberg's metadata.

The key is used in two places. A snapshot's summary describes that commit and what its rows were made from.
The table's properties hold the newest commit metadata with the positions of *all* flows carried forward. So
both survive the expiry of older snapshots.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from tautochrone.model.former_names import with_renames
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import CheckpointNumber, Fence, Version
from tautochrone.model.source_position import (
    BulkProgress,
    LogPosition,
    SnapshotPosition,
    SourcePosition,
    SparkPosition,
)

__all__ = ["COMMIT_METADATA_KEY", "carry_forward", "decode", "encode", "snapshot_metadata"]

COMMIT_METADATA_KEY = "tautochrone.note"


def encode(commit_metadata: CommitMetadata) -> str:
    """JSON with sorted keys and without the fields that are empty."""
    data = asdict(commit_metadata)
    data["positions"] = {
        flow: _position_fields(position) for flow, position in commit_metadata.positions.items()
    }
    return json.dumps(
        {key: value for key, value in data.items() if value not in (None, {}, (), False)},
        sort_keys=True,
        separators=(",", ":"),
    )


def decode(text: str | None) -> CommitMetadata | None:
    """The inverse of `encode`; None for tables and commits that are not ours."""
    if text is None:
        return None
    data: dict[str, Any] = json.loads(text)
    positions = {flow: _position(fields) for flow, fields in data.get("positions", {}).items()}
    checkpoint = data.get("checkpoint")
    return CommitMetadata(
        pipeline=data["pipeline"],
        job=data["job"],
        fence=Fence(data["fence"]),
        store=data["store"],
        checkpoint=None if checkpoint is None else CheckpointNumber(checkpoint),
        mode=data.get("mode"),
        definition=data.get("definition"),
        positions=positions,
        inputs=_strings(data.get("inputs")),
        companions=_strings(data.get("companions")),
        violations={str(name): int(count) for name, count in data.get("violations", {}).items()},
        reset=data.get("reset", False),
        run=data.get("run"),
        runs=data.get("runs"),
        shortened=tuple(data.get("shortened", ())),
        revoked=tuple((int(start), int(end)) for start, end in data.get("revoked", ())),
        renames=tuple(map(_strings, data.get("renames", ()))),
        built=None if data.get("built") is None else Version(data["built"]),
    )


def carry_forward(old: CommitMetadata | None, new: CommitMetadata) -> CommitMetadata:
    """The commit metadata for the table's properties after a commit: `new`, completed by fields of `old`.

    A commit that is not a refresh (a fence, positions only) says nothing about checkpoint, inputs or
    definition; then the older ones still describe the table's rows.
    """
    if old is None:
        return replace(new, reset=False)
    # Revoked checkpoints stay revoked, run numbers of a state are never reused, and older commits have the
    # names of then, even after a reset.
    revoked = tuple(sorted({*old.revoked, *new.revoked}))
    run = old.run if new.run is None else new.run
    new = replace(with_renames(old, new), revoked=revoked, run=run)
    if new.reset:
        return replace(new, reset=False)
    merged = replace(
        new,
        positions={**old.positions, **new.positions},
        shortened=_shortened_relations(old, new),
        definition=new.definition or old.definition,
        violations=new.violations or old.violations,
    )
    if new.mode is None or new.checkpoint is None:
        merged = replace(
            merged,
            checkpoint=new.checkpoint if new.checkpoint is not None else old.checkpoint,
            inputs=new.inputs or old.inputs,
            companions=new.companions or old.companions,
            mode=new.mode or old.mode,
            runs=old.runs if new.runs is None else new.runs,
        )
    return merged


def snapshot_metadata(old: CommitMetadata | None, new: CommitMetadata) -> CommitMetadata:
    """The commit metadata for a snapshot, so that the table can be rolled back to it after older ones are
    expired: with the positions of all flows, what was dropped of a log, and the renames until then.

    A commit that is no refresh (a fence, a compaction) leaves the rows as they are, and also says from which
    inputs and companions they were made. It has no checkpoint: no refresh brought the table to one there.
    """
    new = with_renames(old, new)
    if old is None or new.reset:
        return new
    new = replace(new, positions={**old.positions, **new.positions}, shortened=_shortened_relations(old, new))
    if new.mode is not None or old.mode is None:
        return new
    return replace(
        new,
        mode=old.mode,
        definition=new.definition or old.definition,
        inputs=new.inputs or old.inputs,
        companions=new.companions or old.companions,
        violations=new.violations or old.violations,
    )


def _shortened_relations(old: CommitMetadata, new: CommitMetadata) -> tuple[str, ...]:
    """Relations of which the log lacks rows: a copy of all rows of one makes it whole again."""
    whole = {
        relation
        for flow, position in new.positions.items()
        if isinstance(position, LogPosition) and isinstance(before := old.positions.get(flow), LogPosition)
        for relation in position.copied_since(before)
    }
    return tuple(sorted(({*old.shortened} - whole) | {*new.shortened}))


def _position_fields(position: SourcePosition) -> dict[str, Any]:
    """The position as JSON fields. A log position has the field `point`, that of snapshots `version_type`, a
    position of Spark neither."""
    fields = asdict(position)
    if isinstance(position, SnapshotPosition):
        return fields
    is_spark = isinstance(position, SparkPosition)
    optional = ("topics", "sources") if is_spark else ("marker", "bulk", "source_ms")
    if isinstance(position, LogPosition):
        fields["bulk"] = {key: value for key, value in fields["bulk"].items() if value}
    return {key: value for key, value in fields.items() if value or key not in optional}


def _position(fields: Mapping[str, Any]) -> SourcePosition:
    if "version_type" in fields:
        return SnapshotPosition(**fields)
    if "point" not in fields:
        return SparkPosition(**{**fields, "source_files": tuple(fields["source_files"])})
    bulk = fields.get("bulk", {})
    return LogPosition(
        log=fields["log"],
        point=fields["point"],
        marker=fields.get("marker", {}),
        bulk=BulkProgress(
            pending={relation: tuple(chunks) for relation, chunks in bulk.get("pending", {}).items()},
            pass_at=bulk.get("pass_at", {}),
            done=bulk.get("done", {}),
            partial=tuple(bulk.get("partial", ())),
            in_files=bulk.get("in_files", {}),
        ),
        source_ms=fields.get("source_ms"),
    )


def _strings(value: Mapping[str, str] | None) -> dict[str, str]:
    return dict(value or {})
