"""What a server answers to a user whom it does not let in, or who lacks a right, as errors that all sinks
share. No further try with the same user and password helps, so a delivery stops instead of trying again."""

from __future__ import annotations

from tautochrone.errors import SinkError

__all__ = [
    "database_missing",
    "login_refused",
    "object_missing",
    "rights_missing",
    "statement_refused",
]


def login_refused(subject: str, server: str, answer: str, *, settings: str) -> SinkError:
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


def database_missing(subject: str, server: str, answer: str) -> SinkError:
    """The server lets the user in and knows no database of that name."""
    return SinkError(
        "SINK_DATABASE_MISSING",
        f"{subject}: {server} does not have its database: {answer}",
        hint="Create it, or name another one in the option url, and start the run anew.",
        sqlstate="3D000",
    )


def rights_missing(subject: str, server: str, answer: str, *, needed: str) -> SinkError:
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


def object_missing(sink: str, server: str, answer: str, container: str) -> SinkError:
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


def statement_refused(
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
