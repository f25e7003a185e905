"""Errors for people, on stderr: Spark's form, the underlined line, a hint. Colours on a terminal only."""

from __future__ import annotations

import sys

from tautochrone.errors import TautochroneError

__all__ = ["report", "report_defect"]


def report(error: TautochroneError) -> None:
    """The error as `TautochroneError.render` writes it."""
    if not sys.stderr.isatty():
        sys.stderr.write(error.render() + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    # Rich reads NO_COLOR and TERM. The terminal wraps long lines, so that a copied line stays whole.
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    text = Text(error.render())
    text.highlight_regex(r"\A\[[^\]]*\]", "bold red")
    text.highlight_regex(r"SQLSTATE: \w{5}", "dim")
    if error.location:
        text.highlight_words([f"; {error.location}"], "bold")
    text.highlight_regex(r"(?m)^ +\|\s+(\^+)$", "bold red")
    text.highlight_regex(r"(?m)^  hint:", "bold cyan")
    console.print(text)


def report_defect(error: BaseException, trace: str) -> None:
    """An unexpected exception, and where its trace is."""
    first = (str(error).strip().splitlines() or [""])[0]
    report(
        TautochroneError(
            "INTERNAL_ERROR",
            f"{type(error).__name__}: {first}",
            hint=f"this is a defect of Tautochrone; {trace}; report it with a `taut support-bundle`",
        )
    )
