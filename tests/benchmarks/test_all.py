"""The list of all benchmarks: what it calls exists, and what is run again after a change."""

import re
import shlex
from argparse import Namespace
from pathlib import Path

import all as every
import pytest
from all import FAILED, PASSED, Piece, content, fingerprint, pieces, vouched, why_not

ROOT = Path(__file__).resolve().parents[2]


def arguments(**options: object) -> Namespace:
    return Namespace(**{"again": False, "peers": None, "llama": None, "cmsis_nn": None, **options})


def test_names_are_told_apart() -> None:
    names = [piece.name for piece in pieces()]
    assert len(names) == len(set(names)) > 50


def test_every_piece_records_its_rows_or_makes_artifacts() -> None:
    assert {piece.script for piece in pieces() if "--record" not in piece.command} == {"benchmarks/even.py"}


@pytest.mark.parametrize("script", sorted({piece.script for piece in pieces()}))
def test_what_is_called_exists(script: str) -> None:
    shared = (ROOT / "benchmarks" / "harness.py").read_text("utf-8")
    text = (ROOT / script).read_text("utf-8") + shared
    for piece in pieces():
        if piece.script == script:
            options = {part for part in shlex.split(piece.command) if part.startswith("--")}
            needed = {f"--{name.replace('_', '-')}" for name in piece.needs}
            assert all(re.search(rf'"{option}"', text) for option in options | needed | {"--out"}), piece.name
            assert all((ROOT / path).exists() for path in (*every.COMMON, *piece.uses))


def test_a_piece_runs_again_after_a_change() -> None:
    piece = Piece("a", "accuracy.py --tasks digits_resnet_dw", ("ptqc/budget.py",))
    done = {"a": {"result": PASSED, "fingerprint": fingerprint(piece), "commit": "1234"}}
    assert why_not(piece, {}, arguments()) is None
    assert why_not(piece, done, arguments()) == "done on 1234"
    assert why_not(piece, done, arguments(again=True)) is None
    assert why_not(piece, {"a": {**done["a"], "result": FAILED}}, arguments()) is None
    assert why_not(piece, {"a": {**done["a"], "fingerprint": "of other code"}}, arguments()) is None
    assert fingerprint(piece) != fingerprint(Piece("a", piece.command, ("codegen/cuda",)))


def test_what_was_measured_on_the_same_bytes_stands() -> None:
    piece = Piece("a", "accuracy.py --tasks digits_resnet_dw", ("ptqc/budget.py",))
    earlier = fingerprint(piece, "HEAD")
    done = {"a": {"result": PASSED, "fingerprint": earlier, "commit": "1234"}}
    state = vouched([piece], done, "HEAD", "5678")
    assert state["a"] == {**done["a"], "fingerprint": fingerprint(piece), "same_bytes": "5678"}
    other = {"a": {**done["a"], "fingerprint": "of other code"}}
    assert vouched([piece], other, "HEAD", "5678") == other
    failed = {"a": {**done["a"], "result": FAILED}}
    assert vouched([piece], failed, "HEAD", "5678") == failed


def test_comments_of_code_are_not_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every, "ROOT", tmp_path)
    forms = {
        "one.py": '"""Of a."""\n\n\ndef a():\n    """Give it."""\n    return "b"  # the first',
        "two.py": 'def a():\n\n    return "b"\n',
        "three.py": 'def a():\n    return "c"\n',
        "four.c": "int a; // the first",
        "five.c": "int a;",
    }
    for name, text in forms.items():
        (tmp_path / name).write_text(text)
    one, two, three, four, five = (content(name).split()[1] for name in forms)
    assert one == two != three
    assert four != five


def test_pieces_are_the_same_in_every_checkout() -> None:
    assert not [piece.name for piece in every.pieces() if str(every.ROOT) in piece.command]


def test_a_piece_waits_for_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every, "ROOT", tmp_path)
    piece = Piece("a", "latency.py", needs=("peers",), reads=(Path("artifact"),))
    monkeypatch.setattr(every, "fingerprint", lambda _: "")
    assert why_not(piece, {}, arguments()) == "needs --peers"
    assert "needs artifact" in str(why_not(piece, {}, arguments(peers=tmp_path)))
    (tmp_path / "artifact").mkdir()
    assert why_not(piece, {}, arguments(peers=tmp_path)) is None


def test_a_failure_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every, "ROOT", tmp_path)
    monkeypatch.setattr(every, "LOGS", tmp_path / "logs")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "one.py").write_text("import sys; sys.exit('no data' if '--fail' in sys.argv else 0)")
    assert every.run(Piece("one", "one.py"), arguments())["result"] == PASSED
    row = every.run(Piece("one", "one.py --fail"), arguments())
    assert (row["result"], row["note"]) == (FAILED, "RuntimeError: no data")
