"""Errors that several adapters raise.

Of a user whom a server does not let in, or who lacks a right, no further try with the same password helps: a
delivery stops instead of trying again.
"""

from __future__ import annotations

from collections.abc import Collection

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName

__all__ = [
    "columns_used_error",
    "database_missing_error",
    "database_taken_error",
    "login_refused_error",
    "name_taken_error",
    "not_observed_error",
    "number_unsupported_error",
    "object_missing_error",
    "pointer_missing_error",
    "rights_missing_error",
    "schema_unsupported_error",
    "statement_refused_error",
    "table_busy_error",
    "table_changed_error",
    "table_missing_error",
    "value_unsupported_error",
]


def login_refused_error(subject: str, server: str, answer: str, *, settings: str) -> SinkError:
    """The server does not let the user in: a wrong name or password, a certificate, a host that is not
    allowed.

    Args:
        subject: who asks, such as `Sink orders`.
        server: what answers, such as `PostgreSQL`.
        settings: the options that say who logs in.
    """
    return SinkError(
        "SINK_LOGIN_REFUSED",
        f"{subject}: {server} does not let it in: {answer}",
        hint=f"See {settings}, and the server's log. A run that goes on reads the file of a refused "
        "password, { file = … }, again when it changes; anything else needs a new start.",
        sqlstate="28000",
    )


def columns_used_error(sink: str, table: TableName, reason: str, error: Exception) -> SinkError:
    """Something that somebody else created uses columns that the sink must alter.

    Args:
        reason: why it must.
        error: what the database says about it.
    """
    answer = " ".join(str(error).split())
    return SinkError(
        "SINK_COLUMNS_USED",
        f"Sink {sink}: the table of {table} gets other columns ({reason}), and something uses them: {answer}",
        hint="Drop what the message means: a view, a rule, an index, a default or a CHECK over them. "
        "The next run alters the table and sends its rows.",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="2BP01",
    )


def database_missing_error(subject: str, server: str, answer: str) -> SinkError:
    """The server lets the user in and knows no database of that name."""
    return SinkError(
        "SINK_DATABASE_MISSING",
        f"{subject}: {server} does not have its database: {answer}",
        hint="Create it, or name another one in the option url, and start the run anew.",
        sqlstate="3D000",
    )


def rights_missing_error(subject: str, server: str, answer: str, *, needed: str) -> SinkError:
    """The user is known, and lacks a right.

    Args:
        needed: a sentence about the rights that a sink needs there.
    """
    return SinkError(
        "SINK_RIGHTS_MISSING",
        f"{subject}: {server} refuses it a right: {answer}",
        hint=f"{needed} Start the run anew afterwards.",
        sqlstate="42501",
    )


def not_observed_error(sink: str, subject: str) -> SinkError:
    """Who only looks at a sink is not to write to its system."""
    return SinkError(
        "SINK_NOT_OBSERVED",
        f"Sink {sink}: {subject} cannot be opened without being written to",
        hint="`taut run` opens it, and says what it has.",
        parameters={"sink": sink},
        sqlstate="0A000",
    )


def object_missing_error(sink: str, server: str, answer: str, container: str) -> SinkError:
    """The server knows no table, column, schema or database of the sink's: somebody dropped or altered it."""
    return SinkError(
        "SINK_OBJECT_MISSING",
        f"Sink {sink}: {server} lacks something that the sink created: {answer}",
        hint="The next try opens the sink anew, creates what is missing, and sends the rows. If the error "
        f"stays, drop {container}: then everything is created and delivered again.",
        parameters={"sink": sink},
        retryable=True,
        sqlstate="42P01",
    )


def statement_refused_error(
    sink: str, server: str, answer: str, container: str, *, retryable: bool, sqlstate: str
) -> SinkError:
    """The server refuses a statement for a reason that the sink does not know."""
    return SinkError(
        "SINK_DATABASE_REFUSED",
        f"Sink {sink}: {server} refuses a statement: {answer}",
        hint="What the server says is the reason. If somebody altered what the sink created, drop "
        f"{container}: the next run creates it, and delivers all rows.",
        retryable=retryable,
        sqlstate=sqlstate,
        parameters={"sink": sink},
    )


def table_busy_error(sink: str, server: str, answer: str) -> SinkError:
    """Others use a table for longer than a statement of the sink waits for it."""
    return SinkError(
        "SINK_TABLE_BUSY",
        f"Sink {sink}: {server} gave up waiting for others that use a table of the sink: {answer}",
        hint="The next try waits again. If the error stays, end the transactions that read or write the "
        "sink's tables for so long.",
        parameters={"sink": sink},
        retryable=True,
        sqlstate="55P03",
    )


def name_taken_error(sink: str, table: TableName, name: str, kind: str, container: str) -> SinkError:
    """The refusal of a table that is somebody else's.

    Args:
        kind: what holds the tables, which is also the option that names it: `schema` or `database`.
        container: the name of that.
    """
    return SinkError(
        "SINK_NAME_TAKEN",
        f"Sink {sink}: {table} is mirrored as {name}, and the {kind} {container} has something else of this "
        "name",
        hint=f"If nobody needs it, drop it: the next run creates its own, and delivers all rows. Or give the "
        f"sink another {kind} (option {kind}), or rename the dataset.",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="42P07",
    )


def table_missing_error(sink: str, table: TableName) -> SinkError:
    """The error for a table that the sink does not know."""
    return SinkError(
        "SINK_BASE_CHANGED",
        f"Sink {sink} has no table for {table}",
        hint="The next try creates it, and delivers all of its rows.",
        retryable=True,
        parameters={"sink": sink, "table": str(table)},
    )


def schema_unsupported_error(sink: str, table: TableName, problem: str) -> SinkError:
    """The refusal of a table that the system cannot have: nothing of it was written.

    Args:
        problem: a part of a sentence, or what the system says.
    """
    return SinkError(
        "SINK_SCHEMA_UNSUPPORTED",
        f"Sink {sink}: its system cannot have the table of {table}: {problem}",
        hint="Rename, cast or leave out columns in the query of the dataset.",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="0A000",
    )


def value_unsupported_error(
    sink: str, table: TableName, problem: str, column: str | None = None, row: str | None = None
) -> SinkError:
    """The refusal of a value that the system cannot hold.

    Args:
        problem: what the system, or Python, says.
        row: its key, or all of it, as text.
    """
    where = "" if column is None else f" in the column {column}"
    which = "" if row is None else f" of the row {row}"
    return SinkError(
        "SINK_VALUE_UNSUPPORTED",
        f"Sink {sink}: {table} has a value{where}{which} that the sink cannot hold: {problem}",
        hint="Change or filter such values in the query of the dataset, or leave the column out of it.",
        parameters={"sink": sink, "table": str(table), "column": column or "", "row": row or ""},
        sqlstate="22000",
    )


def number_unsupported_error(sink: str, table: TableName, column: str, value: str, system: str) -> SinkError:
    """The refusal of NaN and infinities.

    Args:
        system: what has no such number.
    """
    return SinkError(
        "SINK_VALUE_UNSUPPORTED",
        f"Sink {sink}: {table} has {value} in the column {column}, and {system} has no such number",
        hint=f"Write nullif({column}, double('NaN')), or a condition, in the query of the dataset.",
        parameters={"sink": sink, "table": str(table), "column": column},
        sqlstate="22003",
    )


def table_changed_error(sink: str, table: TableName) -> SinkError:
    """The refusal to commit a delta to a table that is not the one that was compared."""
    return SinkError(
        "SINK_BASE_CHANGED",
        f"Sink {sink}: somebody dropped, created or altered the table of {table} during the delivery",
        hint="The next try compares what it holds, and sends all of its rows if they differ.",
        parameters={"sink": sink, "table": str(table)},
        retryable=True,
        sqlstate="40001",
    )


def pointer_missing_error(sink: str) -> SinkError:
    """The refusal to commit without the row of the pointer."""
    return SinkError(
        "SINK_BASE_CHANGED",
        f"Sink {sink}: somebody deleted the row of its pointer during the delivery",
        hint="The next try writes it again, and sends all rows.",
        parameters={"sink": sink},
        retryable=True,
        sqlstate="40001",
    )


def database_taken_error(
    sink: str, lake: str, container: str, owners: Collection[tuple[str, str]]
) -> SinkError:
    """The refusal of a database that is the mirror of somebody else.

    Args:
        container: what belongs to one sink, such as `the schema lake`.
        owners: the names of sinks, and the identities of their lakes.
    """
    owner, other = next(iter(owners))
    whose = f"sink {owner} of this lake" if other == lake else f"sink {owner} of another lake ({other})"
    return SinkError(
        "SINK_DATABASE_TAKEN",
        f"Sink {sink}: {container} belongs to {whose}",
        hint=f"Give the sink another one by its options. If nothing delivers to {container} any more, also "
        "after a sink was renamed or the lake got another catalog, drop it: the next run creates it, and "
        "delivers all rows.",
        parameters={"sink": sink, "owner": owner, "lake": other},
        sqlstate="55000",
    )
