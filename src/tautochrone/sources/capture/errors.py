"""What a database answers to a capture, as errors that all captures share."""

from __future__ import annotations

from tautochrone.errors import IngestError, SourceLoginRefusedError

__all__ = ["TEXT_NOT_DECODABLE", "database_missing_error", "login_refused_error", "undecodable_text_error"]

TEXT_NOT_DECODABLE = "CAPTURED_TEXT_NOT_DECODABLE"


def login_refused_error(capture: str, answer: str) -> SourceLoginRefusedError:
    """For a wrong name or password, a certificate, a host that is not allowed."""
    return SourceLoginRefusedError(
        "CAPTURE_LOGIN_REFUSED",
        f"The database of the capture {capture} does not let it in: {answer}",
        hint="see user and password in its url, and the server's log. A continuous run goes on when "
        "the file of a refused password, { file = … }, changes; anything else needs a new start",
    )


def database_missing_error(capture: str, answer: str) -> IngestError:
    """For a name that the server does not know."""
    return IngestError(
        "CAPTURE_DATABASE_MISSING",
        f"The database of the capture {capture} is not there: {answer}",
        hint="see the name of the database in the capture's url",
        sqlstate="3D000",
    )


def undecodable_text_error(subject: str, answer: str) -> IngestError:
    """For bytes that are no characters in the encoding that the database says its texts have.

    Args:
        subject: where the text is, as the beginning of a sentence.
    """
    return IngestError(
        "CAPTURED_TEXT_NOT_DECODABLE",
        f"{subject} has a text with bytes that are no characters of its encoding: {answer}",
        hint="update the row, which docs/capture.md says how to find, and copy again with --full-refresh of "
        "the log table and of the captured tables; or leave the table out with exclude=[…], and take it out "
        "of the publication",
        sqlstate="22021",
    )
