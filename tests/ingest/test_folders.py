"""Each owner has a checkpoint folder of its own: what it takes over from older ones, and what it leaves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tautochrone.ingest.checkpoint_folder import CheckpointFolder, Files, FlowCheckpointFolders, FolderName
from tautochrone.ingest.folder_decision import FolderAction, FolderTakeover, compare_folder, take_over_folder
from tautochrone.model.source_position import SparkPosition

OFFSETS = "v1\n{}\n7"


class Memory:
    """`ingest.checkpoint_folder.Files` without a file system."""

    def __init__(self, *, renames: bool = True) -> None:
        self.content: dict[str, tuple[int, str]] = {}
        self.renames = renames
        self.renamed: list[str] = []
        self._clock = count(1)

    def read(self, path: str) -> str | None:
        return self.content[path][1] if path in self.content else None

    def write(self, path: str, text: str) -> None:
        self.content[path] = (next(self._clock), text)

    def delete(self, path: str) -> None:
        for name in self._below(path):
            del self.content[name]

    def exists(self, path: str) -> bool:
        return bool(self._below(path))

    def is_empty(self, path: str) -> bool:
        return not self.exists(path)

    def renames_whole(self, _path: str) -> bool:
        return self.renames

    def rename(self, path: str, to: str) -> None:
        if not self.exists(path):
            raise FileNotFoundError(path)
        self.renamed.append(path)
        for name in self._below(path):
            self.content[to + name.removeprefix(path)] = self.content.pop(name)

    def copy(self, path: str, to: str, names: Iterable[str]) -> None:
        for name in names:
            self.write(f"{to}/{name}", self.content[f"{path}/{name}"][1])

    def names(self, path: str) -> list[str]:
        return sorted({name.removeprefix(f"{path}/").split("/")[0] for name in self._below(path)})

    def stamps(self, path: str) -> dict[str, tuple[int, int]]:
        below = self._below(path)
        return {n.removeprefix(f"{path}/"): (self.content[n][0], len(self.content[n][1])) for n in below}

    def _below(self, path: str) -> list[str]:
        return [name for name in self.content if name == path or name.startswith(f"{path}/")]


@pytest.fixture
def files() -> Memory:
    return Memory()


def folders(files: Any, fence: int, token: str = "a", *, fresh: bool = False) -> FlowCheckpointFolders:
    return FlowCheckpointFolders(files, "f", "p", fence=fence, token=token, fresh=fresh)


def query(files: Memory, folder: str, *, batch: int = 7, finished: bool = True, query_id: str = "q") -> None:
    """What a stateful query leaves after `batch`."""
    files.write(f"{folder}/metadata", json.dumps({"id": query_id}))
    files.write(f"{folder}/sources/0/{batch}", f"files of batch {batch}")
    files.write(f"{folder}/state/0/0/{batch + 1}.delta", f"state of {folder}")
    files.write(f"{folder}/offsets/{batch}", OFFSETS)
    if finished:
        files.write(f"{folder}/commits/{batch}", "v1\n{}")


def archived_position(files: Memory, *, stateful: bool = True) -> SparkPosition:
    """The position of batch 7, with its source files in the archive."""
    files.write("p/0/7.json", json.dumps({"0/7": "files of batch 7"}))
    return SparkPosition(
        query_id="q",
        batch_id=7,
        offsets=OFFSETS,
        commit="v1\n{}",
        source_files=("7.json",),
        stateful=stateful,
    )


def take_over(
    files: Memory, position: SparkPosition | None, fence: int = 6, *, stateful: bool = True
) -> FolderTakeover:
    """Take over the folder of an older owner, as the owner with this fence."""
    flow_folders = folders(files, fence)
    takeover = take_over_folder(flow_folders.own, flow_folders.older(), position, stateful=stateful)
    if takeover.make is not None:
        takeover.make()
    return takeover


def test_folder_names_round_trip() -> None:
    assert [str(FolderName.parse(name)) for name in ("0", "2-13-0a4f")] == ["0", "2-13-0a4f"]
    assert [FolderName.parse(name) for name in ("x", "0-1", "0-1-", "0-1-A", ".0")] == [None] * 5


def test_older_folders_are_listed_newest_first(files: Memory) -> None:
    for name in ("0", "0-4-x", "0-10-x", "0-11-other", "0-12-x", "1-3-x", "notes"):
        query(files, f"f/{name}")
    flow_folders = FlowCheckpointFolders(files, "f", "p", fence=11, token="a")  # type: ignore[arg-type]
    assert flow_folders.own.path == "f/1-11-a"
    assert [folder.path for folder in flow_folders.older()] == ["f/1-3-x"]
    files.delete("f/1-3-x")
    flow_folders = folders(files, 11)
    assert [folder.path for folder in flow_folders.older()] == ["f/0-10-x", "f/0-4-x", "f/0"]
    assert flow_folders.has_leftovers
    flow_folders.delete_leftovers()
    assert not flow_folders.has_leftovers
    assert files.names("f") == ["0-11-other", "0-12-x", "notes"]
    assert flow_folders.highest_fence() == 12


def test_full_refresh_begins_a_generation_above_every_archive(files: Memory) -> None:
    assert folders(files, 1).own.path == "f/0-1-a"
    assert folders(files, 1, fresh=True).own.path == "f/0-1-a"
    files.write("p/2/1.json", "{}")
    assert folders(files, 1).own.archive == "p/2"
    assert folders(files, 1, fresh=True).own.path == "f/3-1-a"


def test_full_refresh_deletes_older_generations(files: Memory) -> None:
    query(files, "f/0-5-z")
    fresh = folders(files, 6, fresh=True)
    assert not fresh.older()
    fresh.delete_leftovers()
    assert files.names("f") == []


def test_state_is_moved_and_never_shared(files: Memory) -> None:
    query(files, "f/0-5-z")
    position = archived_position(files)
    assert take_over(files, position).decision.action is FolderAction.TAKE
    assert files.renamed == ["f/0-5-z"]
    assert files.read("f/0-6-a/state/0/0/8.delta") == "state of f/0-5-z"
    assert compare_folder(position, folders(files, 6).own.state(), OFFSETS).action is FolderAction.KEEP
    # The older owner wakes up and runs a batch in the path that its folder had.
    files.write("f/0-5-z/offsets/8", OFFSETS)
    files.write("f/0-5-z/state/0/0/9.delta", "of other rows")
    assert take_over(files, position, 7).decision.action is FolderAction.TAKE
    assert files.read("f/0-7-a/state/0/0/9.delta") is None


def test_state_of_a_folder_without_owner_is_taken_over(files: Memory) -> None:
    query(files, "f/0")
    assert take_over(files, archived_position(files)).decision.action is FolderAction.TAKE
    assert files.names("f") == ["0-6-a"]


@pytest.mark.parametrize("killed_after", range(6))
def test_copied_state_is_reported_and_used_only_when_complete(killed_after: int) -> None:
    files = Memory(renames=False)
    query(files, "f/0-5-z")
    position = archived_position(files)
    takeover = take_over(files, position)
    assert takeover.decision.action is FolderAction.COPY
    assert "5 files" in str(takeover.decision.reason)
    assert "f/0-5-z" in str(takeover.decision.reason)
    copied = sorted(files.stamps("f/0-6-a").items(), key=lambda item: item[1][0])
    for name, _ in copied[killed_after:]:
        files.delete(f"f/0-6-a/{name}")
    source = "f/0-6-a" if killed_after >= len(copied) else "f/0-5-z"
    assert source in str(take_over(files, position, 7).decision.reason)
    assert files.read("f/0-7-a/state/0/0/8.delta") == "state of f/0-5-z"


@pytest.mark.parametrize(
    "spoiled",
    [
        {"f/0-5-z/metadata": '{"id": "other"}'},
        {"f/0-5-z/offsets/7": "v1\n{}\n8"},
        {"f/0-5-z/offsets/7": None},
        {"f/0-5-z/state": None},
        {"f/0-5-z": None},
    ],
)
def test_state_of_other_rows_is_not_taken_over(files: Memory, spoiled: dict[str, str | None]) -> None:
    query(files, "f/0-5-z")
    query(files, "f/0-4-z", batch=6)
    for path, text in spoiled.items():
        if text is None:
            files.delete(path)
        else:
            files.write(path, text)
    before = dict(files.content)
    takeover = take_over(files, archived_position(files))
    assert takeover.lost
    assert takeover.decision.reason or not files.exists("f/0-5-z/state")
    assert before.items() <= files.content.items()


def test_committed_batch_runs_again_for_its_state(files: Memory) -> None:
    query(files, "f/0-5-z", finished=False)
    query(files, "f/0-5-z", batch=6)
    files.write("f/0-5-z/offsets/7", OFFSETS)
    files.delete("f/0-5-z/state/0/0/8.delta")
    assert take_over(files, archived_position(files)).decision.action is FolderAction.TAKE


def test_stateless_folder_is_written_anew_and_the_older_one_kept(files: Memory) -> None:
    query(files, "f/0-5-z")
    position = archived_position(files, stateful=False)
    before = dict(files.content)
    takeover = take_over(files, position, stateful=False)
    assert (takeover.decision.action, takeover.decision.reason) == (FolderAction.REWRITE, None)
    assert before.items() <= files.content.items()
    assert compare_folder(position, folders(files, 6).own.state(), OFFSETS).action is FolderAction.KEEP
    assert files.read("f/0-6-a/sources/0/7") == "files of batch 7"
    files.write("f/0-6-a/offsets/9", OFFSETS)
    assert "ahead" in str(take_over(files, position, 7, stateful=False).decision.reason)


@pytest.mark.parametrize("planned", [True, False])
def test_takeover_before_the_first_batch_keeps_the_beginning(files: Memory, planned: bool) -> None:
    files.write("f/0-5-z/metadata", '{"id": "q"}')
    files.write("f/0-5-z/sources/0/0", "the newest at that time")
    files.write("f/0-5-z/offsets/0" if planned else "f/0-5-z/offsets/half", OFFSETS)
    takeover = take_over(files, None)
    assert takeover.decision.action is (FolderAction.KEEP if planned else FolderAction.SWEEP)
    own = folders(files, 6).own
    assert own.query_id == "q"
    assert files.read("f/0-6-a/sources/0/0") == "the newest at that time"
    assert own.offsets(0) == (OFFSETS if planned else None)
    assert compare_folder(None, own.state(), None).action is FolderAction.KEEP


def test_uncommitted_batches_are_not_taken_over(files: Memory) -> None:
    query(files, "f/0-5-z")
    takeover = take_over(files, None)
    assert takeover.decision.action is FolderAction.WIPE
    assert takeover.make is None


@pytest.mark.parametrize("stateful", [True, False])
def test_torn_folder_is_written_again(files: Memory, stateful: bool) -> None:
    query(files, "f/0-5-z")
    position = archived_position(files, stateful=stateful)
    own = folders(files, 5, "z").own
    own.rewrite(position)
    assert compare_folder(position, own.state(), OFFSETS).action is FolderAction.KEEP
    files.write("f/0-5-z/_rewriting", "")
    files.delete("f/0-5-z/sources")
    assert compare_folder(position, own.state(), OFFSETS).action is FolderAction.REWRITE
    assert own.holds_state_of(position) is stateful
    own.rewrite(position)
    assert files.read("f/0-5-z/sources/0/7") == "files of batch 7"


def test_rewrite_keeps_the_offsets_that_prove_the_state(files: Memory) -> None:
    for batch in (5, 6, 7, 8):
        query(files, "f/0-5-z", batch=batch)
    own = folders(files, 5, "z").own
    for batch in (7, 6):
        position = replace(archived_position(files), batch_id=batch)
        assert own.holds_state_of(position)
        own.rewrite(position)
        assert own.holds_state_of(position)
    assert files.names("f/0-5-z/offsets") == ["5", "6"]
    assert files.names("f/0-5-z/state/0/0") == ["6.delta", "7.delta"]


def test_moved_state_gets_the_new_folder_name_in_its_schema_files(files: Memory) -> None:
    query(files, "s/f/0-5-z")
    schema = '{"stateSchemaFilePaths":["file:/s/f/0-5-z/state/0/_stateSchema/default/0_1b"]}'
    files.write("s/f/0-5-z/state/0/_metadata/v2/0", schema)
    flow_folders = FlowCheckpointFolders(files, "s/f", "p", fence=6, token="a")  # type: ignore[arg-type]
    takeover = take_over_folder(
        flow_folders.own, flow_folders.older(), archived_position(files), stateful=True
    )
    assert takeover.make is not None
    takeover.make()
    assert files.read("s/f/0-6-a/state/0/_metadata/v2/0") == schema.replace("0-5-z", "0-6-a")


def archived(files: Memory, folder: CheckpointFolder, known: SparkPosition | None = None) -> SparkPosition:
    return folder.position(folder.plan(7), known, stateful=False)


def test_archive_is_named_by_its_content(files: Memory) -> None:
    query(files, "f/0-5-z")
    query(files, "f/0-6-a")
    files.write("f/0-6-a/sources/0/7", "other files")
    first, second = archived(files, folders(files, 5, "z").own), archived(files, folders(files, 6).own)
    assert first.source_files != second.source_files
    before = dict(files.content)
    assert archived(files, folders(files, 5, "z").own) == first
    assert files.content == before, "an existing archive is not written again"


def test_failed_batch_archives_its_source_files_again(files: Memory) -> None:
    query(files, "f/0-6-a", batch=6)
    query(files, "f/0-6-a")
    own = folders(files, 6).own
    first = archived(files, own)
    assert archived(files, own) == first
    own.mark_committed()
    files.write("f/0-6-a/sources/0/8", "files of batch 8")
    assert len(archived(files, own, first).source_files) == 2


@pytest.mark.parametrize("path", ["offsets/7", "sources/0/7", "sources/0/8", "metadata"])
def test_changed_plan_is_not_equal(files: Memory, path: str) -> None:
    query(files, "f/0-6-a")
    own = folders(files, 6).own
    plan = own.plan(7)
    assert own.plan(7) == plan
    own.position(plan, None, stateful=False)
    assert own.plan(7) == plan
    files.write(f"f/0-6-a/{path}", '{"id": "other"}')
    assert own.plan(7) != plan
    own.mark_committed()
    files.delete("f/0-6-a/offsets/7")
    with pytest.raises(FileNotFoundError):
        own.plan(7)


# -- what the folder lacks --------------------------------------------------------------------------


def test_a_log_that_goes_while_it_is_read_is_not_archived_as_empty(files: Memory) -> None:
    """Spark deletes logs that a compacted one holds."""
    query(files, "f/0-6-a")
    files.write("f/0-6-a/sources/0/6", "files of batch 6")
    own = folders(files, 6).own
    stamps = files.stamps

    def stamps_before_one_goes(path: str) -> dict[str, tuple[int, int]]:
        before = stamps(path)
        files.delete("f/0-6-a/sources/0/6")
        return before

    files.stamps = stamps_before_one_goes  # type: ignore[method-assign]
    plan = own.plan(7)
    assert (plan.present, dict(plan.fresh)) == ({"0/7"}, {"0/7": "files of batch 7"})


def test_a_position_is_not_written_without_what_a_restart_needs(files: Memory) -> None:
    query(files, "f/0-6-a")
    own = folders(files, 6).own
    for number in (8, 9):
        files.write(f"f/0-6-a/sources/0/{number}", f"files of batch {number}")
    first = archived(files, own)
    own.mark_committed()
    files.write("f/0-6-a/sources/0/8.compact", "all files")
    plan = own.plan(7)
    files.delete("f/0-6-a/sources/0/9")
    with pytest.raises(FileNotFoundError, match="sources/0/9"):
        own.position(plan, first, stateful=False)
    files.write("f/0-6-a/commits/7", "")
    with pytest.raises(FileNotFoundError, match="commits/7"):
        own.position(plan, first, stateful=False)


def test_the_files_of_a_batch_are_all_known_or_refused(files: Memory) -> None:
    query(files, "f/0-6-a")
    own = folders(files, 6).own
    for number, name in ((0, "0"), (1, "1.compact")):
        files.write(
            f"f/0-6-a/sources/0/{name}", f'v1\n{{"path":"{number}","batchId":{number},"timestamp":1}}'
        )
    assert own.planned_files(0, 0, 1) == {"0", "1"}
    with pytest.raises(FileNotFoundError, match="sources/0/2"):
        own.planned_files(0, 0, 2)


class Dying(Memory):
    """Dies before the nth write or delete."""

    left = 0

    def write(self, path: str, text: str) -> None:
        self._step()
        super().write(path, text)

    def delete(self, path: str) -> None:
        # An object store deletes file by file.
        for name in self._below(path):
            self._step()
            super().delete(name)

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise InterruptedError


@pytest.mark.parametrize("renames", [True, False])
def test_a_move_that_dies_is_repeated(renames: bool) -> None:
    move: Any = Files.move
    whole = {"offsets/0", "offsets/1", "metadata"}
    for dies_at in range(1, 9):
        files = Dying(renames=renames)
        for name in sorted(whole):
            files.write(f"old/{name}", name)
        files.left = dies_at
        with contextlib.suppress(InterruptedError):
            move(files, "old", "new")
        files.left = 0
        move(files, "old", "new")
        assert not files.exists("old")
        assert {name: files.read(f"new/{name}") for name in whole} == {name: name for name in whole}
        # An older owner that wakes up makes the folder again: what was moved stays as it is.
        files.write("old/metadata", "late")
        move(files, "old", "new")
        assert files.read("new/metadata") == "metadata"
