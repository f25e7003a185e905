"""What `taut revise` says of the sinks of a plan."""

from __future__ import annotations

import pytest

from tautochrone.cli.lake import _show_plan
from tautochrone.model.revision import RevisionPlan


def test_plan_says_which_sinks_stop(capsys: pytest.CaptureFixture[str]) -> None:
    _show_plan(RevisionPlan(to=None, tables=(), sinks=("alerts", "mirror")), {"alerts"}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    (alerts,) = [line for line in lines if line.startswith("alerts")]
    (mirror,) = [line for line in lines if line.startswith("mirror")]
    assert "STREAM_INPUT_CHANGED" in alerts
    assert "difference" not in alerts
    assert "gets the difference" in mirror
