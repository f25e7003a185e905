"""Names in older commits: each rename concerns the commits before it, and no later ones."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.iceberg.commits.metadata import carry_forward, decode, encode, snapshot_metadata
from tautochrone.iceberg.reads.reading import companions_at
from tautochrone.model.former_names import renamed, with_current_names
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import Fence, TableName, Version

A, B = "lake.db.a", "lake.db.b"


def refresh(inputs: Mapping[str, str]) -> CommitMetadata:
    """As of a view with its states, which go by the same names here."""
    return CommitMetadata(
        pipeline="p", job="p", fence=Fence(1), store="s", mode="full", inputs=inputs, companions=inputs
    )


class Table:
    """Its newest commit metadata, and that of each snapshot."""

    def __init__(self) -> None:
        self.newest: CommitMetadata | None = None
        self.snapshots: list[CommitMetadata] = []

    def commit(self, metadata: CommitMetadata) -> None:
        stored = decode(encode(snapshot_metadata(self.newest, metadata)))
        assert stored is not None
        self.snapshots.append(stored)
        self.newest = decode(encode(carry_forward(self.newest, metadata)))

    def rename(self, old: str, new: str) -> None:
        """What `taut rename` does, dies, and does again."""
        for _ in range(2):
            assert self.newest is not None
            named = renamed(self.newest, {old: new})
            self.newest = carry_forward(self.newest, CommitMetadata(**{**as_fields(named), "reset": True}))

    def read_back(self) -> list[Mapping[str, str]]:
        assert self.newest is not None
        return [dict(with_current_names(each, self.newest.renames).inputs) for each in self.snapshots]


def as_fields(metadata: CommitMetadata) -> dict[str, object]:
    return {name: getattr(metadata, name) for name in CommitMetadata.__slots__}


def test_a_name_that_comes_back() -> None:
    table = Table()
    table.commit(refresh({A: "1"}))
    table.rename(A, B)
    table.commit(refresh({B: "2"}))
    table.rename(B, A)
    table.commit(refresh({A: "3"}))
    assert table.read_back() == [{A: "1"}, {A: "2"}, {A: "3"}]
    assert table.newest is not None
    assert len(table.newest.renames) == 2


def test_a_new_table_of_the_former_name() -> None:
    table = Table()
    table.commit(refresh({A: "1"}))
    table.rename(A, B)
    table.commit(refresh({A: "first", B: "2"}))
    assert table.read_back() == [{B: "1"}, {A: "first", B: "2"}]
    # The former name is given away once more, while nothing of the first rename is left in the newest commit.
    table.commit(refresh({A: "second"}))
    table.rename(A, B)
    assert table.read_back()[-1] == {B: "second"}


def test_a_reset_knows_the_renames_before_it() -> None:
    table = Table()
    table.commit(refresh({A: "1"}))
    table.rename(A, B)
    table.commit(CommitMetadata(**{**as_fields(refresh({A: "first", B: "2"})), "reset": True}))
    assert table.read_back() == [{B: "1"}, {A: "first", B: "2"}]


def test_versions_of_states_are_retained_under_their_current_names() -> None:
    table = Table()
    for old, new, inputs in ((A, B, {A: "1"}), (B, A, {B: "2"})):
        table.commit(refresh(inputs))
        table.rename(old, new)
    assert table.newest is not None
    snapshots = [
        {"snapshot-id": number, "summary": {"tautochrone.note": encode(each)}}
        for number, each in enumerate(table.snapshots, start=1)
    ]
    metadata = {"snapshots": snapshots, "properties": {"tautochrone.note": encode(table.newest)}}
    retained = companions_at(metadata, [Version("1"), Version("2")])
    assert retained == {TableName.parse(A): {"1", "2"}}
