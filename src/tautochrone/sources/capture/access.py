"""What a database answers to a capture that it does not let in, as errors that all captures share."""

from __future__ import annotations

from tautochrone.errors import IngestError, SourceLoginRefusedError

__all__ = ["database_missing", "login_refused"]


def login_refused(capture: str, answer: str) -> SourceLoginRefusedError:
    """For a wrong name or password, a certificate, a host that is not allowed."""
    return SourceLoginRefusedError(
        "CAPTURE_LOGIN_REFUSED",
        f"The database of the capture {capture} does not let it in: {answer}",
        hint="see user and password in its url, and the server's log. A continuous run goes on when "
        "the file of a refused password, { file = … }, changes; anything else needs a new start",
    )


def database_missing(capture: str, answer: str) -> IngestError:
    """For a name that the server does not know."""
    return IngestError(
        "CAPTURE_DATABASE_MISSING",
        f"The database of the capture {capture} is not there: {answer}",
        hint="see the name of the database in the capture's url",
        sqlstate="3D000",
    )
