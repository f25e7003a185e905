"""Changes of the TPC-H tables: the refresh functions of the specification, and harder ones.

A change is SQL that another program runs. Which rows it changes depends on a hash of their key, the step and
a seed, so that it is the same in every run, whatever the engine's order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

__all__ = ["TpchChanges"]

_DELETED_IN = {"nation": 1, "customer": 1, "part": 3, "partsupp": 3, "supplier": 3}
"""Tables whose deleted rows are inserted again, with the one of five steps that deletes them."""


@dataclass(slots=True)
class TpchChanges:
    """Steps of changes to `catalog.tpch.…`.

    Attributes:
        session: any session that writes the tables.
        seed: of the choice of rows.
        share: of a table's rows that one statement changes; 0.01 is one in a hundred.
    """

    session: SparkSession
    seed: int = 1
    share: float = 0.01
    catalog: str = "lake"
    _before: dict[str, int] = field(default_factory=dict)
    _last_key: int = 0

    def functions(self, step: int) -> None:
        """RF1 and RF2: new orders are inserted and old ones deleted, with their lines."""
        self._run(self._functions(step, self._hashed))

    def neighbours(self, step: int) -> None:
        """The same with orders whose keys are consecutive, as TPC-H's own generator makes them."""
        self._run(self._functions(step, self._consecutive))

    def updates(self, step: int) -> None:
        """A share of the orders, lines, customers, parts and offers gets other values."""
        self._run(self._updates(step))

    def everything(self, step: int) -> None:
        """Over five steps (counted from 1) every table gets inserts, deletes and updates: keys change, values
        become NULL, deleted rows are inserted again, names of regions are swapped."""
        for table, deleting_step in _DELETED_IN.items():
            if step % 5 == deleting_step:
                self._before[table] = self._snapshot(table)
        self._run(self._functions(step, self._hashed))
        self._run(self._updates(step))
        self._run(self._hard_changes(step))

    # -- statements ------------------------------------------------------------------------------------

    def _functions(self, step: int, selects: Callable[[str, int], str]) -> Iterator[str]:
        shift = 8 * (1 + step % 3)  # Of four blocks of eight keys the specification uses one.
        inserted, deleted = 10 * step + 1, 10 * step + 2
        yield (
            f"INSERT INTO @.orders BY NAME SELECT o_orderkey + {shift} AS o_orderkey, * EXCEPT (o_orderkey) "
            f"FROM @.orders WHERE {selects('o_orderkey', inserted)}"
        )
        yield (
            f"INSERT INTO @.lineitem BY NAME SELECT l_orderkey + {shift} AS l_orderkey, * EXCEPT (l_orderkey)"
            f" FROM @.lineitem WHERE {selects('l_orderkey', inserted)}"
        )
        yield f"DELETE FROM @.orders WHERE {selects('o_orderkey', deleted)}"
        yield f"DELETE FROM @.lineitem WHERE {selects('l_orderkey', deleted)}"

    def _updates(self, step: int) -> Iterator[str]:
        tag = 10 * step
        yield (
            "UPDATE @.lineitem SET l_quantity = 51 - l_quantity, l_extendedprice = l_extendedprice + 0.05, "
            "l_shipdate = date_add(l_shipdate, 40), l_returnflag = 'R' "
            f"WHERE {self._hashed('l_orderkey, l_linenumber', tag + 3)}"
        )
        yield (
            "UPDATE @.orders SET o_orderdate = date_add(o_orderdate, -30), o_totalprice = o_totalprice * 2, "
            f"o_orderpriority = '1-URGENT' WHERE {self._hashed('o_orderkey', tag + 4)}"
        )
        yield (
            "UPDATE @.customer SET c_nationkey = (c_nationkey + 7) % 25, c_acctbal = -c_acctbal, "
            f"c_mktsegment = 'BUILDING' WHERE {self._hashed('c_custkey', tag + 5)}"
        )
        yield (
            "UPDATE @.partsupp SET ps_supplycost = 0.50, ps_availqty = ps_availqty + 1 "
            f"WHERE {self._hashed('ps_partkey, ps_suppkey', tag + 6)}"
        )
        yield (
            "UPDATE @.part SET p_size = 15, p_type = 'PROMO PLATED BRASS', p_brand = 'Brand#23', "
            "p_container = 'MED BOX', p_name = 'forest green lace' "
            f"WHERE {self._hashed('p_partkey', tag + 7)}"
        )

    def _hard_changes(self, step: int) -> Iterator[str]:
        """One of five kinds of changes; a later step undoes most of an earlier one."""
        hit = self._hashed
        match step % 5:
            case 1:
                yield "DELETE FROM @.nation WHERE n_name IN ('BRAZIL', 'GERMANY')"
                yield f"DELETE FROM @.customer WHERE {hit('c_custkey', 11)}"
                yield f"UPDATE @.orders SET o_custkey = NULL WHERE {hit('o_orderkey', 12)}"
                # A NULL in q16's NOT IN empties that view.
                yield (
                    "UPDATE @.supplier SET s_suppkey = NULL, s_comment = 'Customer Complaints' "
                    "WHERE s_suppkey = 7"
                )
            case 2:
                yield self._insert_again("nation", "n_name IN ('BRAZIL', 'GERMANY')")
                yield (
                    "UPDATE @.region SET r_name = CASE r_name WHEN 'ASIA' THEN 'EUROPE' ELSE 'ASIA' END "
                    "WHERE r_name IN ('ASIA', 'EUROPE')"
                )
                yield "UPDATE @.supplier SET s_suppkey = 7 WHERE s_suppkey IS NULL"
                yield f"UPDATE @.lineitem SET l_orderkey = l_orderkey + 1 WHERE {hit('l_orderkey', 13)}"
                yield f"UPDATE @.orders SET o_orderkey = o_orderkey + 1 WHERE {hit('o_orderkey', 14)}"
            case 3:
                yield self._insert_again("customer", hit("c_custkey", 11))
                yield f"DELETE FROM @.part WHERE {hit('p_partkey', 15)}"
                yield f"DELETE FROM @.partsupp WHERE {hit('ps_partkey, ps_suppkey', 16)}"
                yield "DELETE FROM @.supplier WHERE s_suppkey % 20 = 3"
                yield "INSERT INTO @.region VALUES (5, 'ATLANTIS', 'new'), (NULL, NULL, NULL)"
                yield "UPDATE @.nation SET n_regionkey = 5 WHERE n_name IN ('CANADA', 'FRANCE')"
                yield (
                    "UPDATE @.lineitem SET l_extendedprice = NULL, l_suppkey = NULL, l_commitdate = NULL "
                    f"WHERE {hit('l_orderkey, l_linenumber', 17)}"
                )
            case 4:
                yield self._insert_again("part", hit("p_partkey", 15))
                yield self._insert_again("partsupp", hit("ps_partkey, ps_suppkey", 16))
                yield self._insert_again("supplier", "s_suppkey % 20 = 3")
                yield f"UPDATE @.customer SET c_acctbal = NULL, c_phone = NULL WHERE {hit('c_custkey', 18)}"
                yield f"UPDATE @.partsupp SET ps_suppkey = NULL WHERE {hit('ps_partkey, ps_suppkey', 19)}"
                yield "UPDATE @.nation SET n_regionkey = NULL, n_name = NULL WHERE n_name = 'JAPAN'"
                yield "DELETE FROM @.region WHERE r_name = 'AMERICA'"
            case _:
                yield (
                    "MERGE INTO @.region AS old USING (SELECT 1L AS k, 'AMERICA' AS n UNION ALL SELECT 5L, "
                    "'AFRICA') AS new ON old.r_regionkey = new.k WHEN MATCHED THEN DELETE "
                    "WHEN NOT MATCHED THEN INSERT (r_regionkey, r_name, r_comment) VALUES (k, n, 'back')"
                )
                yield "INSERT INTO @.nation VALUES (25, 'INDIA', 2, 'twice'), (8, 'INDIA', 2, 'same key')"
                yield f"UPDATE @.part SET p_type = NULL, p_name = NULL WHERE {hit('p_partkey', 20)}"
                yield f"INSERT INTO @.customer SELECT * FROM @.customer WHERE {hit('c_custkey', 21)}"
                yield f"INSERT INTO @.lineitem SELECT * FROM @.lineitem WHERE {hit('l_orderkey', 22)}"
                yield "INSERT INTO @.supplier SELECT * FROM @.supplier WHERE s_suppkey % 25 = 4"

    # -- helpers ---------------------------------------------------------------------------------------

    def _consecutive(self, key: str, tag: int) -> str:
        """A condition for a range of keys: another range for each tag, as long as the share of all keys."""
        if not self._last_key:
            row = self.session.sql(f"SELECT max(o_orderkey) AS last FROM {self.catalog}.tpch.orders").first()
            assert row is not None
            self._last_key = int(row["last"])
        length = max(1, round(self.share * self._last_key))
        start = (self.seed * 10_007 + tag) * length % self._last_key
        return f"{key} >= {start} AND {key} < {start + length}"

    def _hashed(self, keys: str, tag: int) -> str:
        return f"pmod(xxhash64({keys}, {self.seed * 10_007 + tag}), {max(1, round(1 / self.share))}) = 0"

    def _insert_again(self, table: str, where: str) -> str:
        """Insert the rows that an earlier step deleted, as they were before it."""
        return (
            f"INSERT INTO @.{table} SELECT * FROM @.{table} VERSION AS OF {self._before[table]} WHERE {where}"
        )

    def _snapshot(self, table: str) -> int:
        row = self.session.sql(
            f"SELECT snapshot_id FROM {self.catalog}.tpch.{table}.refs WHERE name = 'main'"
        ).first()
        assert row is not None
        return int(row["snapshot_id"])

    def _run(self, statements: Iterator[str]) -> None:
        for statement in statements:
            self.session.sql(statement.replace("@.", f"{self.catalog}.tpch.")).collect()
