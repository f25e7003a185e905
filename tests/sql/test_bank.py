"""Money that only moves between accounts: no checkpoint may show that some came or went.

After Jamie Brandon's test of streaming systems: every view is right at each checkpoint, and all of them are
right for the same transactions.
"""

from __future__ import annotations

import random

import pytest

from .stand import Stand

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
def stand(stand: Stand) -> Stand:
    stand.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.transactions "
        "(id BIGINT, from_account INT, to_account INT, amount DECIMAL(12,2)) "
        "USING iceberg TBLPROPERTIES ('format-version' = '3', 'write.update.mode' = 'merge-on-read')",
    )
    return stand


def transfers(dice: random.Random, first: int, many: int) -> str:
    rows = [
        f"({number}, {dice.randrange(ACCOUNTS)}, {dice.randrange(ACCOUNTS)}, {dice.randint(1, 9999) / 100})"
        for number in range(first, first + many)
    ]
    return f"INSERT INTO lake.src.transactions VALUES {', '.join(rows)}"


def test_no_money_comes_or_goes(stand: Stand) -> None:
    dice = random.Random(7)
    # Every account gives and takes, or it has no balance.
    ring = ", ".join(f"({-n}, {n % ACCOUNTS}, {(n + 1) % ACCOUNTS}, 1.00)" for n in range(1, ACCOUNTS + 1))
    stand.sql(f"INSERT INTO lake.src.transactions VALUES {ring}", transfers(dice, 0, 100))
    for name, query in VIEWS.items():
        stand.view(name, query)
    changes = [
        transfers(dice, 100, 1),
        "UPDATE lake.src.transactions SET amount = amount + 1 WHERE id % 9 = 4",
        "DELETE FROM lake.src.transactions WHERE id > 0 AND id % 5 = 1",
        "UPDATE lake.src.transactions SET from_account = to_account, to_account = from_account "
        "WHERE id % 7 = 2",
        transfers(dice, 200, 300),
    ]
    stand.checkpoint()
    for change in changes:
        stand.sql(change)
        stand.checkpoint(restart=False)
    for number in range(1, len(changes) + 2):
        seen = stand.pipeline.query(
            "SELECT total, accounts, n FROM total CROSS JOIN unmatched", checkpoint=number
        )
        assert seen == [(0, ACCOUNTS, 0)], number
