"""Figures in documents are those of the data files, and the same wherever they stand."""

import json
import re
from pathlib import Path

import figures
import harness
import pytest
import sentences

# Pages that state results, and what a figure with a unit looks like there.
PAGES_OF_RESULTS = (
    *("README.md", "docs/results.md", "docs/start/choosing.md", "docs/start/faq.md", "docs/deploy/litert.md"),
    *("docs/guides/faster.md", "docs/guides/large-models.md", "docs/guides/less-memory.md"),
)
MEASUREMENT = re.compile(r"\d[\d.,]*\s+(?:%|ms\b|MB\b|GB\b|GiB\b|times\b|points?\b|nat\b|dB\b|s\b|minutes\b|hours\b)")
# Budgets, where they name files, and code.
NO_MEASUREMENT = re.compile(r"```.*?```|`[^`]*`|\b(?:25|13|25\s+and\s+13)\s+%", re.DOTALL)
TABLE = re.compile(r"^\| (.+) \|$", re.MULTILINE)


def cells(document: str, name: str) -> list[list[str]]:
    """The rows of a table between marks, read from the document alone."""
    text = (harness.ROOT / document).read_text(encoding="utf-8")
    (result,) = (result for result in figures.MARKED.findall(text) if result[1] == name)
    return [line.split(" | ") for line in TABLE.findall(result[2])][2:]


def test_documents_say_what_was_measured() -> None:
    assert figures.outdated() == []


def test_every_text_stands_in_a_document() -> None:
    documents = [document.read_text(encoding="utf-8") for document in figures.DOCUMENTS]
    names = [name for text in documents for _, name, _, _ in figures.MARKED.findall(text)]
    assert sorted(names) == sorted(figures.TEXTS)


def test_readme_and_choosing_have_the_figures_of_the_results() -> None:
    usual = figures.charts.NAMES
    results = {(usual.get(row[0], row[0]), row[1]): row for row in cells("notes/results.md", "accuracy")}
    networks = cells("docs/start/choosing.md", "networks")
    assert len(networks) > 10
    assert set(map(tuple, cells("README.md", "readme"))) < set(map(tuple, networks))
    for name, _, _, *scored, _, _ in networks:
        for budget, cell in zip(("25%", "13%"), scored, strict=True):
            score, difference = map(float, re.match(r"([\d.]+) \(([+-][\d.]+)\)", cell).groups())  # type: ignore[union-attr]
            row = results[name, budget]
            assert (score, difference) == pytest.approx((float(row[6]), float(row[7])), abs=0.0051)
    for name, _, compiled, memory, other in cells("docs/start/choosing.md", "choosing"):
        large, small = results[name, "25%"], results[name, "13%"]
        assert sorted((compiled, other)) == sorted(f"{row[11].split()[0]} s" for row in (large, small))
        assert memory in {f"{row[12]} MB" for row in (large, small)}


def test_a_figure_in_a_sentence_that_was_changed_by_hand_is_found() -> None:
    for sentence in sentences.SENTENCES:
        text = (harness.ROOT / sentence.document).read_text(encoding="utf-8")
        assert sentence.stated(text) == list(sentence.figures())
        place = sentence.place(text, len(sentence.figures()) - 1)
        wrong = f"{text[: place.start]}0.77{text[place.stop :]}"
        assert [each for each in sentences.outdated(sentence.document, wrong) if sentence.words in each]
        assert sentences.written(sentence.document, wrong) == text
        assert [each for each in sentences.outdated(sentence.document, "") if "has None" in each]


def unheld(document: str, text: str) -> list[str]:
    """Figures of a page that follow from no data file."""
    held = [result.span() for pattern in (figures.MARKED, NO_MEASUREMENT) for result in pattern.finditer(text)]
    held += [span for one in sentences.SENTENCES if one.document == document and (span := one.span(text))]
    result = MEASUREMENT.finditer(text)
    return [one[0] for one in result if not any(start <= one.start() and one.end() <= end for start, end in held)]


@pytest.mark.parametrize("document", PAGES_OF_RESULTS)
def test_every_figure_with_a_unit_follows_from_data(document: str) -> None:
    text = (harness.ROOT / document).read_text(encoding="utf-8")
    assert unheld(document, text) == []
    assert unheld(document, f"{text}\nAt 13 % of the bytes, it took 1.7 times as long.\n") == ["1.7 times"]


def test_no_runtime_scores_otherwise_than_the_packed_file() -> None:
    """By more than two standard errors, as docs/deploy/qdq.md says; two networks are not scored sample by sample."""
    scored = [row for row in figures.rows("runtimes") if "score" in row]
    unscored = {row["task"] for row in figures.rows("runtimes")} - {row["task"] for row in scored}
    assert unscored == {"digits_resnet_dw", "espcn_x3_224"}
    assert all(abs(row["score_difference"]) <= 2 * row["score_difference_se"] for row in scored)


def test_no_release_unpacks_anything_in_a_run() -> None:
    rows = figures.rows("compat")
    assert len({row["runtime"] for row in rows}) == 4
    assert {(row["not_folded"], row["verdict"]) for row in rows} == {(0, "as planned")}


def test_every_row_has_a_commit_and_a_machine() -> None:
    for name in set(figures.TABLES) - {"peers"}:
        for row in figures.rows(name):
            assert re.fullmatch(r"[0-9a-f]{8,}\+?", row["commit"])
            assert row["machine"]


def test_a_measurement_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path, facts = tmp_path / "accuracy.json", harness.machine()
    harness.record(path, [{"task": "a", "budget": "25%", "score": 1.0}, {"task": "b", "budget": "25%"}], facts)
    harness.record(path, [{"task": "a", "budget": "25%", "score": 2.0}, {"task": "a", "budget": "13%"}], facts)
    rows = json.loads(path.read_text())["rows"]
    assert [(row["task"], row["budget"], row.get("score")) for row in rows] == [
        ("a", "25%", 2.0),
        ("b", "25%", None),
        ("a", "13%", None),
    ]
    assert all(row["machine"] == harness.heading(facts) for row in rows)


def test_a_figure_that_was_changed_by_hand_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (harness.ROOT / "README.md").read_text(encoding="utf-8")
    size = cells("README.md", "readme")[0][1]
    (tmp_path / "README.md").write_text(text.replace(f"| {size} |", "| 9.99 MB |"), encoding="utf-8")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "DOCUMENTS", (tmp_path / "README.md",))
    assert figures.outdated() == ["README.md: readme"]
    assert figures.written("README.md", (tmp_path / "README.md").read_text(encoding="utf-8")) == text
