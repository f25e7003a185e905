"""Money only moves between accounts: at every checkpoint the total must be the same.

After Jamie Brandon's test of streaming systems: at each checkpoint every view is correct, and all are correct
for the same transactions.
"""

from __future__ import annotations

import random

import pytest

from .testbed import ViewTestbed

pytestmark = pytest.mark.spark

ACCOUNTS = 10
VIEWS = {
    "credits": "SELECT to_account AS account, sum(amount) AS credits FROM src.transactions "
    "GROUP BY to_account",
    "debits": "SELECT from_account AS account, sum(amount) AS debits FROM src.transactions "
    "GROUP BY from_account",
    "balance": "SELECT c.account, credits - debits AS balance FROM credits c JOIN debits d "
    "ON c.account = d.account",
    "total": "SELECT sum(balance) AS total, count(*) AS accounts FROM balance",
    "matched": "SELECT t.id, o.id AS other FROM src.transactions t "
    "LEFT JOIN (SELECT id FROM src.transactions WHERE amount > 0) o ON t.id = o.id",
    "unmatched": "SELECT count(*) AS n FROM matched WHERE other IS NULL",
    "moved": "SELECT coalesce(c.account, d.account) AS account, credits, debits FROM credits c "
    "FULL JOIN debits d ON c.account = d.account",
    "best": "SELECT account, balance FROM balance WHERE balance = (SELECT max(balance) FROM balance)",
}


@pytest.fixture
def testbed(testbed: ViewTestbed) -> ViewTestbed:
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.transactions "
        "(id BIGINT, from_account INT, to_account INT, amount DECIMAL(12,2)) "
        "USING iceberg TBLPROPERTIES ('format-version' = '3', 'write.update.mode' = 'merge-on-read')",
    )
    return testbed


def transfers(generator: random.Random, first: int, count: int) -> str:
    rows = []
    for number in range(first, first + count):
        payer, payee = generator.randrange(ACCOUNTS), generator.randrange(ACCOUNTS)
        rows.append(f"({number}, {payer}, {payee}, {generator.randint(1, 9999) / 100})")
    return f"INSERT INTO lake.src.transactions VALUES {', '.join(rows)}"


@pytest.mark.parametrize("at_once", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_total_is_constant_at_every_checkpoint(testbed: ViewTestbed, at_once: int) -> None:
    """With so many changes between two checkpoints."""
    generator = random.Random(7)
    # Every account pays and receives, or it has no balance.
    ring = ", ".join(f"({-n}, {n % ACCOUNTS}, {(n + 1) % ACCOUNTS}, 1.00)" for n in range(1, ACCOUNTS + 1))
    testbed.sql(f"INSERT INTO lake.src.transactions VALUES {ring}", transfers(generator, 0, 100))
    for name, query in VIEWS.items():
        testbed.view(name, query)
    changes = [
        transfers(generator, 100, 300),
        "DELETE FROM lake.src.transactions WHERE id > 0 AND id % 5 = 1",
        "UPDATE lake.src.transactions SET from_account = to_account, to_account = from_account "
        "WHERE id % 7 = 2",
    ]
    testbed.checkpoint()
    for start in range(0, len(changes), at_once):
        testbed.sql(*changes[start : start + at_once])
        testbed.checkpoint(restart=False)
    for number in range(1, len(changes) // at_once + 2):
        rows = testbed.pipeline.query(
            "SELECT total, accounts, n FROM total CROSS JOIN unmatched", checkpoint=number
        )
        assert rows == [(0, ACCOUNTS, 0)], number
