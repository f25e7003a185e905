"""A client of S3 whose bucket is in memory: each of its requests can be counted, or fail."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

__all__ = ["MemoryClient"]

WRITES = ("put_object", "copy", "upload_file", "delete_object")


class MemoryClient:
    """As far as `S3Path` uses one.

    Attributes:
        objects: by key their content and metadata.
        requests: the call and key of each.
        before: called before each request; it may raise.
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda _call, _key: None
        self._lock = threading.Lock()

    def keys(self, call: str) -> list[str]:
        """Of the requests with this call."""
        return [key for name, key in self.requests if name == call]

    def fail_at(self, number: int) -> None:
        """The n-th request from now on gets no answer."""
        left = number

        def count(_call: str, _key: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise ReadTimeoutError(endpoint_url="http://memory")

        self.before = count

    def _asked(self, call: str, key: str) -> None:
        with self._lock:
            self.requests.append((call, key))
            self.before(call, key)

    def _object(self, key: str) -> tuple[bytes, dict[str, str]]:
        if key not in self.objects:
            raise ClientError({"Error": {"Code": "404"}}, "HeadObject")
        return self.objects[key]

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
        self._asked("head_object", Key)
        content, metadata = self._object(Key)
        return {"ContentLength": len(content), "LastModified": datetime.now(UTC), "Metadata": metadata}

    def get_object(self, *, Bucket: str, Key: str, Range: str = "") -> dict[str, Any]:  # noqa: N803
        self._asked("get_object", Key)
        content = self._object(Key)[0]
        if Range:
            first, last = map(int, Range.removeprefix("bytes=").split("-"))
            content = content[first : last + 1]
        return {"Body": io.BytesIO(content)}

    def put_object(
        self,
        *,
        Bucket: str,  # noqa: N803
        Key: str,  # noqa: N803
        Body: bytes,  # noqa: N803
        IfNoneMatch: str = "",  # noqa: N803
        Metadata: dict[str, str] | None = None,  # noqa: N803
    ) -> dict[str, Any]:
        self._asked("put_object", Key)
        with self._lock:
            if IfNoneMatch and Key in self.objects:
                raise ClientError({"Error": {"Code": "412"}}, "PutObject")
            self.objects[Key] = Body, Metadata or {}
        return {}

    def delete_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
        self._asked("delete_object", Key)
        self.objects.pop(Key, None)
        return {}

    def copy(self, original: dict[str, str], _bucket: str, key: str) -> None:
        self._asked("copy", key)
        self.objects[key] = self._object(original["Key"])

    def upload_file(self, file: str, _bucket: str, key: str) -> None:
        self._asked("upload_file", key)
        self.objects[key] = Path(file).read_bytes(), {}

    def list_objects_v2(self, *, Bucket: str, Prefix: str, MaxKeys: int) -> dict[str, Any]:  # noqa: N803
        self._asked("list_objects_v2", Prefix)
        return {"KeyCount": sum(key.startswith(Prefix) for key in self.objects)}

    def get_paginator(self, _call: str) -> MemoryClient:
        return self

    def paginate(self, *, Bucket: str, Prefix: str, Delimiter: str = "") -> Iterator[dict[str, Any]]:  # noqa: N803
        self._asked("list_objects_v2", Prefix)
        entries, folders = [], set()
        for key in sorted(self.objects):
            if key.startswith(Prefix):
                name, slash, _ = key.removeprefix(Prefix).partition("/")
                if Delimiter and slash:
                    folders.add(f"{Prefix}{name}/")
                else:
                    entries.append({"Key": key, "Size": len(self.objects[key][0])})
        yield {"Contents": entries, "CommonPrefixes": [{"Prefix": folder} for folder in sorted(folders)]}
