"""The service's log on stderr: lines of text or one JSON object per line, with secrets redacted."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from tautochrone.redaction import redacted

__all__ = ["FIELDS", "log_to_stderr"]

FIELDS = "tautochrone_fields"
"""The key of `extra` for the fields that a JSON line has besides its message."""


def log_to_stderr(*, as_json: bool) -> None:
    """Send this process's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # They log each request with the whole URL, and each connection to Spark.
    for name in ("httpx", "httpcore", "uvicorn.access", "py4j"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _timestamp(record: logging.LogRecord) -> str:
    created = datetime.fromtimestamp(record.created, UTC)
    return created.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redacted(json.dumps(line, default=str))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value!r}" for key, value in getattr(record, FIELDS, {}).items())
        line = f"{_timestamp(record)} {record.levelname:<7} {record.getMessage()}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redacted(line)
