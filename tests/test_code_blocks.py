"""The code of the guides runs, as it stands, from the first block of a page to the last."""

import re
from pathlib import Path

import pytest
from compiling import kept_budgets, quick
from stand_ins import link_models

import ptqc

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = (ROOT / "docs" / "guides" / "python.md",)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_it_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PTQC_CACHE", str(tmp_path / "cache"))
    link_models(tmp_path / "models")
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    known: dict[str, object] = {"__name__": "guide"}
    with quick():
        for number, block in enumerate(blocks, 1):
            exec(compile(block, f"{page.name}, block {number}", "exec"), known)
    assert "stopped; nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "never").exists()
    assert kept_budgets(ptqc.load(tmp_path / "smaller"))["size"]
