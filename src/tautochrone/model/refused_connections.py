"""Why a database server refused a connection, by what it says and by the numbers of its errors.

Drivers of sources and sinks ask here, so that both take the same refusals as final.
"""

from __future__ import annotations

import re

__all__ = [
    "MYSQL_LOGIN_REFUSED",
    "MYSQL_UNKNOWN_DATABASE",
    "postgresql_database_is_missing",
    "postgresql_encoding_is_unknown",
    "postgresql_login_is_refused",
]

MYSQL_LOGIN_REFUSED = frozenset(
    {
        1045,  # ER_ACCESS_DENIED_ERROR
        1130,  # ER_HOST_NOT_PRIVILEGED
        1698,  # ER_ACCESS_DENIED_NO_PASSWORD_ERROR
        1862,  # ER_MUST_CHANGE_PASSWORD_LOGIN
        3118,  # ER_ACCOUNT_HAS_BEEN_LOCKED of MySQL
        4151,  # ER_ACCOUNT_HAS_BEEN_LOCKED
    }
)
MYSQL_UNKNOWN_DATABASE = 1049
_LOGIN_REFUSED = re.compile(
    r"authentication failed for user|no password supplied|no pg_hba\.conf entry|pg_hba\.conf rejects"
    r'|role "[^"]*" does not exist|is not permitted to log in|certificate authentication failed'
)
_DATABASE_MISSING = re.compile(r'FATAL: +database "[^"]*" does not exist')

_ENCODING_UNKNOWN = re.compile(r"FATAL: +conversion between \w+ and \w+ is not supported")


def postgresql_login_is_refused(sqlstate: str | None, text: str) -> bool:
    """Whether the server does not let the user in. libpq passes on the SQLSTATE of a refused connection not
    at all, only the text.

    >>> postgresql_login_is_refused(None, 'FATAL:  password authentication failed for user "ann"')
    True
    >>> postgresql_login_is_refused(None, "connection refused")
    False
    """
    return sqlstate.startswith("28") if sqlstate else bool(_LOGIN_REFUSED.search(text))


def postgresql_database_is_missing(sqlstate: str | None, text: str) -> bool:
    """Whether the server has no database of that name.

    >>> postgresql_database_is_missing(None, 'FATAL:  database "shop" does not exist')
    True
    """
    return sqlstate == "3D000" if sqlstate else bool(_DATABASE_MISSING.search(text))


def postgresql_encoding_is_unknown(text: str) -> bool:
    """Whether the server cannot give texts of the database as UTF-8 at all.

    >>> postgresql_encoding_is_unknown("FATAL:  conversion between UTF8 and MULE_INTERNAL is not supported")
    True
    """
    return bool(_ENCODING_UNKNOWN.search(text))
