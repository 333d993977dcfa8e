"""The notebook of the examples runs, from its first cell to its last."""

import json
from pathlib import Path

import pytest
from compiling import kept_budgets, quick
from stand_ins import link_models

import ptqc

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def cells() -> list[dict[str, object]]:
    result: list[dict[str, object]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return result


def test_it_is_stored_without_outputs(cells: list[dict[str, object]]) -> None:
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
def test_it_runs(
    cells: list[dict[str, object]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "examples").mkdir()
    link_models(tmp_path / "models")
    monkeypatch.chdir(tmp_path / "examples")
    monkeypatch.setenv("PTQC_CACHE", str(tmp_path / "cache"))
    known: dict[str, object] = {"__name__": "notebook"}
    with quick():
        for number, cell in enumerate(cells, 1):
            if cell["cell_type"] == "code":
                source = "".join(map(str, cell["source"]))  # type: ignore[arg-type, call-overload]
                exec(compile(source, f"{NOTEBOOK.name}, cell {number}", "exec"), known)
    assert "top-1" in capsys.readouterr().out
    assert kept_budgets(ptqc.load(tmp_path / "examples" / "out"))["size"]
    assert kept_budgets(ptqc.load(tmp_path / "examples" / "smaller"))["size"]
