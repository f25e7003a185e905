"""Objects in a bucket as paths, as far as publications need what `pathlib` has.

A bucket has no folders: a folder is there as long as there is an object below it. It has no renames and no
links either. But a PUT shows an object whole or not at all, and one with `If-None-Match: *` creates it only
if it is not there, on servers that know this condition.

Why no library for paths in buckets: pyarrow's has no conditional PUT, the copies of obstore end at 5 GB, and
with s3fs as with the others the rules for lost answers and conflicts would stay here.
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from tautochrone.model.backoff import Backoff
from tautochrone.model.s3 import S3_OPTIONS
from tautochrone.sinks.common.options import invalid_option_error, needs_package

__all__ = ["ObjectStatus", "S3Path", "StoredPath", "s3_folder"]

_TRIES = 5
_CONFLICTS = Backoff(first_s=0.05, longest_s=1.0)
_WRITERS = 8
_ROUNDS = 6
"""One round of so many writers shows what a server does in about half of the cases at least."""
_WRITER = "writer"
"""The metadata of an object that names the call which created it."""


def s3_folder(sink: str, location: str, options: Mapping[str, str]) -> S3Path:
    """A folder on S3.

    Args:
        options: some of `model.s3.S3_OPTIONS`. Without keys those of the environment are taken.

    Raises:
        SinkError: `SINK_PACKAGE_MISSING`, `SINK_OPTION_INVALID`.
    """
    with needs_package(sink, "boto3", "s3"):
        from botocore.exceptions import BotoCoreError

        try:
            client = _client(tuple(options.get(option, "") for option in S3_OPTIONS))
        except (ValueError, BotoCoreError) as error:
            raise invalid_option_error(
                sink,
                f"has options of S3 with which no server can be asked: {error}",
                "s3.endpoint is a URL, as http://minio:9000, and s3.region a name, as us-east-1. A key needs "
                "its secret.",
            ) from error
    return S3Path.parse(location, client)


@lru_cache(maxsize=16)
def _client(options: tuple[str, ...]) -> Any:
    import boto3
    from botocore.config import Config

    endpoint, region, key, secret, token, path_style = options
    config = Config(
        retries={"mode": "standard", "max_attempts": _TRIES},
        s3={"addressing_style": "path" if path_style.lower() == "true" else "auto"},
        # Servers other than Amazon's do not know the check sums that newer clients add.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint or None,
        region_name=region or None,
        aws_access_key_id=key or None,
        aws_secret_access_key=secret or None,
        aws_session_token=token or None,
        config=config,
    )


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """As `os.stat_result` names it. An object is written as a whole, so both times are that of its PUT."""

    st_size: int
    st_mtime: float

    @property
    def st_ctime(self) -> float:
        return self.st_mtime


@dataclass(frozen=True, slots=True, order=True)
class S3Path:
    """An object, or a folder of objects.

    Attributes:
        bucket: with its scheme, as `s3a://bucket`.
        key: in the bucket, without slashes around it.

    Raises:
        FileNotFoundError: of what reads: there is no such object.
        OSError: of all that asks the server: it does not answer, or refuses.

    Example:
        >>> S3Path.parse("s3a://bucket/shop/orders/", None) / "data" / "a.parquet"
        S3Path(bucket='s3a://bucket', key='shop/orders/data/a.parquet')
    """

    bucket: str
    key: str
    client: Any = field(compare=False, repr=False)

    @classmethod
    def parse(cls, location: str, client: Any) -> S3Path:
        """Of a location with a scheme."""
        scheme, _, rest = location.partition("://")
        bucket, _, key = rest.partition("/")
        return cls(f"{scheme}://{bucket}", key.strip("/"), client)

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> S3Path:
        return self._with_key(f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> S3Path:
        return self._with_key(self.key.rpartition("/")[0])

    def with_name(self, name: str) -> S3Path:
        return self.parent / name

    def relative_to(self, folder: S3Path) -> PurePosixPath:
        return PurePosixPath(self.key).relative_to(folder.key)

    # -- reading ----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is such an object; `is_dir` says it of a folder."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether there is an object in this folder."""
        answer = self._ask("list_objects_v2", Key=None, Prefix=f"{self.key}/", MaxKeys=1)
        return bool(answer.get("KeyCount"))

    def stat(self) -> ObjectStatus:
        answer = self._ask("head_object")
        return ObjectStatus(int(answer["ContentLength"]), answer["LastModified"].timestamp())

    def read_bytes(self) -> bytes:
        with self._reported():
            content: bytes = self._ask("get_object")["Body"].read()
        return content

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def read_range(self, offset: int, length: int) -> bytes:
        """Bytes from `offset`, fewer at the end of the object."""
        if length <= 0:
            return b""
        try:
            with self._reported():
                answer = self._ask("get_object", Range=f"bytes={offset}-{offset + length - 1}")
                content: bytes = answer["Body"].read()
        except _BehindTheEndError:
            return b""
        return content

    def open(self, mode: str = "rb", size: int | None = None) -> io.BufferedReader:  # noqa: ARG002
        """For reading, in any order. The server is asked for the size in bytes if it is not known."""
        known = self.stat().st_size if size is None else size
        return io.BufferedReader(_ObjectReader(self, known), buffer_size=1 << 16)

    def iterdir(self) -> Iterator[S3Path]:
        return (path for path, _ in self._children(""))

    def glob(self, pattern: str) -> Iterator[S3Path]:
        """As `Path.glob`, without `**`."""
        name, slash, rest = pattern.partition("/")
        first = min((name.find(sign) for sign in "*?[" if sign in name), default=-1)
        if slash and first < 0:
            yield from (self / name).glob(rest)
            return
        for path, is_folder in self._children(name if first < 0 else name[:first]):
            if not fnmatchcase(path.name, name):
                continue
            if not slash:
                yield path
            elif is_folder:
                yield from path.glob(rest)

    def sizes(self) -> dict[str, int]:
        """By name the bytes of each object in this folder, without those in folders of it."""
        pages = self._pages(Prefix=f"{self.key}/", Delimiter="/")
        entries = (entry for page in pages for entry in page.get("Contents", ()))
        return {self._with_key(entry["Key"]).name: int(entry["Size"]) for entry in entries}

    def below(self) -> Iterator[S3Path]:
        """All objects in this folder and in those below it."""
        for page in self._pages(Prefix=f"{self.key}/"):
            yield from (self._with_key(entry["Key"]) for entry in page.get("Contents", ()))

    def _children(self, prefix: str) -> Iterator[tuple[S3Path, bool]]:
        """What is in this folder under names that begin with `prefix`, and whether it is a folder."""
        folder = f"{self.key}/" if self.key else ""
        for page in self._pages(Prefix=folder + prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield self._with_key(entry["Prefix"].rstrip("/")), True
            for entry in page.get("Contents", ()):
                # Some tools write an empty object for a folder.
                if entry["Key"] != folder:
                    yield self._with_key(entry["Key"]), False

    # -- writing ----------------------------------------------------------------------------------

    def put(self, content: bytes) -> None:
        """Write the object, whether it is there or not."""
        self._ask("put_object", Body=content)

    def create(self, content: bytes) -> bool:
        """Write the object if it is not there; whether it was not. The server must know the condition, see
        `refuses_second`."""
        writer = uuid.uuid4().hex
        for tries in range(1, _TRIES + 1):
            try:
                self._ask("put_object", Body=content, IfNoneMatch="*", Metadata={_WRITER: writer})
            except FileExistsError:
                # The client repeats a request whose answer was lost, so the object may be its own.
                return bool(self._ask("head_object")["Metadata"].get(_WRITER) == writer)
            except _ConflictError:
                # The other write is not done yet.
                time.sleep(_CONFLICTS.wait_s(tries))
                continue
            return True
        raise OSError(f"{self}: other writers were there each time")

    def refuses_second(self) -> bool:
        """Whether the server creates this object only once. It is there then."""
        return not (self.create(b"") and self.create(b""))

    def has_one_creator(self) -> bool:
        """Whether of several writers who create an object in this folder at the same time one succeeds. Some
        servers look first whether it is there and write then, so that a second one overwrites it."""
        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in range(_ROUNDS):
                path = self / uuid.uuid4().hex
                creators = sum(pool.map(S3Path.create, [path] * _WRITERS, [b""] * _WRITERS))
                path.unlink()
                if creators != 1:
                    return False
        return True

    def copy_from(self, source: Path | S3Path) -> None:
        """Write the object with the content of another one, or of a file. The server copies what it has."""
        with self._reported():
            if isinstance(source, Path):
                self.client.upload_file(str(source), self.bucket_name, self.key)
            else:
                original = {"Bucket": source.bucket_name, "Key": source.key}
                self.client.copy(original, self.bucket_name, self.key)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: the first object makes the folder."""

    def unlink(self, *, missing_ok: bool = False) -> None:  # noqa: ARG002
        """A server says the same, whether the object was there or not."""
        self._ask("delete_object")

    # -- the server -------------------------------------------------------------------------------

    @property
    def bucket_name(self) -> str:
        return self.bucket.partition("://")[2]

    def _with_key(self, key: str) -> S3Path:
        return S3Path(self.bucket, key, self.client)

    def _ask(self, call: str, **arguments: Any) -> Mapping[str, Any]:
        named = {"Bucket": self.bucket_name, "Key": self.key, **arguments}
        method: Callable[..., Mapping[str, Any]] = getattr(self.client, call)
        with self._reported():
            return method(**{name: value for name, value in named.items() if value is not None})

    def _pages(self, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        with self._reported():
            paginator = self.client.get_paginator("list_objects_v2")
            yield from paginator.paginate(Bucket=self.bucket_name, **arguments)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Errors of the client as those of a file system."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            kind = _ERRORS.get(str(error.response.get("Error", {}).get("Code")), OSError)
            raise kind(f"{self}: {error}") from error
        except (BotoCoreError, Boto3Error) as error:
            raise OSError(f"{self}: {error}") from error


StoredPath = Path | S3Path


class _ConflictError(OSError):
    """Another writer of the same object was at work."""


class _BehindTheEndError(OSError):
    """The object is shorter than where reading begins."""


_ERRORS: Mapping[str, type[OSError]] = {
    "404": FileNotFoundError,
    "NoSuchKey": FileNotFoundError,
    "403": PermissionError,
    "AccessDenied": PermissionError,
    "412": FileExistsError,
    "PreconditionFailed": FileExistsError,
    "409": _ConflictError,
    "ConditionalRequestConflict": _ConflictError,
    "416": _BehindTheEndError,
    "InvalidRange": _BehindTheEndError,
}


class _ObjectReader(io.RawIOBase):
    """Reads ranges of an object."""

    def __init__(self, path: S3Path, size: int) -> None:
        self._path = path
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_CUR: self._position, io.SEEK_END: self._size}.get(whence, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(self._size - self._position, 0))
        content = self._path.read_range(self._position, length)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
