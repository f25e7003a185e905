"""The files of Iceberg's hadoop catalog, in a local folder or on S3. This module must not import Spark.

A table is the folder `WAREHOUSE/NAMESPACE/TABLE`, and its newest version is the metadata file with the
greatest number: `metadata/v12.metadata.json`. `version-hint.text` only tells where to begin looking.

Spark reads `s3a://` through Hadoop. The service that answers where tables are has no Spark, and reads their
metadata files itself, with Hadoop's settings of S3 as options of PyIceberg.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["is_table", "newest_metadata_file", "plain_path", "s3_options", "subfolders", "version_of"]


_METADATA_FILE = re.compile(r"v(\d+)(?:\.[a-z0-9]+)?\.metadata\.json")


def plain_path(location: str) -> Path:
    """A local location of Hadoop as a path: `file:/a b` and `/a b`. Hadoop does not encode blanks."""
    return Path(re.sub(r"^file:(//(?=/))?", "", location, count=1))


def version_of(file: Path) -> int | None:
    """The number of a metadata file; None for other files."""
    match = _METADATA_FILE.fullmatch(file.name)
    return None if match is None else int(match[1])


def newest_metadata_file(table_folder: Path) -> Path | None:
    """The metadata file with the greatest number; None when this is no table."""
    newest: tuple[int, Path] | None = None
    try:
        for file in (table_folder / "metadata").iterdir():
            version = version_of(file)
            if version is not None and (newest is None or version > newest[0]):
                newest = version, file
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if newest is None else newest[1]


def is_table(folder: Path) -> bool:
    """Whether a folder is a table; otherwise it is a namespace."""
    return newest_metadata_file(folder) is not None


def subfolders(folder: Path) -> Iterator[Path]:
    """The namespaces and tables directly in a folder, in order."""
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from (entry for entry in entries if entry.is_dir() and not entry.name.startswith((".", "_")))


_PREFIX = "spark.hadoop.fs.s3a."
_OPTIONS = {
    "access.key": "s3.access-key-id",
    "secret.key": "s3.secret-access-key",
    "session.token": "s3.session-token",
    "endpoint": "s3.endpoint",
    "endpoint.region": "s3.region",
}


def s3_options(conf: Mapping[str, str]) -> dict[str, str]:
    """PyIceberg's options for Spark's settings `spark.hadoop.fs.s3a.…`; empty when there are none.

    >>> s3_options({"spark.hadoop.fs.s3a.endpoint.region": "eu-west-1"})
    {'s3.region': 'eu-west-1'}
    """
    options = {
        option: conf[f"{_PREFIX}{name}"] for name, option in _OPTIONS.items() if f"{_PREFIX}{name}" in conf
    }
    endpoint = options.get("s3.endpoint", "")
    if endpoint and "://" not in endpoint:
        secure = conf.get(f"{_PREFIX}connection.ssl.enabled", "true").lower() == "true"
        options["s3.endpoint"] = f"{'https' if secure else 'http'}://{endpoint}"
    if options and f"{_PREFIX}path.style.access" in conf:
        virtual = conf[f"{_PREFIX}path.style.access"].lower() != "true"
        options["s3.force-virtual-addressing"] = str(virtual)
    return options
