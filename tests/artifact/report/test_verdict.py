"""The first sentence of a report: what it says follows from the documents, and it never says more than they do."""

import re

import pytest
from report_documents import Documents, documents, loss_budget, note

from ptqc.artifact.report.verdict import verdict_line


def told(docs: Documents) -> str:
    result = re.search(r'<div class="verdict (\w+)"><p>(.*?)</p>', docs.html())
    assert result is not None
    return f"{result[1]}: {re.sub('</?strong>', '', result[2]).replace('&#x27;', chr(39)).replace('&nbsp;', ' ')}"


def given_sizes(before: int, after: int) -> Documents:
    docs = documents()
    docs.manifest["loss_budget"] = None
    docs.manifest["source"]["bytes"], docs.manifest["file"]["bytes"] = before, after
    docs.manifest["notes"] = []
    return docs


def test_a_good_file() -> None:
    assert told(given_sizes(1_750_000, 389_000)) == (
        "fine: Ready to ship. This file is 4.5× smaller (389 kB instead of 1.75 MB, 22.2 %) and 2.5× as fast in ONNX "
        "Runtime. On your labelled data, the score is 90.95; 91.20 for the float model. "
        "Every check passed, without warnings."
    )


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (None, "; how fast it is could not be measured here."),
        ((1.0, 0.98, 1.02), " and as fast in ONNX Runtime."),
        ((1.0, 0.6, 1.9), "; times spread too far to say which is faster (0.60 to 1.90 times as fast)."),
        ((0.5, 0.49, 0.51), ", but takes 2 times as long in ONNX Runtime."),
    ],
)
def test_speed_is_said_as_far_as_it_is_known(speed: tuple[float, float, float] | None, words: str) -> None:
    sizes = given_sizes(1000, 100)
    sizes.times["latency"] = (
        None if speed is None else sizes.times["latency"] | dict(zip(("speedup", "low", "high"), speed, strict=True))
    )
    assert f"instead of 1 kB, 10.0 %){words}" in told(sizes)


def test_without_labels_the_agreement_is_told() -> None:
    sizes = given_sizes(1000, 100)
    sizes.manifest["results"] |= {"float_score": None, "compiled_score": None}
    assert "On 32 held-back samples, its top class is the float model's in 98.4 %." in told(sizes)
    assert "Score it on labelled data of your own as well." in told(sizes)
    sizes.manifest["results"]["top1_agreement"] = None
    assert "On 32 held-back samples, quantization error is 22 dB below" in told(sizes)


@pytest.mark.parametrize(
    ("unit", "line", "sentence"),
    [
        ("%same", "top class 99.60 % same on 945", "Top class: 99.60 % same on 945 judging samples, at least 99.02 %"),
        ("nat", "0.004 nat on 945", "Loss: 0.004 nat on 945 judging samples, at most 0.0098 nat."),
    ],
)
def test_where_judging_samples_decide_their_figure_is_told(unit: str, line: str, sentence: str) -> None:
    sizes = given_sizes(1000, 100)
    sizes.manifest["results"] |= {"float_score": None, "compiled_score": None, "top1_agreement": 1.0}
    assert "100" in told(sizes).partition("held-back samples")[2]
    sizes.manifest["loss_budget"] = loss_budget(unit, 0.004, 0.0098, kept=True)
    assert sentence in told(sizes)
    assert "held-back" not in told(sizes)
    assert verdict_line(sizes.manifest, sizes.times).endswith(f", {line} judging samples")
    if unit == "%same":
        assert "same top class as the float model 99.60 % on 945 judging samples, at least 99.02" in sizes.page().text


def test_doubts_are_named() -> None:
    sizes = given_sizes(1000, 1100)
    sizes.manifest["notes"] = [note("judge", "", "agrees poorly", "warning")]
    figure = {"name": "SQNR", "value": 3.0, "text": "SQNR 3.0 dB", "low": True}
    sizes.manifest["results"]["outputs"][0]["figures"] = [figure]
    size = "This file is larger than the float model (1.1 kB instead of 1 kB, 110.0 %)"
    assert told(sizes).startswith(f"look: 1 warning. {size}")
    assert told(sizes).endswith("Look at this before you ship it: SQNR 3.0 dB; the warning below.")


def test_bars_are_in_proportion_to_size_and_time() -> None:
    html = given_sizes(1000, 250).html()
    widths = [float(width) for width in re.findall(r'class="fill \w+" style="width:([\d.]+)%"', html)]
    assert widths == [100, 25, 100, 40]


def test_an_older_artifact_has_no_times() -> None:
    sizes = given_sizes(1000, 250)
    sizes.times.clear()
    assert "could not be measured" in told(sizes)
    assert sizes.html().count('class="fill') == 2


def test_what_is_not_fit_for_use_is_not_praised() -> None:
    sizes = given_sizes(1_750_000, 389_000)
    sizes.manifest["unfit"] = ["there was time for 8 of 40 calibration samples"]
    assert told(sizes).startswith("look: ")
    assert told(sizes).endswith("It is not fit for use: there was time for 8 of 40 calibration samples.")


def test_what_computes_in_float_is_not_said_to_be_faster() -> None:
    sizes = given_sizes(1_750_000, 389_000)
    sizes.manifest["verification"]["integer_nodes"] = 0
    assert told(sizes).endswith("Every check passed. It computes in float, so it is smaller and not faster.")
