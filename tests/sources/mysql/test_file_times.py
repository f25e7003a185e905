"""From when on a log expires when the server's answers change meanwhile, and how often it is asked."""

from __future__ import annotations

import pytest

from tautochrone.errors import IngestError
from tautochrone.sources.mysql import server

NOW_S = 1_000


class Listing:
    """A server that keeps its log for 5 s, and begins each file at 1 s per number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lists: str) -> None:
        self.lists, self.dumped = [list(files) for files in lists], list[str]()
        self.readable = True
        monkeypatch.setattr(server, "fetch", self._fetch)
        monkeypatch.setattr(server, "fetch_one", lambda _connection, _query: (NOW_S,))
        monkeypatch.setattr(server, "file_begun_ms", self._begun_ms)
        self.times = server.FileTimes(lambda: None)

    def changed_ms(self, file: str) -> int | None:
        return server._changed_ms(None, self.times, "the server", file)

    def _fetch(self, _connection: object, _query: str) -> list[tuple[str]]:
        files = self.lists[0]
        if len(self.lists) > 1:
            del self.lists[0]
        return [(file,) for file in files]

    def _begun_ms(self, _connect: object, file: str) -> int | None:
        self.dumped.append(file)
        return ord(file) * 1_000 if self.readable and file in self.lists[0] else None


def test_a_file_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing(monkeypatch, "abc")
    assert [listing.changed_ms("a") for _ in range(3)] == [ord("b") * 1_000] * 3
    assert listing.dumped == ["b"]
    assert listing.changed_ms("b") == ord("c") * 1_000
    assert listing.dumped == ["b", "c"]
    server_after_failover = listing.times.begun_ms("another server", "c")
    assert server_after_failover == ord("c") * 1_000
    assert listing.dumped == ["b", "c", "c"]


def test_only_the_newest_file_is_changed_now(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing(monkeypatch, "abc")
    assert listing.changed_ms("c") == NOW_S * 1_000
    assert listing.changed_ms("x") is None
    assert listing.dumped == []


@pytest.mark.parametrize(("then", "changed_ms"), [("cd", None), ("acd", ord("c") * 1_000)])
def test_a_following_file_that_was_removed_is_no_good_news(
    monkeypatch: pytest.MonkeyPatch, then: str, changed_ms: int | None
) -> None:
    listing = Listing(monkeypatch, "abcd", then)
    assert listing.changed_ms("a") == changed_ms


def test_a_file_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing(monkeypatch, "ab")
    listing.readable = False
    with pytest.raises(IngestError, match=r"CAPTURE_LOG_FILE_NOT_READABLE.* b "):
        listing.changed_ms("a")
