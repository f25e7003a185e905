"""What a defect leaves behind: one file with its whole traceback, in `<storage>/logs`.

A failure that nobody foresaw is shown to people as one line. Its stack is kept here for whoever has to find
the cause. A file per defect needs no lock between processes; the oldest go when there are too many. Nothing
that fails here stops the work that it is about, but the line then says so.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from tautochrone.errors import LakeError, RefreshError, TautochroneError
from tautochrone.redaction import without_literals

__all__ = [
    "Trace",
    "defect_error",
    "is_defect",
    "keep_traces",
    "logs_of",
    "show_traces",
    "trace_of",
    "traces_in",
]

_SUFFIX = ".trace"
_KEPT_FILES = 50
_KEPT_BYTES = 64 * 1024
_REPEATED_S = 3600.0
"""The same stack is written once per this time, so that a loop does not push out other traces."""
_HEAD = ("at", "where", "class", "message", "process")
_WORD = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Trace:
    """A defect that was written down; `where` is what was under way."""

    at: str
    where: str
    error_class: str
    message: str
    file: Path


_folder: Path | None = None
_at_once = False
_numbers = count(1)
_written: dict[str, tuple[Path, float]] = {}
_lock = threading.Lock()


def logs_of(storage: str) -> Path:
    """Where the traces of a project are."""
    return Path(storage) / "logs"


def keep_traces(folder: Path) -> None:
    """From now on traces of this process go into `folder`, which is made for the first one."""
    global _folder
    _folder = folder


def show_traces() -> None:
    """From now on traces are also written to stderr at once: `--debug`."""
    global _at_once
    _at_once = True


def is_defect(error: BaseException) -> bool:
    """Whether nobody foresaw this: not an error of ours, or one that passes on a Java exception that nobody
    explained."""
    if not isinstance(error, TautochroneError):
        return True
    # Py4J is not for every command: half a second of imports.
    return type(error) in (LakeError, RefreshError) and type(error.__cause__).__name__ == "Py4JJavaError"


def defect_error(error: BaseException, trace: str, location: str | None = None) -> TautochroneError:
    """What people are shown of an unexpected exception.

    Args:
        trace: where its stack is, as `trace_of` says it.
        location: what was under way when it was raised.
    """
    first = (str(error).strip().splitlines() or [""])[0]
    return TautochroneError(
        "INTERNAL_ERROR",
        f"{type(error).__name__}: {first}",
        location=location,
        hint=f"this is a defect of Tautochrone; {trace}; report it with a `taut support-bundle`",
    )


def trace_of(error: BaseException, where: str, more: Mapping[str, str] | None = None) -> str:
    """Write a defect down.

    Args:
        error: with its traceback and its causes.
        where: what was under way, such as `refresh lake.default.totals`.
        more: further texts for the file, by title.

    Returns:
        Words for the line that people see: where the trace is, or why there is none.
    """
    stack = "".join(traceback.format_exception(error))
    parts = [stack, *(f"{title}:\n{text}\n" for title, text in (more or {}).items() if text)]
    text = without_literals("\n".join(parts))
    if _at_once:
        sys.stderr.write(text)
    if _folder is None:
        return "its trace is not kept: no project's storage is known"
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    same = f"{type(error).__name__} {frames}"
    with _lock:
        known, at = _written.get(same, (None, 0.0))
        if known is not None and time.monotonic() - at < _REPEATED_S and known.exists():
            return f"its trace is in {known}"
        try:
            path = _write(_folder, error, where, text)
            _forget_oldest(_folder)
        except OSError as problem:
            return f"its trace could not be written: {problem}"
        _written[same] = path, time.monotonic()
    return f"its trace is in {path}"


def traces_in(folder: Path) -> list[Trace]:
    """The traces in a folder, newest first."""
    paths = []
    for path in sorted(folder.glob(f"*{_SUFFIX}"), reverse=True):
        try:
            with path.open(encoding="utf-8", errors="replace") as lines:
                head = dict(
                    line.rstrip("\n").partition(": ")[::2] for line, _ in zip(lines, _HEAD, strict=False)
                )
        except FileNotFoundError:
            # Another process has just made room.
            continue
        at, where, error_class, message = (head.get(key, "") for key in _HEAD[:4])
        paths.append(Trace(at, where, error_class, message, path))
    return paths


def _write(folder: Path, error: BaseException, where: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    at = datetime.now(UTC)
    kind = error.error_class if isinstance(error, TautochroneError) else type(error).__name__
    message = (without_literals(str(error)).strip().splitlines() or [""])[0][:500]
    values = (at.isoformat(timespec="milliseconds"), where, kind, message, str(os.getpid()))
    head = "".join(f"{key}: {value}\n" for key, value in zip(_HEAD, values, strict=True))
    name = f"{at:%Y%m%dT%H%M%S.%f}-{os.getpid()}-{next(_numbers)}-{_WORD.sub('_', kind)[:60]}"
    path, whole = folder / f"{name}{_SUFFIX}", f"{head}\n{text}".encode(errors="replace")
    if len(whole) > _KEPT_BYTES:
        # The beginning says what it is, the end of a Python stack where it happened.
        half = _KEPT_BYTES // 2
        whole = whole[:half] + b"\n[...]\n" + whole[-half:]
    # Readers see whole files only.
    draft = folder / f".{name}"
    draft.write_bytes(whole)
    draft.rename(path)
    return path


def _forget_oldest(folder: Path) -> None:
    # Their names begin with their time.
    for path in sorted(folder.glob(f"*{_SUFFIX}"))[:-_KEPT_FILES]:
        path.unlink(missing_ok=True)
