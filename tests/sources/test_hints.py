"""Each class of error of `sources` has a test that follows its hint, or a reason why no test does."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.docs.errors import Raised, read

import tautochrone

_PACKAGE = Path(tautochrone.__file__).parent
_TESTS = Path(__file__).parent

_POSTGRESQL, _MYSQL = "postgresql/test_set_aside.py", "mysql/test_set_aside.py"
FOLLOWED = {
    "CAPTURED_COLUMN_NAME_TAKEN": _POSTGRESQL,
    "CAPTURED_TABLE_CHANGED": "postgresql/test_schema_changes.py",
    "CAPTURED_TABLE_NOT_LOGGED": _MYSQL,
    "CAPTURED_TABLE_TOO_LARGE": "postgresql/test_identities.py",
    "CAPTURED_TABLE_WITHOUT_KEY": _POSTGRESQL,
    "CAPTURED_TYPE_NOT_SUPPORTED": _MYSQL,
    "CAPTURE_COPY_FAILED": "postgresql/test_copy_killed.py",
    "CAPTURE_PUBLICATION_INCOMPLETE": "postgresql/test_identities.py",
    "CAPTURE_PUBLICATION_MISSING": "postgresql/test_identities.py",
    "CAPTURE_RIGHTS_MISSING": _POSTGRESQL,
    "CAPTURE_SLOT_IN_USE": "postgresql/test_identities.py",
    "CAPTURE_SLOT_NOT_USABLE": "postgresql/test_identities_of_servers.py",
    "CAPTURE_WAITS_FOR_TRANSACTIONS": "postgresql/test_change_log.py",
    "CAPTURE_WITHOUT_TABLES": _POSTGRESQL,
    "DELTA_FEATURE_UNSUPPORTED": "../foreign/test_delta.py",
    "SOURCE_LOG_LOST": "postgresql/test_identities_of_servers.py",
}
_NAMES_ALLOWED = "the hint says what may stand there"
_OF_MACHINE = "the hint is about the machine or the network, which tests leave alone"
_OF_OWNER = "the hint is about what the owner of the table writes"
_DAMAGED = "no server of ours writes such a log: tests write its bytes"
NOT_FOLLOWED = {
    "CAPTURED_TABLE_NAME_TAKEN": _NAMES_ALLOWED,
    "CAPTURED_TEXT_NOT_DECODABLE": "only a server with damaged pages, or of SQL_ASCII before, has such texts",
    "CAPTURED_VALUES_TOO_LONG": "it takes values of more than 2 GiB",
    "CAPTURE_DATABASE_MISSING": _NAMES_ALLOWED,
    "CAPTURE_DATABASE_NOT_REACHABLE": _OF_MACHINE,
    "CAPTURE_DRIVER_MISSING": _OF_MACHINE,
    "CAPTURE_LOGIN_REFUSED": _NAMES_ALLOWED,
    "CAPTURE_LOG_FILE_NOT_READABLE": "a file of the log that is damaged, or that another user owns",
    "CAPTURE_NAME_INVALID": _NAMES_ALLOWED,
    "CAPTURE_POLICY_UNKNOWN": _NAMES_ALLOWED,
    "CAPTURE_PROPERTIES_INVALID": _NAMES_ALLOWED,
    "CAPTURE_QUERY_FAILED": "what the server answers is not known before",
    "CAPTURE_SERVER_NOT_USABLE": "the hints are for the server's administrator, some need a restart",
    "CAPTURE_SERVER_SWITCHED": "the next look ends it",
    "CAPTURE_SNAPSHOT_NOT_REACHED": "a thread that holds a GTID for minutes",
    "CAPTURE_URL_INVALID": _NAMES_ALLOWED,
    "CHANGE_EVENTS_OPTION_UNKNOWN": _NAMES_ALLOWED,
    "CHANGE_EVENTS_WITHOUT_OFFSETS": _NAMES_ALLOWED,
    "CHANGE_LOG_EVENT_DAMAGED": _DAMAGED,
    "CHANGE_LOG_EVENT_NOT_SUPPORTED": _DAMAGED,
    "CHANGE_LOG_MESSAGE_UNKNOWN": _DAMAGED,
    "CHANGE_LOG_TRANSACTION_TOO_LARGE": _DAMAGED,
    "DEBEZIUM_OPTION_UNKNOWN": _NAMES_ALLOWED,
    "DELTA_LOG_UNREADABLE": "the next cut reads it again",
    "DELTA_PARTITION_UNREADABLE": _OF_OWNER,
    "DELTA_TABLE_MISSING": _NAMES_ALLOWED,
    "DELTA_TYPE_UNSUPPORTED": _OF_OWNER,
    "DELTA_VECTOR_UNREADABLE": "the next run reads the newest version",
    "HUDI_FEATURE_UNSUPPORTED": _OF_OWNER,
    "HUDI_LOG_FILES_UNSUPPORTED": _OF_OWNER,
    "HUDI_PARTITION_UNREADABLE": _OF_OWNER,
    "HUDI_TABLE_MISSING": _NAMES_ALLOWED,
    "HUDI_TIMELINE_UNREADABLE": "the next cut reads it again",
    "HUDI_TYPE_UNSUPPORTED": _OF_OWNER,
    "INVALID_LOG_RETENTION": _NAMES_ALLOWED,
    "KAFKA_CLIENT_MISSING": _OF_MACHINE,
    "KAFKA_NOT_ASKED": _OF_MACHINE,
    "PAIMON_COLUMN_AMBIGUOUS": _OF_OWNER,
    "PAIMON_FEATURE_UNSUPPORTED": _OF_OWNER,
    "PAIMON_MERGE_UNSUPPORTED": _OF_OWNER,
    "PAIMON_SNAPSHOT_UNREADABLE": "the next cut reads it again",
    "PAIMON_TABLE_MISSING": _NAMES_ALLOWED,
    "PAIMON_TYPE_UNSUPPORTED": _OF_OWNER,
    "PAIMON_VECTOR_UNREADABLE": "the next run reads the newest version",
    "UNCHANGED_VALUE_OF_NEW_KEY": "the hint is --full-refresh, which others follow",
}


@cache
def _classes() -> tuple[Raised, ...]:
    """Those that `sources` raises; helpers of other packages raise some of them."""
    own = [path.read_text() for path in sorted((_PACKAGE / "sources").rglob("*.py"))]
    others = [path.read_text() for path in sorted(_PACKAGE.rglob("*.py")) if "sources" not in path.parts]
    entries = read([*own, *(text for text in others if "error_class" in text)])
    return tuple(entry for entry in entries if any(f'"{entry.error_class}"' in text for text in own))


def test_all_classes_are_listed() -> None:
    assert {entry.error_class for entry in _classes()} == FOLLOWED.keys() | NOT_FOLLOWED.keys()
    assert not FOLLOWED.keys() & NOT_FOLLOWED.keys()


def test_all_classes_have_hints() -> None:
    without = {entry.error_class for entry in _classes() if not entry.hint}
    # The database's own sentence says what is wrong.
    assert without == {"CAPTURE_QUERY_FAILED"}


def test_tests_that_follow_hints_are_there() -> None:
    assert all((_TESTS / path).exists() for path in FOLLOWED.values())
