"""Changes of the TPC-H tables: the refresh functions of the specification, and worse.

A change is SQL that somebody runs who knows nothing of the pipeline. Which rows it hits is a hash of their
key, the step and a seed: the same on every run, whatever the engine's order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

__all__ = ["TpchChanges"]

_DELETED_IN = {"nation": 1, "customer": 1, "part": 3, "partsupp": 3, "supplier": 3}
"""Tables whose deleted rows come back, and in which of five steps they are deleted."""


@dataclass(slots=True)
class TpchChanges:
    """Steps of changes to `catalog.tpch.…`.

    Attributes:
        session: any session that writes the tables.
        seed: of the choice of rows.
        share: how much of a table one statement hits, 0.01 for one in a hundred.
    """

    session: SparkSession
    seed: int = 1
    share: float = 0.01
    catalog: str = "lake"
    _before: dict[str, int] = field(default_factory=dict)
    _last_key: int = 0

    def functions(self, step: int) -> None:
        """RF1 and RF2: new orders with their lines, old ones removed with theirs."""
        self._run(self._functions(step, self._scattered))

    def neighbours(self, step: int) -> None:
        """The same with orders whose keys follow each other, as TPC-H's own generator makes them."""
        self._run(self._functions(step, self._in_a_row))

    def updates(self, step: int) -> None:
        """Orders, lines, customers, parts and offers get other values: as many as the share says."""
        self._run(self._updates(step))

    def everything(self, step: int) -> None:
        """Every table gets inserts, deletes and updates over five steps (counted from 1): keys move, values
        become NULL, rows that were deleted come back, names of regions are swapped."""
        for table, when in _DELETED_IN.items():
            if step % 5 == when:
                self._before[table] = self._snapshot(table)
        self._run(self._functions(step, self._scattered))
        self._run(self._updates(step))
        self._run(self._worse(step))

    # -- statements ------------------------------------------------------------------------------------

    def _functions(self, step: int, chosen: Callable[[str, int], str]) -> Iterator[str]:
        shift = 8 * (1 + step % 3)  # the specification leaves three of four blocks of eight keys free
        new, gone = 10 * step + 1, 10 * step + 2
        yield (
            f"INSERT INTO @.orders BY NAME SELECT o_orderkey + {shift} AS o_orderkey, * EXCEPT (o_orderkey) "
            f"FROM @.orders WHERE {chosen('o_orderkey', new)}"
        )
        yield (
            f"INSERT INTO @.lineitem BY NAME SELECT l_orderkey + {shift} AS l_orderkey, * EXCEPT (l_orderkey)"
            f" FROM @.lineitem WHERE {chosen('l_orderkey', new)}"
        )
        yield f"DELETE FROM @.orders WHERE {chosen('o_orderkey', gone)}"
        yield f"DELETE FROM @.lineitem WHERE {chosen('l_orderkey', gone)}"

    def _updates(self, step: int) -> Iterator[str]:
        at = 10 * step
        yield (
            "UPDATE @.lineitem SET l_quantity = 51 - l_quantity, l_extendedprice = l_extendedprice + 0.05, "
            "l_shipdate = date_add(l_shipdate, 40), l_returnflag = 'R' "
            f"WHERE {self._hit('l_orderkey, l_linenumber', at + 3)}"
        )
        yield (
            "UPDATE @.orders SET o_orderdate = date_add(o_orderdate, -30), o_totalprice = o_totalprice * 2, "
            f"o_orderpriority = '1-URGENT' WHERE {self._hit('o_orderkey', at + 4)}"
        )
        yield (
            "UPDATE @.customer SET c_nationkey = (c_nationkey + 7) % 25, c_acctbal = -c_acctbal, "
            f"c_mktsegment = 'BUILDING' WHERE {self._hit('c_custkey', at + 5)}"
        )
        yield (
            "UPDATE @.partsupp SET ps_supplycost = 0.50, ps_availqty = ps_availqty + 1 "
            f"WHERE {self._hit('ps_partkey, ps_suppkey', at + 6)}"
        )
        yield (
            "UPDATE @.part SET p_size = 15, p_type = 'PROMO PLATED BRASS', p_brand = 'Brand#23', "
            f"p_container = 'MED BOX', p_name = 'forest green lace' WHERE {self._hit('p_partkey', at + 7)}"
        )

    def _worse(self, step: int) -> Iterator[str]:
        """One of five kinds; what one step breaks a later one mends."""
        hit = self._hit
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
                yield self._back("nation", "n_name IN ('BRAZIL', 'GERMANY')")
                yield (
                    "UPDATE @.region SET r_name = CASE r_name WHEN 'ASIA' THEN 'EUROPE' ELSE 'ASIA' END "
                    "WHERE r_name IN ('ASIA', 'EUROPE')"
                )
                yield "UPDATE @.supplier SET s_suppkey = 7 WHERE s_suppkey IS NULL"
                yield f"UPDATE @.lineitem SET l_orderkey = l_orderkey + 1 WHERE {hit('l_orderkey', 13)}"
                yield f"UPDATE @.orders SET o_orderkey = o_orderkey + 1 WHERE {hit('o_orderkey', 14)}"
            case 3:
                yield self._back("customer", hit("c_custkey", 11))
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
                yield self._back("part", hit("p_partkey", 15))
                yield self._back("partsupp", hit("ps_partkey, ps_suppkey", 16))
                yield self._back("supplier", "s_suppkey % 20 = 3")
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

    def _scattered(self, key: str, tag: int) -> str:
        return self._hit(key, tag)

    def _in_a_row(self, key: str, tag: int) -> str:
        """Another stretch of all keys for each tag, as long as the share says."""
        if not self._last_key:
            row = self.session.sql(f"SELECT max(o_orderkey) AS last FROM {self.catalog}.tpch.orders").first()
            assert row is not None
            self._last_key = int(row["last"])
        length = max(1, round(self.share * self._last_key))
        start = (self.seed * 10_007 + tag) * length % self._last_key
        return f"{key} >= {start} AND {key} < {start + length}"

    def _hit(self, keys: str, tag: int) -> str:
        return f"pmod(xxhash64({keys}, {self.seed * 10_007 + tag}), {max(1, round(1 / self.share))}) = 0"

    def _back(self, table: str, where: str) -> str:
        """Insert again what an earlier step deleted: as it was before that step."""
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
