"""A shop's database is captured while customers order, move and cancel: `make demo-cdc`.

Every order takes its amount from the customer's balance in the same transaction, a cancellation gives it
back. So balances and orders together are the same sum after every transaction, and must be the same at every
checkpoint. In the middle the run is killed. In the end the tables are compared with the database, row by row.
Exit code 0 means success.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
from examples.flights.child import Run, verify

__all__ = ["main"]

PROJECT = Path(__file__).resolve().parent
WORK = PROJECT.parents[1] / ".work" / "demo-cdc"
CUSTOMERS, MONEY = 20_000, 1_000
TOTAL = CUSTOMERS * MONEY
FIRST_CHECKPOINT_SECONDS = 300
DDL = f"""
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, balance numeric(12, 2) NOT NULL);
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id int NOT NULL, amount numeric(12, 2) NOT NULL,
                     placed timestamptz NOT NULL DEFAULT now());
INSERT INTO customers SELECT i, 'customer ' || i, {MONEY} FROM generate_series(1, {CUSTOMERS}) i;
"""
TABLES = {"customers": "id, name, balance", "orders": "id, customer_id, amount"}


class Shop:
    """The database, and the customers that write to it from a thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.transactions = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(DDL)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def rows(self, table: str) -> set[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return set(connection.execute(f"SELECT {TABLES[table]} FROM {table}").fetchall())

    def _write(self) -> None:
        pick = random.Random(1)
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self._ended.wait(0.002):
                self._transaction(connection, pick)
                self.transactions += 1

    def _transaction(self, connection: psycopg.Connection, pick: random.Random) -> None:
        customer, kind = pick.randint(1, CUSTOMERS), pick.random()
        if kind < 0.1:
            renamed = (f"customer {customer}, moved {self.transactions}", customer)
            connection.execute("UPDATE customers SET name = %s WHERE id = %s", renamed)
            return
        with connection.transaction():
            amount, give = (
                pick.randint(1, 5_000) / 100,
                "UPDATE customers SET balance = balance + %s WHERE id = %s",
            )
            if kind < 0.3:
                cancel = (
                    "DELETE FROM orders WHERE id = (SELECT min(id) FROM orders) RETURNING amount, customer_id"
                )
                cancelled = connection.execute(cancel).fetchone()
                if cancelled is not None:
                    connection.execute(give, cancelled)
                return
            order = "INSERT INTO orders (id, customer_id, amount) VALUES (%s, %s, %s)"
            connection.execute(order, (self.transactions, customer, amount))
            connection.execute(give, (-amount, customer))


class Demo:
    """One demonstration in its work folder, and what went wrong in it."""

    def __init__(self, shop: Shop, seconds: int) -> None:
        self.shop, self.seconds = shop, seconds
        self.problems: list[str] = []
        self.checks = 0
        self._started = time.monotonic()
        self._log = WORK / "taut.log"
        self.spec = WORK / "project" / "spark-pipeline.yml"

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self._started:6.1f} s  {line}", flush=True)

    def problem(self, line: str) -> None:
        self.problems.append(line)
        self.say(f"PROBLEM     {line}")

    def run(self, *arguments: str) -> Run:
        return Run(["--spec", str(self.spec), *arguments], self._log, self.say)

    def ask(self, reader: Any, checkpoint: int | None) -> None:
        """The sum over both tables is what it always was."""
        from tautochrone.errors import TautochroneError

        try:
            (row,) = reader.sql("SELECT total FROM money", checkpoint=checkpoint).collect()
        except TautochroneError as error:
            self.say(f"query       not yet: {error.message}")
            return
        self.checks += 1
        shown = "newest checkpoint" if checkpoint is None else f"checkpoint {checkpoint}"
        self.say(
            f"query       {shown}: {row['total']}, {self.shop.transactions:,} transactions in the database"
        )
        if row["total"] != TOTAL:
            self.problem(f"{shown} shows a sum of {row['total']}, it should be {TOTAL}")

    def live(self) -> None:
        """Capture, query, kill, go on."""
        import tautochrone

        run = self.run("--continuous", "--interval", "3s")
        try:
            deadline = time.monotonic() + FIRST_CHECKPOINT_SECONDS
            while run.checkpoint is None and run.alive and time.monotonic() < deadline:
                time.sleep(0.2)
            if run.checkpoint is None:
                self.problem(f"no checkpoint, see {self._log}")
                return
            with tautochrone.connect(self.spec) as reader:
                self.watch(reader, run, run.checkpoint - 1)
                self.say("kill -9     in the middle of whatever it does, then start again")
                run.kill()
                checkpoint = run.checkpoint
                run = self.run("--continuous", "--interval", "3s")
                run.checkpoint = checkpoint
                self.watch(reader, run, checkpoint)
            if run.stop() != 0:
                self.problem(f"the run ended badly: {run.state}, see {self._log}")
        finally:
            run.kill()

    def watch(self, reader: Any, run: Run, checkpoint: int) -> None:
        """Ask for half of the time, and until there is a newer checkpoint than this one."""
        end = time.monotonic() + self.seconds / 2
        while run.alive and (time.monotonic() < end or run.checkpoint == checkpoint):
            self.ask(reader, run.checkpoint)
            time.sleep(3)

    def finish(self) -> None:
        """The shop is closed: read the rest, and compare everything with the database."""
        import tautochrone

        self.shop.close()
        if self.run().wait(240) != 0:
            self.problem(f"the last run failed, see {self._log}")
        with tautochrone.connect(self.spec) as reader:
            self.ask(reader, None)
            for table, columns in TABLES.items():
                captured = {tuple(row) for row in reader.sql(f"SELECT {columns} FROM shop_{table}").collect()}
                existing = self.shop.rows(table)
                self.say(f"compare     {table}: {len(captured):,} rows, {len(captured ^ existing)} differ")
                if captured != existing:
                    self.problem(f"{table} is not the database's")
        code, findings = verify(self.spec, self._log)
        different = [finding["dataset"] for finding in findings if not finding["equal"]]
        self.say(f"verify      {len(findings)} views recomputed, {len(different)} differ")
        if code != 0 or different or not findings:
            self.problem(f"verify: exit code {code}, different: {different}, see {self._log}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=40, help="how long customers order while it is captured"
    )
    options = parser.parse_args(arguments)
    # A server of its own, from a package of PyPI.
    from tests.support.postgresql import fresh_database

    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(PROJECT, WORK / "project", ignore=shutil.ignore_patterns("__pycache__", "*demo.py"))
    url = fresh_database()
    os.environ["SHOP_URL"] = url
    demo = Demo(Shop(url), options.seconds)
    demo.say(f"shop        {CUSTOMERS:,} customers in PostgreSQL, they order while it is copied")
    demo.shop.open()
    try:
        demo.live()
        demo.finish()
    finally:
        demo.shop.close()
    demo.say(f"{demo.checks} checks, {len(demo.problems)} problems")
    return 1 if demo.problems or not demo.checks else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
