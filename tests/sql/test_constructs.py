"""Every SQL construct as a view: right after each of several changes, and refreshed no worse than said."""

from __future__ import annotations

import pytest

from .constructs import CONSTRUCTS
from .small import SmallTables
from .stand import PROPERTIES, Stand
from .support import DOCUMENT, SEED, Measured, define, document, measure, modes

pytestmark = pytest.mark.spark


@pytest.mark.timeout(1800)
def test_some_constructs(stand: Stand) -> None:
    """Every sixth one through one change; `make soak` takes all of them through three."""
    some = [c for c in CONSTRUCTS if not c.name.startswith(("views", "python"))][::6]
    tables = SmallTables(stand, SEED)
    define(stand, some)
    found = measure(stand, tables, checkpoints=1)
    assert set(found) == {construct.name for construct in some}
    assert sum(measured.changed for measured in found.values()) > len(some) / 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_construct(stand: Stand) -> None:
    tables = SmallTables(stand, SEED)
    define(stand, CONSTRUCTS)
    found = measure(stand, tables)
    assert set(found) == {construct.name for construct in CONSTRUCTS}
    still = [name for name, measured in found.items() if not measured.changed]
    assert not still, f"these never changed, which proves nothing: {still}"
    said = modes(DOCUMENT.read_text())
    assert modes(document(found)) == said, "run `python -m tests.sql.support`"
    assert len(said) == len(CONSTRUCTS)


def test_one_row_that_stands_for_a_hundred(stand: Stand) -> None:
    """A changed row that fans out into n rows costs 2n: measured, n = 100."""
    stand.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.shops USING iceberg TBLPROPERTIES ('format-version' = '3', "
        "'write.update.mode' = 'merge-on-read') AS SELECT id, concat('n', id) AS name FROM range(50)",
        "CREATE TABLE lake.src.sales USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
        "SELECT id, id % 50 AS shop, id * 3 AS amount FROM range(5000)",
    )
    stand.view("sold", "SELECT s.id, s.amount, p.name FROM src.sales s JOIN src.shops p ON s.shop = p.id")
    stand.view("named", "SELECT name, sum(amount) AS amount FROM sold GROUP BY name")
    stand.checkpoint()
    stand.sql("UPDATE lake.src.shops SET name = 'other' WHERE id = 7")
    happened = stand.checkpoint()
    refresh = happened.refresh("sold")
    assert refresh["rows_inserted"] + refresh["rows_deleted"] == 200
    refresh = happened.refresh("named")
    assert (refresh["rows_inserted"], refresh["rows_deleted"]) == (1, 1)
    assert Measured.of(happened, "sold").mode in ("incremental", "diff" if not PROPERTIES else "")
