"""What a publication knows of itself: whose it is, who may write it, what it shows, and what it will show.

Each state is a file with a number, and only the first writer of a number creates it. So a change of state is
a compare-and-set on the state that its writer has read: of two owners one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.sink import Published, TransactionId
from tautochrone.sinks.common.exclusive_files import put_if_absent
from tautochrone.sinks.common.object_paths import StoredPath

__all__ = ["Decision", "PublicationState", "StagedCommit", "StateFolder"]

_KEPT = 5
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """A commit of one table that nobody reads yet.

    Attributes:
        version: what it will be in the format: a number, or the time of an instant.
        content: what has to be written. It is a part of the state, so that no other owner can remove it.
        rows: of the files that it adds, deleted ones included.
    """

    version: str
    content: str
    rows: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A checkpoint that will be shown, whatever happens: each of its commits may be there already."""

    published: Published
    commits: Mapping[TableName, StagedCommit]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationState:
    """
    Attributes:
        number: of the state, from 1; 0: there is none yet.
        owner: the sink and the lake whose publication it is.
        heads: by table its newest version in the format.
        move: the names of a table whose objects are copied to the folder of its second name, or were and are
            removed from that of its first; None: there is none.
    """

    number: int = 0
    owner: tuple[str, str] | None = None
    fence: Fence = field(default_factory=lambda: Fence(0))
    published: Published | None = None
    heads: Mapping[TableName, str] = field(default_factory=dict)
    decision: Decision | None = None
    move: tuple[TableName, TableName] | None = None

    def as_json(self) -> dict[str, Any]:
        decision = self.decision
        return {
            "owner": self.owner,
            "fence": int(self.fence),
            "published": _published_json(self.published),
            "heads": {str(table): version for table, version in self.heads.items()},
            "move": None if self.move is None else [str(table) for table in self.move],
            "decision": None
            if decision is None
            else {
                "published": _published_json(decision.published),
                "commits": {str(t): [c.version, c.content, c.rows] for t, c in decision.commits.items()},
            },
        }

    @classmethod
    def from_json(cls, number: int, value: Mapping[str, Any]) -> PublicationState:
        """The inverse of `as_json`."""
        decision, move = value["decision"], value.get("move")
        return cls(
            number=number,
            owner=None if value["owner"] is None else tuple(value["owner"]),
            fence=Fence(value["fence"]),
            published=_published(value["published"]),
            heads={TableName.parse(name): version for name, version in value["heads"].items()},
            decision=None
            if decision is None
            else Decision(
                _required(decision["published"]),
                {TableName.parse(t): StagedCommit(*commit) for t, commit in decision["commits"].items()},
            ),
            move=None if move is None else (TableName.parse(move[0]), TableName.parse(move[1])),
        )


def _published_json(published: Published | None) -> dict[str, Any] | None:
    if published is None:
        return None
    return {
        "transaction": published.transaction.as_json(),
        "versions": {str(table): version for table, version in published.versions.items()},
    }


def _published(value: Mapping[str, Any] | None) -> Published | None:
    return None if value is None else _required(value)


def _required(value: Mapping[str, Any]) -> Published:
    return Published(
        transaction=TransactionId.from_json(value["transaction"]),
        versions={TableName.parse(name): Version(text) for name, text in value["versions"].items()},
    )


class StateFolder:
    """The states of a publication, in a folder."""

    def __init__(self, sink: str, folder: StoredPath) -> None:
        self._sink = sink
        self._folder = folder

    def read(self) -> PublicationState:
        """The newest state."""
        numbers = self._numbers()
        if not numbers:
            return PublicationState()
        text = self._path(numbers[-1]).read_text("utf-8")
        return PublicationState.from_json(numbers[-1], json.loads(text))

    def change(self, state: PublicationState, **changes: Any) -> PublicationState:
        """Write the state that follows `state`, as `dataclasses.replace` says it.

        Raises:
            SinkError: `SINK_BASE_CHANGED`, somebody else wrote the next one.
        """
        following = replace(state, number=state.number + 1, **changes)
        content = json.dumps(following.as_json()).encode()
        # Old states are removed, so a late writer could create one that is not the newest any more.
        if (
            not put_if_absent(self._path(following.number), content)
            or self._numbers()[-1] != following.number
        ):
            raise self._changed_error()
        return following

    def require_newest(self, state: PublicationState) -> None:
        """Refuse a state that another one follows.

        Raises:
            SinkError: `SINK_BASE_CHANGED`.
        """
        if self._numbers()[-1:] != [state.number]:
            raise self._changed_error()

    def _changed_error(self) -> SinkError:
        return SinkError(
            "SINK_BASE_CHANGED",
            f"Sink {self._sink}: another process changed the publication",
            hint="The next try starts from what it shows then.",
            parameters={"sink": self._sink},
            retryable=True,
            sqlstate="40001",
        )

    def remove_old(self) -> None:
        """Remove states that nobody reads any more."""
        for number in self._numbers()[:-_KEPT]:
            self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> StoredPath:
        return self._folder / f"{number:020d}{_SUFFIX}"

    def _numbers(self) -> list[int]:
        files = self._folder.glob(f"[0-9]*{_SUFFIX}")
        return sorted(int(file.name.removesuffix(_SUFFIX)) for file in files)
