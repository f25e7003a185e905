"""Wrong commands and options: what is nearest to them is said."""

from __future__ import annotations

import pytest

from tautochrone.cli.main import COMMANDS, main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["quer", "SELECT 1"], "there is no command 'quer'; did you mean query?"),
        (["--debug", "statsu"], "there is no command 'statsu'; did you mean status?"),
        (["xyz"], "there is no command 'xyz'; `taut --help` lists all"),
        (
            ["run", "--intervall", "5s"],
            "taut run: error: it has no option --intervall; did you mean --interval?",
        ),
        (["run", "--jsn=1"], "it has no option --jsn; did you mean --json?"),
        (["run", "--xyz"], "it has no option --xyz\n"),
        (["diff", "1"], "taut diff: error: the following arguments are required: B\n"),
        (["query", "SELECT", "1"], "it takes no further argument '1'; text with blanks needs quotes"),
    ],
)
def test_wrong_words(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_parser(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: taut {command}")


@pytest.mark.parametrize(
    ("module", "code", "sentence"),
    [
        ("sqlalchemy.orm", 1, "[PACKAGE_MISSING] The Python package sqlalchemy is not installed in "),
        ("tautochrone.nowhere", 2, "[INTERNAL_ERROR] ModuleNotFoundError"),
    ],
)
def test_a_missing_package_is_no_defect(
    module: str, code: int, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_name: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("tautochrone.cli.main.handler_of", missing)
    assert main(["jobs"]) == code
    assert capsys.readouterr().err.startswith(sentence)
