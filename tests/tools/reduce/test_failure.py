"""How a command ended, and as what it is told."""

import sys
from pathlib import Path

import pytest

from ptqc.cli.parser import COMMANDS
from ptqc.errors import UsageError
from ptqc.tools.reduce.failure import OWN, Command, Failure


def run(folder: Path, code: str, message: str | None = None, seconds: float = 60.0) -> Failure | None:
    command = Command((sys.executable, "-c", code, "{model}"), message, seconds)
    return command.run(folder / "m.onnx", folder / "d.npz", folder)[0]


def test_the_end_of_another_program(tmp_path: Path) -> None:
    assert run(tmp_path, "") is None
    assert run(tmp_path, "import os; os.abort()") == Failure(-6, "")
    assert run(tmp_path, "while True: pass", seconds=1.0) == Failure(None, "")
    assert run(tmp_path, "import sys; sys.exit(sys.argv[1])", "/m.onnx") == Failure(1, "")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Failure(70, "KeyError"), "ends with exit code 70 (KeyError)"),
        (Failure(7, ""), "ends with exit code 7"),
        (Failure(-11, ""), "is ended by SIGSEGV"),
        (Failure(None, ""), "does not end"),
    ],
)
def test_it_is_told(failure: Failure, expected: str) -> None:
    assert str(failure) == expected


def test_every_command_that_reads_a_model_can_be_the_one_that_fails() -> None:
    assert [name for name in COMMANDS if name not in OWN] == ["reduce", "doctor", "passes", "completion", "help"]


def test_a_program_that_is_not_there_is_no_failure_of_the_model(tmp_path: Path) -> None:
    """It would fail on every part of it, too."""
    command = Command(("polygraphy-gone", "{model}"))
    with pytest.raises(UsageError, match="cannot run polygraphy-gone: No such file or directory; give a program, or"):
        command.run(tmp_path / "m.onnx", tmp_path / "d.npz", tmp_path)


def test_files_among_the_words_are_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.toml").touch()
    Path("out").mkdir()
    result = Command.parse(["compile", "{model}", "--preprocessing", "p.toml", "-o", "out"], None)
    assert result.words[3:] == (str(tmp_path / "p.toml"), "-o", "out")
    assert result.command_line(Path("a b.onnx"), Path("d")).startswith("ptqc compile 'a b.onnx' --preprocessing /")
