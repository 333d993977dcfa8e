"""The code of the guides runs, as it stands, from the first block of a page to the last."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compiling import kept_budgets, quick
from stand_ins import link_models

import ptqc
from ptqc.calibration.inputs import InputSpec
from ptqc.calibration.sources import open_source
from ptqc.calibration.texts import Texts
from ptqc.errors import CalibrationError

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = (ROOT / "docs" / "guides" / "python.md",)


@pytest.mark.long
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


def test_a_tokenizer_and_arrays_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both feed a model the same, whose tokenizer is made of a vocabulary."""
    monkeypatch.chdir(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "the", "cat", "sees"]
    Path("vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    Path("corpus.txt").write_text("the cat\nthe cat sees birds\n")
    page = (ROOT / "docs" / "guides" / "text.md").read_text(encoding="utf-8")
    exec("".join(BLOCK.findall(page)), {})
    inputs = [InputSpec(name, np.dtype(np.int64), ("N", "T")) for name in ("input_ids", "attention_mask")]
    inputs[0] = replace(inputs[0], rows=len(words))
    texts = list(open_source(Texts("corpus.txt", "tokenizer.json"), inputs, 9).samples)
    arrays = list(open_source("corpus.npz", inputs, 9).samples)
    assert [feeds["input_ids"].tolist() for feeds in texts] == [[[2, 3, 4]], [[2, 3, 4, 5, 1]]]
    for text, array in zip(texts, arrays, strict=True):
        assert {name: x.reshape(-1).tolist() for name, x in text.items()} == {n: x.tolist() for n, x in array.items()}
    with pytest.raises(CalibrationError, match=r"vocab\.json is a plain vocabulary, which does not say how"):
        open_source(Texts("corpus.txt", "vocab.json"), inputs, 9)
