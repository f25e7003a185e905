"""Locations of folders and files, on this machine or in an object store: which one is in which."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["is_within", "real_location"]


def is_within(location: str, folder: str) -> bool:
    """Whether a path or URI is the folder, or is in it.

    >>> is_within("s3a://lake/prod/orders", "s3://lake/prod"), is_within("/data/prod2", "/data/prod")
    (True, False)
    """
    location, folder = real_location(location), real_location(folder)
    return bool(folder) and (location == folder or location.startswith(f"{folder.rstrip('/')}/"))


def real_location(location: str) -> str:
    """A local path without symbolic links; a URI with one spelling of its scheme. Other texts stay.

    >>> real_location("s3n://lake//prod/"), real_location("a_warehouse")
    ('s3://lake/prod', 'a_warehouse')
    """
    parts = urlsplit(location)
    if parts.scheme.lower() == "file":
        return os.path.realpath(unquote(parts.path))
    if parts.scheme and "://" in location:
        scheme = re.sub(r"^s3[an]$", "s3", parts.scheme.lower())
        path = re.sub("/+", "/", location.partition("://")[2].partition("/")[2]).strip("/")
        return f"{scheme}://{parts.netloc}/{path}".rstrip("/")
    return os.path.realpath(location) if Path(location).is_absolute() else location
