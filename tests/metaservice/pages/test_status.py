"""What pages call tables."""

from __future__ import annotations

from tautochrone.metaservice.pages.graph import _outside_texts
from tautochrone.metaservice.pages.rendering import _name_markup
from tautochrone.metaservice.pages.status import Topology
from tautochrone.model.names import TableName, describe_input, file_table

NAME = TableName("lake", ("db",), "orders")


def test_tables_of_files_are_shown_as_their_files() -> None:
    table = file_table("lake", "/data/orders/*", "csv of /data/orders/*", "{}")
    topology = Topology(lines={}, inputs={}, outside=(table, NAME), jobs=())
    assert (topology.file_tables, topology.external_tables) == ([table], [NAME])
    assert describe_input(table) == "the files in orders"
    assert describe_input(NAME) == str(NAME)
    assert "the files in orders" in _name_markup(table)
    assert "files__" not in _name_markup(table)
    assert _outside_texts(table) == ("orders", "files")
