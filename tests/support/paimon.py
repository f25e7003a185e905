"""PyPaimon as a reader of tables.

It needs older packages than the project does (pyarrow before 20, cachetools before 6). So it has an
environment of its own, which the first use installs from a lock file of its own.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.storage.s3 import KEY, REGION, SECRET

__all__ = [
    "alter_table",
    "append_rows",
    "create_table",
    "create_tag",
    "delete_rows",
    "paimon_rows",
    "paimon_snapshots",
    "roll_back",
]

LOCK = Path(__file__).with_name("paimon_reader.lock")
CACHE = Path(__file__).parents[2] / ".work"
PROGRAM = Path(__file__).with_name("paimon_reader.py")


def environment() -> Path:
    """The Python of the environment. It is installed if it is not there."""
    version = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = CACHE / f"paimon-reader-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix="paimon-reader-", dir=folder.parent))
        uv = str(Path(sys.executable).with_name("uv"))
        python = str(draft / "bin" / "python")
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(draft)], check=True)
        subprocess.run(
            [uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes", str(LOCK)], check=True
        )
        try:
            draft.rename(folder)
        except OSError:
            # Another process of the tests was faster.
            shutil.rmtree(draft)
    return folder / "bin" / "python"


class Reader:
    """The process."""

    def __init__(self) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [environment(), PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean
        )
        atexit.register(self._end)

    def ask(self, what: str, folder: Any, **request: Any) -> dict[str, Any]:
        """
        Args:
            folder: of the table, in a warehouse; a path, or an `S3Path`.
        """
        table = f"{folder.parent.name.removesuffix('.db')}.{folder.name}"
        warehouse = str(folder.parent.parent).replace("s3a://", "s3://")
        request |= {"what": what, "catalog": {"warehouse": warehouse, **_options(folder)}, "table": table}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait()


@cache
def reader() -> Reader:
    return Reader()


def _options(folder: Any) -> dict[str, str]:
    """The options by which PyPaimon opens a folder on the server of the tests."""
    if isinstance(folder, Path):
        return {}
    return {
        "s3.endpoint": folder.client.meta.endpoint_url,
        "s3.access-key": KEY,
        "s3.secret-key": SECRET,
        "s3.region": REGION,
        "s3.path.style.access": "true",
    }


def paimon_rows(folder: Any, version: str | None = None, *, tag: str | None = None) -> pa.Table:
    """The rows of a Paimon table."""
    scan = {"scan.snapshot-id": version, "scan.tag-name": tag}
    options = {option: value for option, value in scan.items() if value is not None}
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        reader().ask("rows", folder, options=options, path=file.name)
        with pa.OSFile(file.name) as source:
            return pa.ipc.open_file(source).read_all()


def paimon_snapshots(folder: Any) -> list[str]:
    """The snapshots that are there."""
    return [str(number) for number in reader().ask("snapshots", folder)["snapshots"]]


def create_table(
    folder: Path,
    types: dict[str, str],
    *,
    partition_keys: Sequence[str] = (),
    primary_keys: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> None:
    """
    Args:
        types: of the columns, as pyarrow names them, or one of `paimon_reader.TYPES`.
    """
    keys = {"partition_keys": list(partition_keys), "primary_keys": list(primary_keys)}
    reader().ask("create", folder, types=types, options=dict(options or {}), **keys)


def alter_table(folder: Path, *changes: tuple[str, ...]) -> None:
    """
    Args:
        changes: of columns: rename old new, drop name, add name type, widen name type; option key value.
    """
    reader().ask("alter", folder, changes=changes)


def delete_rows(folder: Path, *ids: int) -> None:
    """Delete rows by their column `id`."""
    reader().ask("delete", folder, ids=ids)


def roll_back(folder: Path, snapshot: int) -> None:
    reader().ask("roll back", folder, snapshot=snapshot)


def append_rows(folder: Path, types: dict[str, str], *rows: dict[str, Any], overwrites: bool = False) -> None:
    """Append rows as another program does.

    Args:
        types: of the columns, as pyarrow names them.
        overwrites: the other rows go.
    """
    reader().ask("append", folder, types=types, rows=rows, overwrites=overwrites)


def create_tag(folder: Path, name: str, snapshot: str) -> None:
    reader().ask("tag", folder, name=name, snapshot=int(snapshot))


if __name__ == "__main__":
    print(environment())  # noqa: T201
