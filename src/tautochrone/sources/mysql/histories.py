"""Which transactions a log has before a position, by their GTIDs: what another server must have too, and
nothing else, to be the same database there."""

from __future__ import annotations

import struct
import uuid
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tautochrone.sources.mysql.binlog import Event

__all__ = ["History", "MariaDBHistory", "MySQLHistory"]

_PREVIOUS_GTIDS, _GTID, _GTID_LIST, _MARIADB_GTID = 35, 33, 163, 162
_COUNT_BITS = 28
"""Of a list of GTIDs; flags are above."""
Range = tuple[int, int]


@dataclass(slots=True)
class History:
    """Transactions up to a position.

    Attributes:
        ranges: what counts them → first and last numbers of ranges without gaps, in their order.
        time_s: of the first statement of the last transaction; None: it is not known. Numbers of two
            databases may be equal, so they prove nothing without it.
    """

    ranges: dict[str, list[Range]] = field(default_factory=dict)
    time_s: int | None = None

    @classmethod
    def read(cls, text: str) -> History | None:
        """From what `text` wrote, or a server; None: it has numbers that are not understood."""
        raise NotImplementedError

    def take(self, event: Event) -> bool:
        """The event that begins a transaction. False: its number is not understood."""
        raise NotImplementedError

    @classmethod
    def at_start(cls, event: Event) -> History | None:
        """From the event at a file's start that says what the log had before; None: it is another event."""
        raise NotImplementedError

    def is_same(self, other: History) -> bool:
        """Whether a log has exactly these transactions, and the last of them is that of `other`."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """
        >>> MySQLHistory({"a": [(1, 5), (7, 7)]}, 100).text
        '100|a:1-5:7-7'
        """
        sources = (
            f"{source}:{':'.join(f'{first}-{last}' for first, last in ranges)}"
            for source, ranges in self._in_order()
        )
        return f"{'' if self.time_s is None else self.time_s}|{','.join(sources)}"

    def _in_order(self) -> Iterable[tuple[str, Sequence[Range]]]:
        return self.ranges.items()

    def missing_in(self, other: History) -> str:
        """Transactions that `other` lacks, as people write them.

        >>> MySQLHistory({"a": [(1, 9)]}).missing_in(MySQLHistory({"a": [(1, 6)]}))
        'a:7-9'
        """
        return ", ".join(
            f"{source}:{first}" if first == last else f"{source}:{first}-{last}"
            for source, ranges in self.ranges.items()
            for first, last in _without_ranges(ranges, other.ranges.get(source, ()))
        )


class MySQLHistory(History):
    """Sets of numbers, by the UUID of the server that committed first."""

    __slots__ = ()

    @classmethod
    def read(cls, text: str) -> MySQLHistory | None:
        """
        >>> MySQLHistory.read("A:1-5:7,\\nB:1").text
        '|a:1-5:7-7,b:1-1'
        >>> MySQLHistory.read("A:tag:1-5") is None
        True
        """
        time_s, sets = _parts_of_gtid_sets(text)
        history = cls(time_s=time_s)
        for source, *numbers in sets:
            if not all(number.replace("-", "").isdigit() for number in numbers):
                return None
            ranges = [number.partition("-") for number in numbers]
            history.ranges[source.lower()] = [(int(first), int(last or first)) for first, _, last in ranges]
        return history

    def take(self, event: Event) -> bool:
        if event.kind != _GTID:
            return False
        self.add(_uuid_text(event.body[1:17]), int.from_bytes(event.body[17:25], "little"))
        return True

    def add(self, source: str, number: int) -> None:
        """
        >>> history = MySQLHistory({"a": [(1, 3), (5, 6)]})
        >>> history.add("a", 4); history.add("a", 9); history.ranges
        {'a': [(1, 6), (9, 9)]}
        """
        ranges = self.ranges.setdefault(source, [])
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
            return
        at = bisect(ranges, (number, number))
        first = last = number
        if at and ranges[at - 1][1] >= number - 1:
            at -= 1
            first, last = ranges[at][0], max(number, ranges[at][1])
            del ranges[at]
        if at < len(ranges) and ranges[at][0] == last + 1:
            last = ranges.pop(at)[1]
        ranges.insert(at, (first, last))

    @classmethod
    def at_start(cls, event: Event) -> MySQLHistory | None:
        if event.kind != _PREVIOUS_GTIDS:
            return None
        history = cls()
        # With tags the list has another form; its count is larger then than any that there is.
        (count,) = struct.unpack_from("<Q", event.body)
        at = 8
        for _ in range(count if count <= len(event.body) else 0):
            source = _uuid_text(event.body[at : at + 16])
            (ranges,) = struct.unpack_from("<Q", event.body, at + 16)
            numbers = struct.unpack_from(f"<{2 * ranges}Q", event.body, at + 24)
            history.ranges[source] = [
                (first, end - 1) for first, end in zip(numbers[::2], numbers[1::2], strict=True)
            ]
            at += 24 + 16 * ranges
        return history

    def is_same(self, other: History) -> bool:
        return self.ranges == other.ranges


class MariaDBHistory(History):
    """The last number by domain and server that committed first (`0-1`): a domain's last one stands last."""

    __slots__ = ()

    @classmethod
    def read(cls, text: str) -> MariaDBHistory:
        """
        >>> MariaDBHistory.read("0-1-100,0-2-50").text
        '|0-1:1-100,0-2:1-50'
        >>> MariaDBHistory.read("7|0-1:1-100").text
        '7|0-1:1-100'
        >>> MariaDBHistory.read("10-1-9,0-2-4,0-1-5").text
        '|0-2:1-4,0-1:1-5,10-1:1-9'
        """
        time_s, lists = _parts_of_gtid_sets(text)
        history = cls(time_s=time_s)
        for source, *ranges in lists:
            history.add(*(source.rsplit("-", 1) if not ranges else (source, ranges[0].partition("-")[2])))
        return history

    def take(self, event: Event) -> bool:
        if event.kind != _MARIADB_GTID:
            return False
        number, domain = struct.unpack_from("<QI", event.body)
        self.add(f"{domain}-{event.server}", number)
        return True

    def add(self, source: str, number: int | str) -> None:
        self.ranges.pop(source, None)
        self.ranges[source] = [(1, int(number))]

    def _in_order(self) -> Iterable[tuple[str, Sequence[Range]]]:
        # The server lists its domains in an order of its own, another one after each start.
        return sorted(self.ranges.items(), key=lambda source: int(source[0].partition("-")[0]))

    @classmethod
    def at_start(cls, event: Event) -> MariaDBHistory | None:
        if event.kind != _GTID_LIST:
            return None
        history = cls()
        (count,) = struct.unpack_from("<I", event.body)
        for domain, server, number in struct.iter_unpack(
            "<IIQ", event.body[4 : 4 + 16 * (count & ((1 << _COUNT_BITS) - 1))]
        ):
            history.add(f"{domain}-{server}", number)
        return history

    def is_same(self, other: History) -> bool:
        """A server that was made of a copy of another one has no numbers of what was before."""
        return _last_of_domains(self.ranges) == _last_of_domains(other.ranges) and all(
            other.ranges.get(source) == ranges for source, ranges in self.ranges.items()
        )


def _last_of_domains(ranges: Mapping[str, Sequence[Range]]) -> Mapping[str, tuple[str, int]]:
    return {source.partition("-")[0]: (source, last) for source, [(_first, last)] in ranges.items()}


@lru_cache(maxsize=64)
def _uuid_text(data: bytes) -> str:
    return str(uuid.UUID(bytes=data))


def _parts_of_gtid_sets(text: str) -> tuple[int | None, Iterator[list[str]]]:
    time_s, separator, sets = "".join(text.split()).rpartition("|")
    return (
        int(time_s) if separator and time_s else None,
        (part.split(":") for part in sets.split(",") if part),
    )


def _without_ranges(ranges: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    """
    >>> list(_without_ranges([(1, 9)], [(2, 3), (9, 12)]))
    [(1, 1), (4, 8)]
    """
    for first, last in ranges:
        for other_first, other_last in others:
            if other_last < first or other_first > last:
                continue
            if first < other_first:
                yield first, other_first - 1
            first = other_last + 1
        if first <= last:
            yield first, last
