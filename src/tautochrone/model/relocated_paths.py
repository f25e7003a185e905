"""A folder that is somewhere else now: absolute paths below the old place as paths below the new one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

__all__ = ["MovedFolder", "spellings"]

_SCHEME = re.compile(r"^file:(//[^/]*)?(?=/)")
_ASCII_OF_A_PATH = "/_-!.~'()*,;:$&+=@"
"""What Java leaves as it is in the path of a URI, letters and digits aside."""


@dataclass(frozen=True, slots=True)
class MovedFolder:
    """`old` are the spellings of where the folder was, `new` is where it is: absolute paths without a scheme.

    >>> moved = MovedFolder(("/a/x",), "/b/y")
    >>> moved.path("/a/x/t.parquet"), moved.path("file:///a/x/t"), moved.path("/a/xyz")
    ('/b/y/t.parquet', 'file:///b/y/t', None)
    """

    old: tuple[str, ...]
    new: str

    def path(self, text: str) -> str | None:
        """A location of the old folder, with or without a scheme, in the new one; None for any other,
        one of the new folder included. As Iceberg writes locations: not percent-encoded."""
        scheme = _SCHEME.match(text)
        head, plain = ("", text) if scheme is None else (scheme[0], text[scheme.end() :])
        inside = self._path_in_folder(plain)
        return None if inside is None else f"{head}{self.new}{inside}"

    def uri(self, text: str) -> str | None:
        """The same for a percent-encoded `file:` URI, as Spark writes the names of source files."""
        scheme = _SCHEME.match(text)
        if scheme is None:
            return None
        inside = self._path_in_folder(unquote(text[scheme.end() :]))
        return None if inside is None else f"{scheme[0]}{_encoded(self.new + inside)}"

    def is_new(self, text: str) -> bool:
        """Whether a location lies in the new folder, and not in an old one inside of it."""
        plain = _SCHEME.sub("", text)
        return _below(plain, self.new) is not None and self._path_in_folder(plain) is None

    def _path_in_folder(self, plain: str) -> str | None:
        """The part of an old path behind the folder. Where one of the two folders is inside the other one,
        the longer name decides to which of them a path belongs."""
        for old in sorted(self.old, key=len, reverse=True):
            inside = _below(plain, old)
            if inside is None:
                continue
            if len(self.new) > len(old) and _below(plain, self.new) is not None:
                return None
            return inside
        return None


def spellings(*folders: str) -> tuple[str, ...]:
    """Each different name once, without a slash at its end."""
    return tuple(dict.fromkeys(folder.rstrip("/") for folder in folders if folder.rstrip("/")))


def _below(path: str, folder: str) -> str | None:
    path = re.sub("/+", "/", path)
    return (
        path[len(folder) :]
        if path == folder or PurePosixPath(folder) in PurePosixPath(path).parents
        else None
    )


def _encoded(path: str) -> str:
    return "".join(sign if ord(sign) > 127 else quote(sign, safe=_ASCII_OF_A_PATH) for sign in path)
