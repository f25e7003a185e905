"""The one exception tree. Catch `TautochroneError` to catch everything that the package raises on purpose.

    TautochroneError
    ├── SpecError                    the pipeline spec file
    ├── DefinitionError              the definition files: SQL, Python, the graph they make
    ├── SettingsError                flags, variables, tautochrone.toml
    ├── IngestError                  a flow that reads from outside
    │   ├── StateLostError           a stateful flow whose state is gone
    │   ├── OffsetsOutOfRangeError   the source no longer has what we must read next
    │   ├── SourceLoginRefusedError  the source does not let its user in
    │   └── SourceUnreachableError   the source does not answer
    ├── LakeError                    a lake table
    │   ├── TableMissingError        it is not there (any more)
    │   ├── ConflictError            main moved: somebody else owns or wrote the table
    │   │   └── FencedError          a newer owner exists; this one must stop
    │   ├── CommitOutcomeUnknownError  the catalog did not answer; read the table before retrying
    │   └── HistoryLostError         the versions between two cuts cannot be enumerated any more
    ├── ForeignTableError            a table of another lake format that a view reads
    ├── MetaError                    the MetaService's store
    ├── RefreshError                 a view could not be brought to a checkpoint
    ├── InvariantError               a checkpoint breaks an invariant
    ├── ExpectationError             rows violate an expectation that fails
    ├── SinkError                    a sink, or a delivery to it
    │   ├── SinkFencedError          a newer owner delivers to it; this one must stop
    │   └── SinkContentError         what arrived is not what was sent
    ├── QueryError                   a read
    │   └── CheckpointUnavailableError  no such checkpoint, or it is expired or revoked
    ├── AccessError                  who asks the MetaService, and what they may do
    └── EnvironmentProblemError      Java, Spark, jars, ports
        └── SparkDiedError           Spark's Java process ended, or answers no more

Every error carries a stable `error_class` (Spark's spelling: UPPER_SNAKE, sub-class after a dot), a
SQLSTATE, an optional place in the user's files and an optional hint. `str(error)` is what a person
reads: `[CLASS] sentence. SQLSTATE: xxxxx; file:line`; `render()` adds the line of text that it is about,
underlined, and the hint.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from tautochrone.redaction import redacted, redacted_fields

__all__ = [
    "AccessError",
    "CheckpointUnavailableError",
    "CommitOutcomeUnknownError",
    "ConflictError",
    "DefinitionError",
    "DefinitionsOutdatedError",
    "EnvironmentProblemError",
    "Excerpt",
    "ExpectationError",
    "FencedError",
    "ForeignTableError",
    "HistoryLostError",
    "IngestError",
    "InvariantError",
    "LakeError",
    "MetaError",
    "OffsetsOutOfRangeError",
    "QueryError",
    "RefreshError",
    "SettingsError",
    "SinkContentError",
    "SinkError",
    "SinkFencedError",
    "SourceLoginRefusedError",
    "SourceUnreachableError",
    "SparkDiedError",
    "SpecError",
    "StateLostError",
    "TableMissingError",
    "TautochroneError",
    "all_at_once",
]


_SHOWN_AROUND = 60
"""Characters of a long line that are shown on each side of the part that is underlined."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """One line of the user's text and the part of it that an error is about.

    `line` counts from 1 in its file or query and is None for SQL inside of Python; `start` counts
    characters of `text` from 0; a `length` of 0 means the place before `start`, such as the line's end.
    """

    text: str
    line: int | None
    start: int
    length: int

    def shown(self) -> tuple[str, str]:
        """The line behind its number, and below it the underline. Long lines are cut around the part."""
        start = min(max(self.start, 0), len(self.text))
        stop = min(start + max(self.length, 0), len(self.text))
        first, last = max(0, start - _SHOWN_AROUND), min(len(self.text), stop + _SHOWN_AROUND)
        gutter = f"{'SQL' if self.line is None else self.line:>5} | "
        before = ("…" if first else "") + self.text[first:start]
        after = self.text[stop:last] + ("…" if last < len(self.text) else "")
        marked = self.text[start:stop]
        # A tab is as wide as the terminal says, so it stays one; everything else has a width.
        indent = "".join("\t" if sign == "\t" else " " * _width(sign) for sign in before)
        underline = "^" * max(1, sum(_width(sign) for sign in marked))
        return gutter + before + marked + after, " " * (len(gutter) - 2) + "| " + indent + underline


def _width(sign: str) -> int:
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


class TautochroneError(Exception):
    """Root of the tree.

    Args:
        error_class: stable name, `UPPER_SNAKE` with sub-classes after a dot.
        message: one sentence (or more) without the class and without a final SQLSTATE.
        hint: what the reader can do about it.
        location: `file:line` (or only `file`) in the user's own files.
        sqlstate: five characters; the class default when absent.
        retryable: true when the same call may succeed later without a change.
        parameters: the values in the sentence, for machines.
        excerpt: the line of the user's text that it is about.
    """

    default_sqlstate = "XX000"
    default_retryable = False

    def __init__(
        self,
        error_class: str,
        message: str,
        *,
        hint: str | None = None,
        location: str | None = None,
        sqlstate: str | None = None,
        retryable: bool | None = None,
        parameters: Mapping[str, str] | None = None,
        excerpt: Excerpt | None = None,
    ) -> None:
        # Messages carry what drivers and Spark said, and these like to quote what they were given.
        message = redacted(message)
        super().__init__(error_class, message)
        self.error_class = error_class
        self.message = message
        self.hint = None if hint is None else redacted(hint)
        self.location = location
        self.sqlstate = sqlstate or self.default_sqlstate
        self.retryable = self.default_retryable if retryable is None else retryable
        self.parameters: Mapping[str, str] = MappingProxyType(redacted_fields(dict(parameters or {})))
        self.excerpt = excerpt
        self.others: tuple[TautochroneError, ...] = ()
        """Errors that were found together with this one."""

    def __str__(self) -> str:
        sentence = self.message if self.message.endswith((".", "!", "?")) else f"{self.message}."
        suffix = f"; {self.location}" if self.location else ""
        return f"[{self.error_class}] {sentence} SQLSTATE: {self.sqlstate}{suffix}"

    def render(self) -> str:
        """What the command line prints: the message, the underlined line, the hint, each on its own line."""
        excerpt = self.excerpt.shown() if self.excerpt else ()
        hint = (f"  hint: {self.hint}",) if self.hint else ()
        return "\n".join([str(self), *excerpt, *hint, *(other.render() for other in self.others)])


_AnyError = TypeVar("_AnyError", bound=TautochroneError)


def all_at_once(errors: Sequence[_AnyError]) -> _AnyError:
    """The first of several errors, which carries the others.

    Args:
        errors: at least one.
    """
    first, *others = dict.fromkeys(errors)
    first.others = (*first.others, *others)
    return first


class SpecError(TautochroneError):
    """The pipeline spec file is missing, malformed or says something that SDP does not allow."""

    default_sqlstate = "42000"


class DefinitionError(TautochroneError):
    """A definition file cannot be read, or what it defines does not fit together."""

    default_sqlstate = "42000"


class SettingsError(TautochroneError):
    """A flag, an environment variable or `tautochrone.toml` holds something unusable."""

    default_sqlstate = "42000"


class IngestError(TautochroneError):
    """A flow that reads from outside failed; what it committed stays, nothing is lost."""

    default_sqlstate = "58000"


class StateLostError(IngestError):
    """A stateful flow's state does not belong to the table's positions; going on would be wrong."""

    default_sqlstate = "55000"


class DefinitionsOutdatedError(IngestError):
    """The source changed since definitions were made from it. They fit again once they are loaded anew."""

    default_sqlstate = "55000"


class SourceUnreachableError(IngestError):
    """The source does not answer; nothing is known of it until it does."""


class SourceLoginRefusedError(IngestError):
    """The source does not let its user in. No further try with the same user and password helps."""

    default_sqlstate = "28000"


class OffsetsOutOfRangeError(IngestError):
    """The source no longer holds rows that follow the table's positions: data would be lost."""

    default_sqlstate = "22003"


class LakeError(TautochroneError):
    """A lake table refused or failed an operation."""

    default_sqlstate = "58030"


class TableMissingError(LakeError):
    """The table does not exist (any more)."""

    default_sqlstate = "42P01"


class ConflictError(LakeError):
    """The table's main moved away from the version that this commit was forked from."""

    default_sqlstate = "40001"


class FencedError(ConflictError):
    """A newer owner took the job over. The process that sees this must stop, not retry."""

    default_sqlstate = "25S03"


class CommitOutcomeUnknownError(LakeError):
    """The catalog did not say whether a commit happened. Only reading the table answers that."""

    default_sqlstate = "08007"
    default_retryable = True


class HistoryLostError(LakeError):
    """Between two versions there is no provable chain of snapshots: expired, rolled back, replaced."""

    default_sqlstate = "55000"


class ForeignTableError(TautochroneError):
    """A table of another lake format is not there, or cannot be followed."""

    default_sqlstate = "58030"


class MetaError(TautochroneError):
    """The store of the MetaService refused or failed an operation."""

    default_sqlstate = "58000"


class RefreshError(TautochroneError):
    """A view could not be brought to a checkpoint; its old version stays readable."""

    default_sqlstate = "58000"


class InvariantError(TautochroneError):
    """A checkpoint breaks an invariant, or one cannot be checked: it is not published."""

    default_sqlstate = "23514"


class ExpectationError(TautochroneError):
    """Rows violate an expectation that fails the refresh or the batch: nothing of it is written."""

    default_sqlstate = "23514"


class SinkError(TautochroneError):
    """A sink refused or failed an operation, or does not fit what shall be delivered to it."""

    default_sqlstate = "58000"


class SinkFencedError(SinkError):
    """A newer owner delivers to the sink. The process that sees this must stop, not retry."""

    default_sqlstate = "25S03"


class SinkContentError(SinkError):
    """What a sink holds of a transaction is not what was sent to it."""

    default_sqlstate = "58030"
    default_retryable = True


class QueryError(TautochroneError):
    """A read or a request was refused, or could not be answered; the query itself may be valid."""

    default_sqlstate = "42000"


class CheckpointUnavailableError(QueryError):
    """No such checkpoint for these tables, or it was expired or revoked."""

    default_sqlstate = "02000"


class AccessError(TautochroneError):
    """The MetaService does not know who asks, or they may not do this."""

    default_sqlstate = "28000"


class EnvironmentProblemError(TautochroneError):
    """Something outside the project is missing or too old: Java, jars, a port."""

    default_sqlstate = "58000"


class SparkDiedError(EnvironmentProblemError):
    """Spark's Java process ended under us, or answers no more: no dataset is to blame for what failed."""
