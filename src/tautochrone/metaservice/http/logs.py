"""The service's log on stderr: lines for people, or one JSON object per line. No secret reaches it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from tautochrone.redaction import redacted

__all__ = ["FIELDS", "log_to_stderr"]

FIELDS = "tautochrone_fields"
"""Under this name `extra` carries what a JSON line has besides its message."""


def log_to_stderr(*, as_json: bool) -> None:
    """From now on this process's log goes to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Their own word about each request, with the whole URL, and about each connection to Spark.
    for name in ("httpx", "httpcore", "uvicorn.access", "py4j"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _when(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _when(record),
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
        more = "".join(f" {key}={value!r}" for key, value in getattr(record, FIELDS, {}).items())
        line = f"{_when(record)} {record.levelname:<7} {record.getMessage()}{more}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redacted(line)
