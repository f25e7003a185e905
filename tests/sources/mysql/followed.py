"""The tables of a schema as a reader of the log has them, without a lake: row events are folded by key, and a
table that is copied again gets the rows that it has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tautochrone.errors import TautochroneError
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.mysql.change_log import MySQLChangeLog

from .conftest import Schema

__all__ = ["Followed"]

Rows = dict[str, dict[str, dict[str, Any]]]


@dataclass
class Followed:
    """
    Attributes:
        rows: by table, key and column.
        copied: tables that were copied again, as often as they were.
        problem: why it stopped: the class of an error.
    """

    schema: Schema
    log: MySQLChangeLog
    position: LogPosition
    rows: Rows = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)
    problem: str = ""

    @classmethod
    def start(cls, schema: Schema) -> Followed:
        log = schema.change_log()
        followed = cls(schema, log, replace(log.begin("reader"), bulk=BulkProgress()))
        followed.rows = {name: followed.source_rows(name) for name in log.relations()}
        return followed

    def source_rows(self, relation: str) -> dict[str, dict[str, Any]]:
        """Of a table with the key `id`."""
        names = ", ".join(f"`{part.replace('`', '``')}`" for part in ("id", "a"))
        table = relation.partition(".")[2].replace("`", "``")
        rows = self.schema.rows(f"SELECT {names} FROM `{self.schema.name}`.`{table}`")
        return {str(key): {"id": str(key), "a": value} for key, value in rows}

    def catch_up(self, max_events: int = 1000, *, anew: bool = False) -> None:
        """
        Args:
            anew: by another reader, as in another run.
        """
        if anew:
            self.log.close()
        while True:
            try:
                batch = self.log.read(self.position, max_events)
            except TautochroneError as error:
                self.problem = error.error_class if error.hint else "an error without a hint"
                return
            for event in batch.rows.to_pylist():
                self._take(event)
            for name in batch.copied_again:
                self.copied.append(name)
                self.rows[name] = self.source_rows(name)
            self.position = replace(batch.position, bulk=BulkProgress())
            if batch.caught_up:
                return

    def _take(self, event: dict[str, Any]) -> None:
        rows = self.rows[event["relation"]]
        if event["operation"] == "truncate":
            rows.clear()
            return
        columns = dict(event["columns"])
        rows.pop(columns["id"], None)
        if event["operation"] != "delete":
            rows[columns["id"]] = {"id": columns["id"], "a": columns.get("a")}

    def difference(self) -> str:
        """Empty: the reader stopped with an error, or has what the server has."""
        if self.problem:
            return ""
        for name, rows in self.rows.items():
            source = self.source_rows(name)
            if rows != source:
                return f"{name}: {rows} instead of {source}"
        return ""
