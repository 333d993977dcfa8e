"""What an artifact says of its file in Python: typed values, a line for people, and a card for notebooks."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from report_documents import Documents, documents, note

from ptqc import Artifact, Latency, Note, Score
from ptqc.artifact.results import AgreementFigure, budgets_of


def opened(folder: Path, docs: Documents) -> Artifact:
    (folder / "manifest.json").write_text(json.dumps(docs.manifest))
    (folder / "run.json").write_text(json.dumps(docs.times))
    return Artifact(folder)


def test_typed_values(tmp_path: Path) -> None:
    docs = documents()
    figure = AgreementFigure("same top class", 0.98, "same top class in 98.0 %", low=False)
    docs.manifest["results"]["outputs"][0] |= {"figures": [asdict(figure)], "top1_agreement": 0.98, "sqnr_db": 27.1}
    docs.manifest["notes"] += [note("judge", "y", "is low", "warning"), note("not-fit-for-use", "", "why", "warning")]
    artifact = opened(tmp_path, docs)
    assert artifact.size == docs.manifest["file"]["bytes"]
    assert artifact.score == Score("score", 91.2, 90.95)
    assert artifact.score.difference == pytest.approx(-0.25)
    assert artifact.latency == Latency(4.0, 1.6, 2.5, 2.4, 2.6, 12, 1)
    (output,) = artifact.outputs
    assert (output.top1_agreement, output.sqnr_db, output.loss, output.loss_unit) == (0.98, 27.1, 0.5, "nat")
    assert output.figures == (figure,)
    assert [warning.message for warning in artifact.warnings] == ["why", "is low"]
    assert isinstance(artifact.warnings[0], Note)


def test_what_was_not_measured_is_none(tmp_path: Path) -> None:
    docs = documents()
    docs.manifest["results"] |= {"float_score": None, "compiled_score": None, "outputs": []}
    docs.times["latency"] = None
    artifact = opened(tmp_path, docs)
    assert (artifact.score, artifact.latency, artifact.outputs) == (None, None, ())


def test_its_repr_says_size_share_and_verdict(tmp_path: Path) -> None:
    docs = documents()
    docs.manifest["source"]["bytes"], docs.manifest["file"]["bytes"] = 10_000, 1_234
    assert repr(opened(tmp_path, docs)) == (
        f"<ptqc.Artifact {tmp_path}: 1,234 bytes (12.3 % of the float model), ready to ship>"
    )
    docs.manifest["notes"].append(note("judge", "y", "is low", "warning"))
    assert repr(opened(tmp_path, docs)).endswith(", 1 warning>")
    docs.manifest["unfit"] = ["few samples"]
    assert repr(opened(tmp_path, docs)).endswith(", not fit for use>")
    assert repr(Artifact(tmp_path / "none")) == f"<ptqc.Artifact {tmp_path / 'none'}: not readable>"


def test_notebooks_show_a_card_that_changes_nothing_else_on_the_page(tmp_path: Path) -> None:
    docs = documents()
    docs.manifest["source"]["name"] = "<b>evil</b>"
    html = opened(tmp_path, docs)._repr_html_()
    assert html.startswith('<div class="ptqc"><style>.ptqc{')
    assert "&lt;b&gt;evil" in html
    assert "smaller" in html
    assert "<script" not in html
    assert ":root" not in html
    assert len(html) < 6000


LIMITED: dict[str, Any] = {
    "budget": "13%",
    "file": {"bytes": 900},
    "allocation": {"limit": 1000},
    "latency": {"budget": "2 ms", "budget_ms": 2.0, "predicted_ms": 1.5, "measured_ms": 2.5},
    "memory": {"budget": "60MBram", "limit_bytes": 60, "needed_bytes": 61},
    "flash": {"budget": "64KBflash", "limit_bytes": 64, "used_bytes": 64},
    "ram": {"budget": "32KBram", "limit_bytes": 32, "used_bytes": 33},
    "caches": {"budget": "25%cache", "limit_bytes": 8, "bytes": 7},
    "loss_budget": {"budget": "0.02nat", "limit": 0.02, "unit": "nat", "kept": True, "judged": {"bound": 0.01}},
}


def test_every_budget_has_limit_value_and_whether_it_is_met() -> None:
    result = {one.kind: (one.budget, one.limit, one.value, one.unit, one.kept) for one in budgets_of(LIMITED)}
    assert result == {
        "size": ("13%", 1000, 900, "bytes", True),
        "latency": ("2 ms", 2.0, 2.5, "ms", False),
        "memory": ("60MBram", 60, 61, "bytes", False),
        "flash": ("64KBflash", 64, 64, "bytes", True),
        "ram": ("32KBram", 32, 33, "bytes", False),
        "caches": ("25%cache", 8, 7, "bytes", True),
        "loss": ("0.02nat", 0.02, 0.01, "nat", True),
    }


def test_a_latency_that_is_not_measured_is_met_as_predicted() -> None:
    (_, latency, *_) = budgets_of({**LIMITED, "latency": {**LIMITED["latency"], "measured_ms": None}})
    assert (latency.value, latency.kept) == (1.5, True)


def test_no_limit_is_no_budget() -> None:
    of_memory = {"memory": {"budget": None, "limit_bytes": None, "needed_bytes": 61}}
    assert budgets_of({"budget": None, "latency": None, "loss_budget": None, **of_memory}) == ()
