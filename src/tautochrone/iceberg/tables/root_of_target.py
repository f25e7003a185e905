"""A table of another target of the project, at one version, as an Iceberg table of this lake.

Only the metadata is this lake's own, with a folder of its own: the snapshots, and so the data files, are
those of the other target, where they are. Whoever writes the table writes here. Iceberg deletes no file of
it, since its metadata says that the files are not its own (`gc.enabled`).

Another version replaces the metadata as a whole, in one commit. Numbers of snapshots stay, so what changed
between two versions is known as of any other table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError

from tautochrone.errors import LakeError
from tautochrone.iceberg.commits.compare_and_set import Loaded, compare_and_set, load
from tautochrone.iceberg.java.api import Iceberg, java_error_class, translate
from tautochrone.model.effects import Effects, Step
from tautochrone.model.moments import now_ms
from tautochrone.model.names import TableName

__all__ = ["ROOT_KEY", "RootOfTarget", "metadata_of_root", "show_root"]

ROOT_KEY = "tautochrone.root-of-target"
"""The property of such a table: which version of which table it is."""
_OWN = {
    "gc.enabled": "false",
    # The metadata files are this lake's own, and each run may write one.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "1",
}
_NOT_TAKEN = ("tautochrone.", "write.", "gc.", "history.")
"""What properties of the other target's table begin with that say where, how and for how long it writes."""


@dataclass(frozen=True, slots=True)
class RootOfTarget:
    """A table of another target at one version.

    Attributes:
        origin: which version of which table it is, as a text that no other one has.
        metadata: Iceberg's JSON, with that version as the current one.
        readable: numbers of all snapshots that the other target still has and that can be read by this
            metadata. Those that the table here has shown stay in it: checkpoints here are over them.
    """

    origin: str
    metadata: Mapping[str, Any] = field(repr=False)
    readable: frozenset[int] = field(default=frozenset(), repr=False)


def show_root(
    iceberg: Iceberg, name: TableName, effects: Effects, root: RootOfTarget, *, exists: bool
) -> None:
    """See `IcebergLake.show_root`."""
    if not exists:
        effects.perform(Step.LAKE_CREATE, str(name), lambda: _create(iceberg, name, root))
    shown = _origin(load(iceberg, name))
    if shown is None:
        raise LakeError(
            "TARGET_ROOT_EXISTS",
            f"{name} is a table of this target itself, and roots_from would replace it by another target's",
            hint="give the target a new storage, or leave out roots_from",
            sqlstate="42P07",
        )
    if shown == root.origin:
        return

    def build(loaded: Loaded) -> Any:
        base = loaded.metadata
        before = json.loads(str(iceberg.api.TableMetadataParser.toJson(base)))
        content = metadata_of_root(root, before, now_ms())
        text = json.dumps(content)
        shown = iceberg.api.TableMetadataParser.fromJson(base.metadataFileLocation(), text)
        # Only a builder notes the metadata file of before, which the next commit deletes.
        builder = iceberg.api.TableMetadata.buildFrom(shown)
        return builder.setProperties(iceberg.map({ROOT_KEY: root.origin})).build()

    compare_and_set(
        iceberg,
        name,
        effects,
        Step.LAKE_FOLLOW,
        build=build,
        done=lambda loaded: _origin(loaded) == root.origin,
    )


def _origin(loaded: Loaded) -> str | None:
    value = loaded.table.properties().get(ROOT_KEY)
    return None if value is None else str(value)


def _create(iceberg: Iceberg, name: TableName, root: RootOfTarget) -> None:
    """An empty table, which gets its metadata by the first commit."""
    schemas = {schema["schema-id"]: schema for schema in root.metadata["schemas"]}
    schema = schemas[root.metadata["current-schema-id"]]
    java_schema = iceberg.api.SchemaParser.fromJson(json.dumps(schema))
    builder = iceberg.catalog().buildTable(iceberg.identifier(name), java_schema)
    try:
        builder.withProperties(iceberg.map({ROOT_KEY: "", **_OWN})).create()
    except Py4JJavaError as error:
        # Another job of the target was faster.
        if not java_error_class(error).endswith("AlreadyExistsException"):
            raise translate(error, name) from error


def metadata_of_root(root: RootOfTarget, before: Mapping[str, Any], at_ms: int) -> dict[str, Any]:
    """The metadata of the table here. Nothing in it leads who writes or deletes files to the other target.

    Args:
        before: the metadata that the table here has now.
        at_ms: now, in epoch milliseconds.
    """
    properties = {
        key: value
        for key, value in (root.metadata.get("properties") or {}).items()
        if not key.startswith(_NOT_TAKEN)
    }
    main = (root.metadata.get("refs") or {}).get("main")
    log = root.metadata.get("snapshot-log") or ()
    snapshots = root.metadata.get("snapshots") or ()
    earlier = root.readable - {snapshot["snapshot-id"] for snapshot in snapshots}
    shown = [snapshot for snapshot in before.get("snapshots") or () if snapshot["snapshot-id"] in earlier]
    return {
        **root.metadata,
        "table-uuid": before["table-uuid"],
        "location": before["location"],
        "snapshots": [*shown, *snapshots],
        "properties": {**properties, **_OWN, ROOT_KEY: root.origin},
        # Iceberg deletes the files that this log loses.
        "metadata-log": [],
        "refs": {} if main is None else {"main": {"snapshot-id": main["snapshot-id"], "type": "branch"}},
        "last-updated-ms": max([at_ms, *(entry["timestamp-ms"] for entry in log)]),
    }
