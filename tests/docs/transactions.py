"""The table of operations and states in docs/transactions.md, from `model.transactions.ANSWERS`."""

from __future__ import annotations

from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import ANSWERS, TransactionOperation

__all__ = ["table"]


def table() -> str:
    """The table in Markdown; a refusal is a dash."""
    lines = ["| state | " + " | ".join(f"`{operation}`" for operation in TransactionOperation) + " |"]
    lines.append("|---" * (len(TransactionOperation) + 1) + "|")
    for state in TransactionState:
        answers = (ANSWERS[operation].get(state) for operation in TransactionOperation)
        cells = " | ".join("–" if answer is None else f"`{answer}`" for answer in answers)
        lines.append(f"| `{state}` | {cells} |")
    return "\n".join(lines) + "\n"
