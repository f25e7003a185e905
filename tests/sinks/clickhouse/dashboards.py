"""A dashboard for tests: threads that read two mirrored tables, as fast as the server answers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

POINTER = "SELECT publication FROM {database}.taut_published ORDER BY fence DESC, publication DESC LIMIT 1"
WAIT_S = 60.0


class Client:
    """One connection to the test server's HTTP interface."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)

    def rows(self, query: str) -> list[list[Any]]:
        self._connection.request("POST", "/", f"{query} FORMAT JSONCompactEachRow")
        return [json.loads(line) for line in self._answer().splitlines()]

    def run(self, statement: str) -> None:
        self._connection.request("POST", "/", statement)
        self._answer()

    def _answer(self) -> str:
        response = self._connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return text

    def close(self) -> None:
        self._connection.close()


class Dashboard:
    """Reads sums over two tables at one checkpoint: the pointer first, then both tables at its number.

    Args:
        sums: of two mirrored tables, the expression that is summed up.
        pause_s: between two reads of a reader.

    Attributes:
        seen: how often readers saw a checkpoint with the sums of both tables.
    """

    def __init__(
        self, port: int, database: str, sums: dict[str, str], readers: int = 2, pause_s: float = 0.0
    ) -> None:
        self._port = port
        self._pointer = POINTER.format(database=database)
        subqueries = [
            f"(SELECT toString(sum({sum_})) FROM {database}.{table}_at(checkpoint = {{number}}))"
            for table, sum_ in sums.items()
        ]
        self._sums = f"SELECT {', '.join(subqueries)}"
        signed = [
            f"SELECT {sum_} * _sign AS signed FROM {database}.taut_rows_{table}"
            for table, sum_ in sums.items()
        ]
        self._unpublished = f"SELECT toString(sum(signed)) FROM ({' UNION ALL '.join(signed)})"
        self._readers = readers
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self.seen: Counter[tuple[int, str, str]] = Counter()

    @contextmanager
    def reading(self) -> Iterator[Dashboard]:
        """Readers read until the block ends.

        Raises:
            BaseException: what a reader met.
        """
        threads = [threading.Thread(target=self._read) for _ in range(self._readers)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()
        self.require_reading()

    @property
    def reads(self) -> int:
        with self._lock:
            return self.seen.total()

    def require_reading(self) -> None:
        if self._errors:
            raise self._errors[0]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds, while the readers read."""
        tick = threading.Event()
        for _ in range(int(WAIT_S / 0.01)):
            self.require_reading()
            if condition():
                return
            tick.wait(0.01)
        raise TimeoutError

    def read_more(self, reads: int = 10) -> None:
        """Wait until the readers have read so many times more."""
        enough = self.reads + reads
        self.wait_for(lambda: self.reads >= enough)

    def unpublished_sum(self) -> str:
        """The sum over all rows that arrived, whether they are published or not."""
        client = Client(self._port)
        ((total,),) = client.rows(self._unpublished)
        client.close()
        return str(total)

    def _read(self) -> None:
        client = Client(self._port)
        try:
            while not self._stopping.wait(self._pause_s):
                for (number,) in client.rows(self._pointer):
                    ((first, second),) = client.rows(self._sums.format(number=number))
                    with self._lock:
                        self.seen[int(number), first, second] += 1
        except BaseException as error:
            self._errors.append(error)
        finally:
            client.close()
