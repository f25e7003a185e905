"""A sink whose tables are published in another format, over the lake's own data files.

Every format has its own log, of one table each. A checkpoint becomes one commit in the log of each table:

    1. stage: the commits are computed; of what they name, nobody reads anything yet
    2. decide: the next state of the publication names them. Until here the transaction can be dropped
    3. commit: each is put into its log under the next version, if that is not there yet
    4. show: the next state names the checkpoint; a file lists the versions of all tables

Whoever comes after a crash behind 2 does 3 and 4 again, which changes nothing where it was done. A late owner
is refused at 2 by the state, and at 3 by the log: the version that it wants to write is there.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange, Rows, VersionFiles, local_folder
from tautochrone.model.names import CheckpointNumber, Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.s3 import is_on_s3
from tautochrone.model.sink import (
    Capabilities,
    Digest,
    FoldedTable,
    Intent,
    Operation,
    Published,
    Recovered,
    SentChunk,
    TransactionId,
    TransactionState,
    next_state,
    require_base,
)
from tautochrone.sinks.common.errors import database_taken_error, name_taken_error
from tautochrone.sinks.common.exclusive_files import (
    copy_objects,
    file_names,
    has_folder,
    move_folder,
    remove_folder,
    replace_file,
)
from tautochrone.sinks.common.object_paths import S3Path, StoredPath, s3_folder
from tautochrone.sinks.common.options import invalid_option_error, require_option
from tautochrone.sinks.common.publication_state import Decision, PublicationState, StagedCommit, StateFolder
from tautochrone.sinks.common.steps import (
    TransactionSteps,
    require_fence,
    require_same_content,
    require_visible,
)

__all__ = [
    "PublicationSink",
    "PublishedTable",
    "described_folder",
    "digest_of_files",
    "diverged_error",
    "incomplete_error",
    "listed_versions",
    "publication_folder",
    "reported_files",
]

P = ParamSpec("P")
T = TypeVar("T")
_S = TransactionState
_CHECKPOINTS = "checkpoints"
"""The folder in which each checkpoint is a file."""
_SET_ASIDE = "set-aside"
"""The folder of damaged tables, which nobody reads or removes."""
_LISTED = 1_000
"""So many checkpoints are listed at most."""


class PublishedTable(Protocol):
    """One table in the format."""

    def head(self) -> str | None:
        """Its newest version; None: it has none."""

    def stage(self, intent: Intent, files: VersionFiles, *, moves_rows: bool) -> StagedCommit:
        """The next version, and what has to be written to commit it.

        Raises:
                SinkError: `SINK_SCHEMA_UNSUPPORTED`; `PUBLICATION_…`, what is against it. Nothing was written
                that anybody reads.
        """

    def commit(self, commit: StagedCommit) -> None:
        """Write a staged commit. Repeatable.

        Raises:
            SinkError: `PUBLICATION_DIVERGED`, this version is somebody else's.
        """

    def is_committed(self, commit: StagedCommit) -> bool:
        """Whether a staged commit is its newest version. Changes nothing."""

    def digest(self) -> Digest:
        """Of the files of the newest version, read from the log and the files."""

    def maintain(self) -> None:
        """Keep the log short to read, and remove what no version needs. Repeatable."""


def _reports_files(
    method: Callable[Concatenate[PublicationSink, P], T],
) -> Callable[Concatenate[PublicationSink, P], T]:
    """Errors of the file system as errors of the sink."""

    @wraps(method)
    def reporting(sink: PublicationSink, /, *arguments: P.args, **named: P.kwargs) -> T:
        with reported_files(sink.name):
            return method(sink, *arguments, **named)

    return reporting


@contextmanager
def reported_files(sink: str) -> Iterator[None]:
    """Errors of the file system as `PUBLICATION_FILE_FAILED`."""
    try:
        yield
    except OSError as error:
        raise SinkError(
            "PUBLICATION_FILE_FAILED",
            f"Sink {sink}: a file cannot be read or written: {error}",
            hint="See whether the storage is full or away, and who may write to its folder. The "
            "next try goes on with what is decided.",
            parameters={"sink": sink},
            retryable=True,
        ) from error


class PublicationSink(TransactionSteps):
    """See the module docstring. Used by one thread.

    Args:
        folder: of the publication; each table has a folder in it.
    """

    _log_folder: str
    """Of a table: the log by which it is there."""

    def __init__(self, name: str, folder: StoredPath) -> None:
        self.name = name
        self._folder = folder
        self._checkpoints_folder = folder / _CHECKPOINTS
        self._states_folder = StateFolder(name, folder / "_tautochrone" / "states")
        self._open: dict[TransactionId, TransactionState] = {}
        self._intents: dict[TransactionId, Intent] = {}
        self._staged: dict[TableName, StagedCommit] = {}
        self._tables: dict[TableName, PublishedTable] = {}

    @abstractmethod
    def _new_table(self, table: TableName, folder: StoredPath) -> PublishedTable:
        """A table of the format, in its folder."""

    @abstractmethod
    def digest_files(self, files: VersionFiles) -> Mapping[str, Digest]:
        """See `model.sink.TakesFiles`."""

    # -- the pointer ------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(resumable=False)

    @_reports_files
    def published(self) -> Published | None:
        return self._states_folder.read().published

    @_reports_files
    def claim(self, lake: str) -> None:
        state = self._states_folder.read()
        if state.owner not in (None, (self.name, lake)):
            raise database_taken_error(self.name, lake, f"the folder {self._folder}", [state.owner])
        # Nothing is written into a folder of somebody else.
        self._require_exclusive(is_new=state.owner is None)
        if state.owner is None:
            self._states_folder.change(state, owner=(self.name, lake))

    def _require_exclusive(self, *, is_new: bool) -> None:
        """Refuse a server on which two processes could overwrite each other's versions.

        Args:
            is_new: the publication has no owner yet: writers at the same time are tried too.

        Raises:
            SinkError: `PUBLICATION_STORAGE_NOT_EXCLUSIVE`.
        """
        folder = self._folder
        if not isinstance(folder, S3Path):
            return
        own = folder / "_tautochrone"
        if (own / "exclusive").refuses_second() and (not is_new or (own / "creators").has_one_creator()):
            return
        raise SinkError(
            "PUBLICATION_STORAGE_NOT_EXCLUSIVE",
            f"Sink {self.name}: the server of {folder} overwrites what must be created once",
            hint="It must answer 412 to a PUT with If-None-Match: * of an object that is there, also when "
            "several ask at the same time, as Amazon S3 does. Name a folder elsewhere: "
            f"[sinks.{self.name}.options] folder.",
            parameters={"sink": self.name},
            sqlstate="0A000",
        )

    @_reports_files
    def changed_tables(
        self,
        tables: Sequence[TableName],
        max_rows: int | None,  # noqa: ARG002
    ) -> Mapping[TableName, Reason]:
        heads = self._states_folder.read().heads
        missing = [table for table in tables if self._checked_head(table, heads) is None]
        return {table: Reason.of(ReasonCode.SINK_TABLE_MISSING) for table in missing}

    @_reports_files
    def highest_fence(self) -> Fence:
        return self._states_folder.read().fence

    @_reports_files
    def fence(self, fence: Fence) -> None:
        state = self._states_folder.read()
        require_fence(self.name, fence, state.fence)
        if fence != state.fence:
            self._states_folder.change(state, fence=fence)

    @_reports_files
    def ensure(self, table: TableName, schema: Any, key: Sequence[str], fence: Fence) -> None:  # noqa: ARG002
        """Nothing: a commit brings its schema with it."""
        self._require_newest_fence(fence)

    def _require_newest_fence(self, fence: Fence) -> None:
        require_fence(self.name, fence, self.highest_fence())

    def _state(self, transaction: TransactionId) -> TransactionState:
        return self._state_in(self._states_folder.read(), transaction)

    def _state_in(self, state: PublicationState, transaction: TransactionId) -> TransactionState:
        if state.published is not None and state.published.transaction == transaction:
            return _S.COMMITTED
        if state.decision is not None and state.decision.published.transaction == transaction:
            return _S.COMMITTING
        return self._open.get(transaction, _S.UNKNOWN)

    def _next_state(
        self,
        operation: Operation,
        transaction: TransactionId,
        fence: Fence,
        state: PublicationState | None = None,
    ) -> TransactionState:
        """As its base says, with one reading of the state, or none."""
        known = self._states_folder.read() if state is None else state
        require_fence(self.name, fence, known.fence)
        return next_state(operation, self._state_in(known, transaction), transaction)

    def _checked_head(self, table: TableName, heads: Mapping[TableName, str]) -> str | None:
        """The newest version of a table, which must be our own; None: it is gone."""
        head = self._table(table).head()
        if head is not None and head != heads.get(table):
            raise diverged_error(self.name, table, self._table_folder(table), head)
        return head

    # -- one transaction --------------------------------------------------------------------------

    @_reports_files
    def begin(self, intent: Intent) -> TransactionState:
        transaction = intent.transaction
        state = self._states_folder.read()
        following = self._next_state(Operation.BEGIN, transaction, transaction.fence, state)
        require_base(intent, state.published)
        for table in intent.versions:
            self._checked_head(table, state.heads)
        self._open, self._intents, self._staged = {transaction: following}, {transaction: intent}, {}
        return following

    def write(self, transaction: TransactionId, table: TableName, change: RowChange) -> Sequence[SentChunk]:
        raise NotImplementedError("a publication takes files")

    def replace(self, transaction: TransactionId, table: TableName, rows: Rows) -> Sequence[SentChunk]:
        raise NotImplementedError("a publication takes files")

    @_reports_files
    def write_files(
        self, transaction: TransactionId, files: VersionFiles, *, moves_rows: bool
    ) -> Sequence[SentChunk]:
        self._next_state(Operation.WRITE, transaction, transaction.fence)
        table = files.table
        commit = self._table(table).stage(self._intents[transaction], files, moves_rows=moves_rows)
        self._staged[table] = commit
        return [SentChunk(table=table, number=0, digest=Digest(commit.rows, _hash(commit)))]

    @_reports_files
    def prepare(self, transaction: TransactionId, chunks: Sequence[SentChunk]) -> None:
        following = self._next_state(Operation.PREPARE, transaction, transaction.fence)
        staged = {(table, 0): _hash(commit) for table, commit in self._staged.items()}
        arrived = {
            (chunk.table, chunk.number): Digest(chunk.digest.rows, staged.get((chunk.table, 0), ""))
            for chunk in chunks
        }
        require_same_content(self.name, chunks, arrived)
        self._open[transaction] = following

    @_reports_files
    def commit(self, transaction: TransactionId, fence: Fence) -> None:
        state = self._states_folder.read()
        self._next_state(Operation.COMMIT, transaction, fence, state)
        if self._state_in(state, transaction) is _S.PREPARED:
            intent = self._intents[transaction]
            require_base(intent, state.published)
            published = Published(transaction=transaction, versions=intent.versions)
            # A table whose log is gone begins again.
            heads = {t: head for t, head in state.heads.items() if self._table(t).head() is not None}
            for table in state.heads.keys() - heads.keys():
                self._forget_versions(table)
            state = self._states_folder.change(
                state, heads=heads, decision=Decision(published, dict(self._staged))
            )
        self._finish(state)

    @_reports_files
    def abort(self, transaction: TransactionId, fence: Fence) -> None:
        self._open[transaction] = self._next_state(Operation.ABORT, transaction, fence)
        self._staged.clear()

    @_reports_files
    def recover(self, intents: Sequence[Intent], fence: Fence) -> Sequence[Recovered]:
        self._require_newest_fence(fence)
        self._finished()
        self._open.clear()
        self._tables.clear()
        return self._recovered(intents)

    def _finish(self, state: PublicationState) -> PublicationState:
        """Steps 3 and 4, and the state then. A table whose log is gone since has no version to follow: the
        next delivery begins it again."""
        decision = state.decision
        if decision is None:
            self._list_checkpoint(state)
            return state
        heads = dict(state.heads)
        for table, commit in decision.commits.items():
            if table in heads and self._table(table).head() is None:
                self._forget_versions(table)
                del heads[table]
                continue
            self._table(table).commit(commit)
            heads[table] = commit.version
        shown = self._states_folder.change(state, decision=None, published=decision.published, heads=heads)
        self._list_checkpoint(shown)
        return shown

    def _list_checkpoint(self, state: PublicationState) -> None:
        """Write the file by which readers find the versions of several tables at the newest checkpoint. The
        state has all that is in it, so a crash before it loses nothing."""
        published = state.published
        if published is None:
            return
        entry = {
            "checkpoint": int(published.checkpoint),
            "store": published.transaction.incarnation,
            "tables": {
                str(table): {
                    "folder": self._folder_name(table),
                    "version": state.heads.get(table),
                }
                for table in published.versions
            },
        }
        path = self._checkpoints_folder / f"{published.checkpoint:020d}.json"
        content = json.dumps(entry, indent=1).encode()
        if not path.exists() or path.read_bytes() != content:
            replace_file(path, content)

    # -- repair -----------------------------------------------------------------------------------

    @_reports_files
    def damage(self, table: TableName, files: VersionFiles | None) -> Reason | None:
        state = self._states_folder.read()
        reason = self._damage(table, files, state)
        if reason is None or self._states_folder.read().number == state.number:
            return reason
        # The owner published something meanwhile.
        return None

    def _damage(self, table: TableName, files: VersionFiles | None, state: PublicationState) -> Reason | None:
        pending = None if state.decision is None else state.decision.commits.get(table)
        try:
            if pending is not None and self._table(table).is_committed(pending):
                # What is decided and not shown yet; whoever shows it compares it.
                return None
            if self._checked_head(table, state.heads) is None:
                return None
            if files is None or self._table(table).digest() == self.digest_files(files)[""]:
                return None
        except SinkError as error:
            return Reason.of(ReasonCode.PUBLISHED_LOG_DAMAGED, text=str(error))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, LookupError) as error:
            # A disk that is away, or a right that is missing, says nothing of the log.
            return Reason.of(ReasonCode.PUBLISHED_LOG_DAMAGED, text=str(error))
        return Reason.of(ReasonCode.PUBLISHED_FILES_DIFFER)

    @_reports_files
    def set_aside(self, table: TableName, fence: Fence) -> str:
        self._require_newest_fence(fence)
        self._tables.pop(table, None)
        folder = self._table_folder(table)
        if not folder.is_dir():
            return ""
        tables = self._folder / _SET_ASIDE / self._folder_name(table)
        tables.mkdir(parents=True, exist_ok=True)
        number = max((int(name) for name in file_names(tables) if name.isdecimal()), default=0) + 1
        self._forget_versions(table)
        self._move_aside(table, folder, tables / str(number), fence)
        return str(tables / str(number))

    def _move_aside(self, table: TableName, folder: StoredPath, aside: StoredPath, fence: Fence) -> None:
        if not isinstance(folder, S3Path):
            assert not isinstance(aside, S3Path)
            # One step: the log is gone, and `_finish` and `commit` know what that means.
            folder.rename(aside)
            return
        copy_objects(folder, aside, last=self._log_folder)
        state = self._states_folder.read()
        # The log goes in many steps. Without its head, what is left of it counts as somebody else's, so after
        # a crash the table is set aside again.
        heads = {name: head for name, head in state.heads.items() if name != table}
        decision = state.decision
        if decision is not None:
            commits = {name: commit for name, commit in decision.commits.items() if name != table}
            decision = replace(decision, commits=commits)
        self._states_folder.change(state, heads=heads, decision=decision)
        remove_folder(folder, last=self._log_folder, check=lambda: self._require_newest_fence(fence))

    def _forget_versions(self, table: TableName) -> None:
        """Take a table out of the lists of checkpoints: what begins anew counts its versions anew."""
        for path in self._checkpoints_folder.glob("[0-9]*.json"):
            entry = json.loads(path.read_text("utf-8"))
            if entry["tables"].pop(str(table), None) is not None:
                replace_file(path, json.dumps(entry, indent=1).encode())

    # -- audit and maintenance --------------------------------------------------------------------

    def digest(self, table: TableName, rows: Rows) -> Mapping[str, Digest]:
        raise NotImplementedError("a publication takes files")

    @_reports_files
    def audit(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Digest]:
        state = self._states_folder.read()
        shown = None if state.published is None else state.published.checkpoint
        require_visible(self.name, shown, checkpoint)
        if self._checked_head(table, state.heads) is None:
            return {}
        return {"": self._table(table).digest()}

    @_reports_files
    def maintain(self, fence: Fence) -> Sequence[FoldedTable]:
        self._require_newest_fence(fence)
        state = self._states_folder.read()
        for table in () if state.published is None else state.published.versions:
            self._table(table).maintain()
        self._states_folder.remove_old()
        listed = (name for name in file_names(self._checkpoints_folder) if name[0].isdecimal())
        for name in sorted(listed)[:-_LISTED]:
            (self._checkpoints_folder / name).unlink(missing_ok=True)
        return ()

    # -- tables that left the project -------------------------------------------------------------

    @_reports_files
    def mirror_of(self, table: TableName) -> str | None:
        folder = self._table_folder(table)
        # A rename that died has moved the folder, and the state still has the former name.
        is_known = has_folder(folder) or self._names(self._states_folder.read(), table)
        return str(folder) if is_known else None

    @_reports_files
    def drop_mirror(self, table: TableName) -> None:
        state = self._finished()
        if self._names(state, table):
            heads = {name: head for name, head in state.heads.items() if name != table}
            self._states_folder.change(state, heads=heads, published=_without(state.published, table))
        # A new table of this name counts its versions anew.
        self._forget_versions(table)
        remove_folder(self._table_folder(table), last=self._log_folder)
        self._tables.pop(table, None)

    @_reports_files
    def rename_mirror(self, old: TableName, new: TableName) -> None:
        state = self._finished()
        before, after = self._table_folder(old), self._table_folder(new)
        # On this machine a rename that died has moved the folder, and the state has the former name.
        is_copied = isinstance(before, S3Path) and self._names(state, old)
        if after.is_dir() and (is_copied or before.is_dir()):
            raise name_taken_error(self.name, new, str(after), "folder", str(self._folder))
        # The lists have the former name and its folder, which a new table may get.
        self._forget_versions(old)
        if is_copied:
            # Whoever finds both folders knows by the state which one is a copy.
            state = self._states_folder.change(state, move=(old, new))
            copy_objects(before, after, last=self._log_folder)
        elif isinstance(before, Path) and before.exists():
            move_folder(before, after)
        if self._names(state, old):
            heads = {new if name == old else name: head for name, head in state.heads.items()}
            published = _renamed(state.published, old, new)
            state = self._states_folder.change(state, heads=heads, published=published)
        self._end_move(state)
        self._tables.clear()

    def _finished(self) -> PublicationState:
        """The state after what is decided was done, and a rename that died was ended."""
        return self._end_move(self._finish(self._states_folder.read()))

    def _end_move(self, state: PublicationState) -> PublicationState:
        """Remove the folder that the table of a move does not have: the former one, or a copy that may lack
        objects."""
        if state.move is None:
            return state
        old, new = state.move
        unneeded = old if self._names(state, new) else new
        remove_folder(
            self._table_folder(unneeded),
            last=self._log_folder,
            # A newer owner may have ended it, and publish a table of this name again.
            check=lambda: self._states_folder.require_newest(state),
        )
        return self._states_folder.change(state, move=None)

    def _names(self, state: PublicationState, table: TableName) -> bool:
        shown = () if state.published is None else state.published.versions
        return table in state.heads or table in shown

    def close(self) -> None:
        self._tables.clear()

    def _table(self, name: TableName) -> PublishedTable:
        if name not in self._tables:
            self._tables[name] = self._new_table(name, self._table_folder(name))
        return self._tables[name]

    def _folder_name(self, name: TableName) -> str:
        """In the publication's folder."""
        folder = self._table_folder(name)
        return f"{folder.parent.name}/{folder.name}"

    def _table_folder(self, name: TableName) -> StoredPath:
        database = ".".join(quote(part, safe="") for part in name.namespace)
        return self._folder / database / quote(name.table, safe="")


def _without(published: Published | None, table: TableName) -> Published | None:
    if published is None:
        return None
    versions = {name: version for name, version in published.versions.items() if name != table}
    return replace(published, versions=versions)


def _renamed(published: Published | None, old: TableName, new: TableName) -> Published | None:
    if published is None:
        return None
    versions = {new if name == old else name: version for name, version in published.versions.items()}
    return replace(published, versions=versions)


def _hash(commit: StagedCommit) -> str:
    return hashlib.sha256(commit.content.encode()).hexdigest()


def digest_of_files(files: Iterable[tuple[int, str]]) -> Digest:
    """The digest of files in any order, by the rows that readers see in each, and a text about it."""
    rows, total = 0, 0
    for count, text in files:
        rows += count
        total += int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return Digest(rows, f"{total % 2**64:016x}")


def diverged_error(sink: str, table: TableName, folder: StoredPath, version: str) -> SinkError:
    """The refusal to go on behind somebody else's commit."""
    return SinkError(
        "PUBLICATION_DIVERGED",
        f"Sink {sink}: somebody else committed version {version} to the published table {table}",
        hint=f"A publication has one writer. `taut publish --repair` sets the folder of the table, {folder}, "
        "aside with all that is in it and publishes the table anew.",
        parameters={"sink": sink, "table": str(table), "version": version},
        sqlstate="55000",
    )


def incomplete_error(folder: StoredPath, missing: str) -> SinkError:
    """The refusal to go on behind a log of which a part is gone.

    Args:
        folder: of the table.
    """
    return SinkError(
        "PUBLICATION_LOG_INCOMPLETE",
        f"The log of the published table in {folder} is not complete: {missing}",
        hint=f"`taut publish --repair` sets the folder of the table, {folder}, aside and publishes the table "
        "anew.",
        parameters={"folder": str(folder)},
        sqlstate="55000",
    )


def listed_versions(sink: str, options: Mapping[str, str], number: int, store: str) -> Mapping[str, str]:
    """The version of each table in a publication at a checkpoint of a store; none if it does not list it.

    Args:
        options: of the publication.
        store: the incarnation of the store.

    Raises:
        SinkError: as `publication_folder`; `PUBLICATION_FILE_FAILED`.
    """
    path = publication_folder(sink, sink, options) / _CHECKPOINTS / f"{number:020d}.json"
    with reported_files(sink):
        if not path.exists():
            return {}
        entry = json.loads(path.read_text("utf-8"))
    is_of_store = entry["store"] == store
    return {name: table["version"] for name, table in entry["tables"].items()} if is_of_store else {}


def publication_folder(name: str, format_name: str, options: Mapping[str, str]) -> StoredPath:
    """The option `folder`, opened with `S3_OPTIONS` where it is on S3.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`, `SINK_PACKAGE_MISSING`.
    """
    hint = "The folder of the published tables."
    location = require_option(name, format_name, options, "folder", hint)
    if is_on_s3(location):
        folder = s3_folder(name, location, options)
        if folder.key:
            return folder
        raise invalid_option_error(name, f"has the folder {location}, a whole bucket", "Name a folder in it.")
    local = local_folder(location)
    if local is not None:
        return local
    raise invalid_option_error(
        name,
        f"has the folder {location}, which is neither on this machine nor on S3",
        "Name a local folder, or one on S3. Elsewhere two processes could overwrite each other's versions.",
    )


def described_folder(sink: str, folder: StoredPath) -> str:
    """A sentence about the folder of a publication.

    Raises:
        SinkError: `PUBLICATION_FILE_FAILED`.
    """
    with reported_files(sink):
        return f"the folder {folder} {'is there' if folder.is_dir() else 'will be made'}"
