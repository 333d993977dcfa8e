"""The terminal summary and the table of `ptqc explain`, on documents written by hand."""

from typing import Any

import pytest

from ptqc.report.memory import UNTOLD
from ptqc.report.summary import WIDTH, explain, summarize

SPEED = {"times_as_fast": 2.0, "low": 1.96, "high": 2.11, "rounds": 12, "rows": 1}
TIMES = {"float_ms": 2.0, "compiled_ms": 1.0, "speed": SPEED, "seconds": 7.06, "peak_memory_mb": 1254.1}


def manifest(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "source": {"bytes": 1_000_000},
        "file": {"bytes": 129_946},
        "budget": "13%",
        "allocation": {
            "loss": 0.002019, "unit": "nat", "gap": 1e-7, "limit": 130_000, "price_of_one_percent": 0.00066,
            "status": "optimal",
        },
        "weights_by_format": {"int5": 100, "int4": 300},
        "results": {
            "top1_agreement": 0.9844, "sqnr_db": 22.49, "loss": 0.00037, "loss_unit": "nat", "held_back_samples": 32,
            "float_score": None, "compiled_score": None,
        },
        "verification": {"integer_nodes": 32},
        "float_operators": {},
        "rounded_activations": {},
        "notes": [],
    }  # fmt: skip
    for path, value in changes.items():
        part, _, key = path.partition("__")
        if key:
            document[part][key] = value
        else:
            document[part] = value
    return document


def lines(times: dict[str, Any] = TIMES, **changes: Any) -> dict[str, str]:
    """Label -> content of a summary, continuation lines joined."""
    text = summarize(manifest(**changes), times)
    found: dict[str, str] = {}
    for line in text.splitlines():
        assert len(line) <= WIDTH
        label, content = line[:12].strip() or [*found][-1], line[12:]
        found[label] = f"{found[label]} {content}" if label in found else content
    return found


def test_the_whole_summary() -> None:
    assert summarize(manifest(), TIMES).splitlines() == [
        "size        1,000,000 -> 129,946 bytes: 12.99 % of the original, 99.96 % of the budget of 13%",
        "weights     300 int4, 100 int5; 4.25 bits on average",
        "plan        predicted loss 0.00202 nat, proven best; +1 % of size: -0.00066",
        "agreement   same top class in 98.4 %, SQNR 22.5 dB, loss 0.00037 nat (32 held-back samples)",
        "latency     2.000 -> 1.000 ms, one sample, one thread, ONNX Runtime: 2.00 times as fast (1.96-2.11)",
        "kernels     32 on integers, none in float",
        "took        7.1 s, 1,254 MB of memory at most",
    ]


def judged(name: str, kind: str, *figures: str) -> dict[str, Any]:
    told = [{"name": text.rpartition(" ")[0], "text": text} for text in figures]
    return {"output": name, "judged_as": kind, "loss": 0.007, "loss_unit": "a unit", "figures": told}


def test_how_an_output_was_judged() -> None:
    scores = judged("y", "class scores, softmax over axis 1", "same top class 98.4", "SQNR 22.5")
    assert lines(results__outputs=[scores])["output"] == "y judged as class scores, softmax over axis 1"
    vectors = judged("y", "embedding along axis 1, normalized", "mean cosine 0.993", "least 0.981")
    assert lines(results__outputs=[vectors])["output"] == (
        "y judged as embedding along axis 1, normalized: mean cosine 0.993, least 0.981, loss 0.007 a unit"
    )


def test_several_outputs() -> None:
    found = lines(results__outputs=[judged(f"y{i}", "numbers", "SQNR 22.5") for i in range(6)])["output"]
    assert found.startswith("y0 judged as numbers: SQNR 22.5, loss 0.007 a unit y1 judged")
    assert found.endswith("and 2 more, see the report")


def test_explain_says_how_outputs_were_judged() -> None:
    boxes = judged("y", "boxes and scores", "SQNR 22.5") | {
        "losses": {"scores": 0.3, "values (channels 0 to 3)": 0.02},
        "units": {"scores": "nat", "values (channels 0 to 3)": "relative squared error"},
    }
    told = explain(manifest(results__outputs=[boxes]), {"weights": []}, {"weights": []})
    assert told.splitlines()[4:] == [
        "",
        "y judged as boxes and scores: SQNR 22.5, loss 0.007 a unit",
        "  scores: loss 0.3 nat",
        "  values (channels 0 to 3): loss 0.02 relative squared error",
    ]


def test_a_latency() -> None:
    told = {
        "budget": "2 ms", "runtime": "a runtime", "predicted_ms": 1.95, "measured_ms": 1.9, "float_ms": 4.5
    }  # fmt: skip
    assert lines(latency=told)["time"] == (
        "predicted 1.950 ms, measured 1.900 ms of the budget of 2 ms (float 4.500 ms; a runtime, one thread)"
    )


def test_no_budget() -> None:
    found = lines(budget=None, allocation__price_of_one_percent=0.0)
    assert found["size"] == "1,000,000 -> 129,946 bytes: 12.99 % of the original"
    assert found["plan"].endswith("proven best; +1 % of size gains nothing")


def test_a_plan_that_is_not_proven() -> None:
    assert "at most 1.2 % from the best" in lines(allocation__gap=0.012)["plan"]


def test_a_given_plan() -> None:
    assert lines(allocation__status="given")["plan"] == "predicted loss 0.00202 nat; as given, not chosen by the solver"


@pytest.mark.parametrize(
    ("ratio", "low", "high", "said"),
    [
        (2.0, 1.96, 2.11, "2.00 times as fast (1.96-2.11)"),
        (1.02, 1.01, 1.03, "1.02 times as fast (1.01-1.03)"),
        (0.8, 0.75, 0.82, "SLOWER, 1.25 times as long (1.22-1.33)"),
        (1.01, 0.98, 1.03, "equally fast (0.98-1.03 times)"),
        (1.3, 0.9, 1.6, "the machine was too busy to say which is faster (0.90-1.60 times as fast)"),
        (7.9, 0.99, 18.0, "the machine was too busy to say which is faster (0.99-18.00 times as fast)"),
    ],
)
def test_the_faster_one_is_named_only_where_the_spread_allows(ratio: float, low: float, high: float, said: str) -> None:
    speed = {**SPEED, "times_as_fast": ratio, "low": low, "high": high}
    assert lines({**TIMES, "speed": speed})["latency"].partition(": ")[2] == said


def test_a_batch_that_the_model_asks_for_is_named() -> None:
    told = lines({**TIMES, "speed": {**SPEED, "rows": 8}})["latency"]
    assert told.startswith("2.000 -> 1.000 ms, a batch of 8 as the model asks for, one thread")


def test_no_classes() -> None:
    assert lines(results__top1_agreement=None)["agreement"].startswith("SQNR 22.5 dB")


def test_scores() -> None:
    assert "score" not in lines()
    assert lines(results__float_score=91.2, results__compiled_score=90.95)["score"] == "91.20 -> 90.95 (-0.25)"


def test_operators_in_float_are_named_most_frequent_first() -> None:
    operators = {"Softmax": 1, "Resize": 4, "Erf": 4, "Gather": 2, "Tanh": 1, "Sin": 1}
    found = lines(float_operators=operators)["kernels"]
    assert found == "32 on integers, in float 4 Erf, 4 Resize, 2 Gather, 1 Sin and 2 more"
    found = lines(float_operators={"Conv": 3}, rounded_activations={"bfloat16": 2})["kernels"]
    assert found == "32 on integers, in float 3 Conv; 2 activations in bfloat16"
    earlier = manifest(bfloat16_activations=2)
    del earlier["rounded_activations"]
    assert "none in float; 2 activations in bfloat16" in summarize(earlier, TIMES)


def test_no_weights() -> None:
    assert "weights" not in lines(weights_by_format={})


def test_warnings_come_last_and_only_they() -> None:
    notes = [
        {"step": "judge", "subject": "", "message": "agrees poorly", "level": "warning"},
        {"step": "flatten", "subject": "y", "message": "Reshape is now Flatten", "level": "info"},
        {"step": "judge", "subject": "y\x1b[2J", "message": "looks odd", "level": "warning"},
    ]
    assert summarize(manifest(notes=notes), TIMES).splitlines()[-2:] == [
        "WARNING     agrees poorly",
        "WARNING     y\\x1b[2J: looks odd",
    ]


def test_many_and_long_warnings() -> None:
    note = {"step": "judge", "subject": "n" * 500, "message": "word " * 60, "level": "warning"}
    text = summarize(manifest(notes=[note] * 9), TIMES)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.endswith("WARNING     and 6 more, see the report")


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
    ]
    assert explain(manifest(notes=notes), *documents).splitlines() == [
        "layer or weight  elements   format  compute  bytes  predicted loss  bit flips",
        "/conv               2,000     int4  integer  1,234        1.23e-03      3.3 M",
        "/twin\\n             2,000     int4    float  1,234        1.23e-03          –",
        "positions           2,000  float16    table  5,678        0.00e+00          –",
        "",
        "bit flips of a sample: 3.3 M with signed arithmetic, 2.8 M unsigned: 91.7 % and 87.5 % of int8 everywhere; "
        "layers in float, 50.0 % of the MACs, not counted (PANN's model of energy in ASICs and microcontrollers, not "
        "measured, and not of this CPU)",
        UNTOLD,
        "",
        "[lower] /twin\\n: Conv computes in float: why",
        "[convert-opset] opset 17 converted to 18",
    ]


def test_explain_tells_times_where_a_latency_was_asked_for(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    operators = [
        {"node": "/conv", "predicted_us": 12.0, "measured_us": 14.5},
        {"node": "/relu", "predicted_us": 1.0, "measured_us": 1.0},
    ]
    head, conv, twin, *_ = explain(manifest(latency={"operators": operators}), *documents).splitlines()
    assert head.endswith("predicted µs  measured µs")
    assert conv.split()[-2:] == ["12", "14.5"]
    assert twin.endswith(" " * len("  predicted µs  measured µs"))


def test_explain_without_notes(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert explain(manifest(), *documents).splitlines()[-2].startswith("bit flips of a sample")


def test_an_artifact_without_multiply_accumulates_is_explained(
    documents: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    plan, sensitivity = documents
    for entry in sensitivity["weights"]:
        del entry["layers"]
    told = explain(manifest(), plan, sensitivity).splitlines()
    assert told[1].endswith("–")
    assert told[-2].startswith("bit flips: none to tell")


def test_memory_is_told(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    found = {"runtime": "a runtime", "weights_bytes": 1_230_000, "run_bytes": 450_000, "predicted_run_bytes": 400_000}
    found |= {"needed_bytes": 1_680_000, "budget": None, "limit_bytes": None}
    libraries = [{"isa": "avx2", "loaded_bytes": 1_000_000, "workspace_bytes": 250_000}, {"isa": "earlier"}]
    document = manifest(memory=found, targets={"cpu": {"libraries": libraries}, "gone": {"missing": "why"}})
    assert explain(document, *documents).splitlines()[-1] == (
        "memory when loaded: 1.68 MB; weights 1.23 MB, a run of one sample at most 0.45 MB (measured; a runtime, one "
        "thread, beside the runtime itself); avx2 library 1.00 MB and 0.25 MB"
    )
    assert "memory" not in lines(memory=found)
    found |= {"run_bytes": None, "budget": "2,000,000 B of memory", "limit_bytes": 2_000_000}
    words = "1.68 MB, 84.0 % of the budget of 2,000,000 B of memory; weights 1.23 MB, a run"
    assert words in explain(document, *documents)
    assert "(predicted;" in explain(document, *documents)
    assert lines(memory=found)["memory"].startswith(words)


def test_a_library_that_could_not_be_compared_says_so() -> None:
    found = {"isa": "aarch64", "bytes": 1000, "steps": {"dense": 3}, "kernels": 2, "verification": {"missing": "why"}}
    told = lines(targets={"cpu": {"weights_bytes": 2000, "libraries": [found]}})["cpu"]
    size = "1,000 bytes beside 2,000 of weights"
    assert told == f"native library for aarch64, {size}, 3 steps of 2 kernels; NOT VERIFIED: why"
