"""The table of `ptqc explain`, on documents written by hand."""

from typing import Any

import pytest
from summary_documents import judged, manifest

from ptqc.artifact.report.budgets import UNTOLD
from ptqc.artifact.report.explanation import Explanation
from ptqc.errors import IntegrityError


def test_explain_says_how_outputs_were_judged() -> None:
    boxes = judged("y", "boxes and scores", "SQNR 22.5") | {
        "losses": {"scores": 0.3, "values (channels 0 to 3)": 0.02},
        "units": {"scores": "nat", "values (channels 0 to 3)": "relative squared error"},
    }
    text = str(Explanation(manifest(results__outputs=[boxes]), {"weights": []}, {"weights": []}))
    assert text.splitlines()[4:] == [
        "",
        "y compared as boxes and scores: SQNR 22.5, divergence 0.007 a unit",
        "  scores: divergence 0.3 nat",
        "  values (channels 0 to 3): divergence 0.02 relative squared error",
    ]


@pytest.fixture
def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    plan = {
        "weights": [
            {"weight": "w", "format": "int4", "layers": {"/conv": "integer", "/twin\n": "float"}},
            {"weight": "positions", "format": "float16", "layers": {}},
        ]
    }
    candidates = [
        {"format": "int4", "bytes": 1234, "loss": 0.00123, "error": 0.1},
        {"format": "float16", "bytes": 5678, "loss": 0.0, "error": 0.0},
    ]
    layers = {"w": {"/conv": 50_000, "/twin\n": 50_000}, "positions": {}}
    weights = [{"weight": name, "elements": 2000, "layers": layers[name], "candidates": candidates} for name in layers]
    return plan, {"weights": weights}


def test_explain(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    notes = [
        {"step": "lower", "subject": "/twin\n", "message": "Conv computes in float: why", "level": "info"},
        {"step": "convert-opset", "subject": "", "message": "opset 17 converted to 18", "level": "info"},
        *(
            {"step": "lower", "subject": f"/m{i}", "message": "Mul computes in float: so", "level": "info"}
            for i in "abcde"
        ),
    ]
    assert str(Explanation(manifest(notes=notes), *documents)).splitlines() == [
        "layer or weight  weights   format  compute  bytes  predicted divergence  bit flips",
        "/conv              2,000     int4  integer  1,234              1.23e-03      3.3 M",
        "/twin\\n            2,000     int4    float  1,234              1.23e-03          –",
        "positions          2,000  float16    table  5,678              0.00e+00          –",
        "",
        "bit flips of a sample: 3.3 M with signed arithmetic, 2.8 M unsigned: 91.7 % and 87.5 % of int8 everywhere; "
        "layers in float, 50.0 % of the MACs, not counted (PANN's model of energy in ASICs and microcontrollers, not "
        "measured, and not of this CPU)",
        UNTOLD,
        "",
        "[lower] /twin\\n: Conv computes in float: why",
        "[convert-opset] opset 17 converted to 18",
        "[lower] /ma, /mb, /mc, and 2 more: Mul computes in float: so",
    ]


def test_explain_tells_times_where_a_latency_was_asked_for(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    operators = [
        {"node": "/conv", "predicted_us": 12.0, "measured_us": 14.5},
        {"node": "/relu", "predicted_us": 1.0, "measured_us": 1.0},
    ]
    head, conv, twin, *_ = str(Explanation(manifest(latency={"operators": operators}), *documents)).splitlines()
    assert head.endswith("predicted µs  measured µs")
    assert conv.split()[-2:] == ["12", "14.5"]
    assert twin.endswith(" " * len("  predicted µs  measured µs"))


def test_explain_without_notes(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert str(Explanation(manifest(), *documents)).splitlines()[-2].startswith("bit flips of a sample")


@pytest.mark.parametrize(
    "change",
    [
        {"labels": 5},
        {"latency": {}},
        {"loss_budget": 5},
        {"memory": [1]},
        {"results": {"outputs": 5}},
    ],
)
def test_documents_of_another_form_are_refused(
    documents: tuple[dict[str, Any], dict[str, Any]], change: dict[str, Any]
) -> None:
    explanation = Explanation({**manifest(), **change}, *documents)
    with pytest.raises(IntegrityError, match="the artifact is not as `ptqc compile` writes it"):
        str(explanation)


def test_formats_that_were_not_measured_are_refused(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    plan, sensitivity = documents
    plan["weights"][0]["format"] = "int9"
    with pytest.raises(IntegrityError, match="the artifact is not as `ptqc compile` writes it"):
        Explanation(manifest(), plan, sensitivity).to_json()


def test_an_artifact_without_multiply_accumulates_is_explained(
    documents: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    plan, sensitivity = documents
    for entry in sensitivity["weights"]:
        del entry["layers"]
    printed = str(Explanation(manifest(), plan, sensitivity)).splitlines()
    assert printed[1].endswith("–")
    assert printed[-2].startswith("bit flips: not known")


def test_memory_is_told(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    result = {"runtime": "a runtime", "weights_bytes": 1_230_000, "run_bytes": 450_000, "predicted_run_bytes": 400_000}
    result |= {"needed_bytes": 1_680_000, "budget": None, "limit_bytes": None}
    libraries = [{"isa": "avx2", "loaded_bytes": 1_000_000, "workspace_bytes": 250_000}, {"isa": "earlier"}]
    document = manifest(memory=result, targets={"cpu": {"libraries": libraries}, "gone": {"missing": "why"}})
    assert str(Explanation(document, *documents)).splitlines()[-1] == (
        "memory when loaded: 1.68 MB; weights 1.23 MB, a run of one sample at most 0.45 MB (measured; a runtime, one "
        "thread, beside the runtime itself); avx2 library 1.00 MB and 0.25 MB; loading itself takes more: see "
        "`ptqc expand`"
    )
    result |= {"run_bytes": None, "budget": "2,000,000 B of memory", "limit_bytes": 2_000_000}
    words = "1.68 MB, 84.0 % of the budget of 2,000,000 B of memory; weights 1.23 MB, a run"
    assert words in str(Explanation(document, *documents))
    assert "(predicted;" in str(Explanation(document, *documents))


def test_the_document(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    plan, sensitivity = documents
    result = Explanation(manifest(), plan, sensitivity).to_json()
    conv, twin, positions = result["layers"]
    assert conv["layer"] == "/conv"
    assert conv["bit_flips"] == pytest.approx(3.3e6, rel=0.01)
    assert twin | {"layer": "/conv", "label": "/conv", "compute": "integer"} == conv | {"bit_flips": None}
    assert positions["compute"] == "table"
    assert positions["measured_us"] is None
    assert result["notes"] == []
