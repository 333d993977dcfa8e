"""The terminal summary, on documents written by hand."""

from typing import Any

import pytest
from summary_documents import judged, manifest

from ptqc.artifact.report.summary import WIDTH, summarize

SPEED = {"speedup": 2.0, "low": 1.96, "high": 2.11, "rounds": 12, "batch": 1, "float_ms": 2.0, "compiled_ms": 1.0}
TIMES = {"latency": SPEED, "seconds": 7.06, "peak_memory_mb": 1254.1}


def lines(times: dict[str, Any] = TIMES, **changes: Any) -> dict[str, str]:
    """Label -> content of a summary, continuation lines joined."""
    text = summarize(manifest(**changes), times)
    result: dict[str, str] = {}
    for line in text.splitlines():
        assert len(line) <= WIDTH
        label, content = line[:12].strip() or [*result][-1], line[12:]
        result[label] = f"{result[label]} {content}" if label in result else content
    return result


def test_the_whole_summary() -> None:
    assert summarize(manifest(results__top1_agreement=31 / 32), TIMES).splitlines() == [
        "verdict     ready to ship: 7.7x smaller, 2.00x as fast, same top class in 96.9 % of samples",
        "size        1,000,000 -> 129,946 bytes: 12.99 % of the original, 99.96 % of the budget of 13%",
        "weights     4.25 bits on average: 300 int4, 100 int5",
        "plan        predicted divergence 0.00202 nat; proven optimal; 1 % more of the original's size would",
        "            buy 33 % less predicted divergence",
        "agreement   same top class in 96.9 % of 32 held-back samples (at least 86.0 % with 95 % confidence);",
        "            SQNR 22.5 dB, divergence 0.00037 nat (small)",
        "latency     2.000 -> 1.000 ms, one sample, one thread, ONNX Runtime: 2.00 times as fast (1.96-2.11)",
        "kernels     32 integer, none in float",
        "compiled in 7.1 s, with at most 1,254 MB of memory",
    ]


def test_how_an_output_was_judged() -> None:
    scores = judged("y", "class scores, softmax over axis 1", "same top class 98.4", "SQNR 22.5")
    assert lines(results__outputs=[scores])["output"] == "y compared as class scores, softmax over axis 1"
    vectors = judged("y", "embedding along axis 1, normalized", "mean cosine 0.993", "least 0.981")
    assert lines(results__outputs=[vectors])["output"] == (
        "y compared as embedding along axis 1, normalized: mean cosine 0.993, least 0.981, divergence 0.007 a unit"
    )


def test_runs_on_their_own_states() -> None:
    fed = {"runs": 64, "loss": 0.0625, "single_loss": 0.0004, "loss_unit": "nat", "top1_agreement": 0.97}
    assert lines(results__fed_back=fed)["fed back"] == (
        "same top class in 97.0 %, divergence 0.0625 nat (0.0004 with the float model's states), over 64 runs in a row "
        "that read their own states"
    )
    assert "fed back" not in lines(results__fed_back=None)


def test_several_outputs() -> None:
    result = lines(results__outputs=[judged(f"y{i}", "numbers", "SQNR 22.5") for i in range(10)])["output"]
    assert result.startswith("y0 compared as numbers: SQNR 22.5, divergence 0.007 a unit y1 compared")
    assert result.endswith("and 2 more, see the report")


def test_a_latency() -> None:
    record = {
        "budget": "2 ms", "runtime": "a runtime", "predicted_ms": 1.95, "measured_ms": 1.9, "float_ms": 4.5
    }  # fmt: skip
    assert lines(latency=record)["time"] == (
        "predicted 1.950 ms, measured 1.900 ms of the budget of 2 ms (float 4.500 ms; a runtime)"
    )


def test_a_latency_that_nothing_was_measured_of() -> None:
    record = {
        "budget": "0.05 ms@cuda", "runtime": "a library", "predicted_ms": 0.0421, "measured_ms": None, "float_ms": 0.1
    }  # fmt: skip
    assert lines(latency=record)["time"] == (
        "predicted 0.0421 ms, not measured, of the budget of 0.05 ms@cuda (float 0.1 ms; a library)"
    )


def test_no_budget() -> None:
    result = lines(budget=None, allocation__price_of_one_percent=0.0)
    assert result["size"] == "1,000,000 -> 129,946 bytes: 12.99 % of the original"
    assert result["plan"].endswith("proven optimal; 1 % more of the original's size would gain nothing")


def test_a_limit_that_bytes_of_the_file_do_not_ease() -> None:
    assert lines(budget=None, allocation__price_of_one_percent=None)["plan"].endswith("0.00202 nat; proven optimal")


BOARD = {"samples": 2, "stack_bytes": 392, "code_bytes": 5_168, "constant_bytes": 18_621, "library_bytes": 472}
C_SOURCE = {
    "constant_bytes": 18_167, "arena_bytes": 3_296, "input_and_output_bytes": 812, "steps": 10, "arena": [],
    "verification": {"integers_compared": 464, "sanitized": True, "compiler": "cc"},
    "boards": {"cortex-m4": {**BOARD, "instructions": 882_315}, "cortex-m55": {**BOARD, "instructions": 833_326}},
}  # fmt: skip
FILES = dict.fromkeys(("model.onnx", "c/vad.c", "c/vad.h"), "")


def test_c_source() -> None:
    text = lines(targets={"c": C_SOURCE}, files=FILES)
    assert [*text][-3:] == ["flash", "RAM", "c"]
    assert "as fast" not in text["verdict"]  # in ONNX Runtime, where it does not run
    assert text["flash"].startswith("23,789 bytes on a Cortex-M4 with a floating-point unit, 18,167 of them weights")
    assert text["RAM"] == "4,108 bytes: 3,296 to work in, 812 of inputs and outputs; the stack comes in addition"
    assert text["c"].startswith(
        "instructions of a run: 882,315 on an emulated cortex-m4, 833,326 on an emulated cortex-m55 (cycles are more)"
    )
    assert text["c"].endswith("c/vad.c, c/vad.h: compile the .c file with the program, and include the .h file")


def test_c_source_within_budgets_tells_each_figure_once() -> None:
    flash = {
        "budget": "24,000 B of flash", "limit_bytes": 24_000, "used_bytes": 23_789, "constant_bytes": 18_167,
        "code_bytes": 5_168, "structure_bytes": 454, "compiler": "gcc -O2 -mfloat-abi=hard",
    }  # fmt: skip
    ram = {
        "budget": "20,000 B of RAM", "limit_bytes": 20_000, "used_bytes": 4_108, "arena_bytes": 3_296,
        "input_and_output_bytes": 812, "peak": "gru", "alive": [["val", 384]],
    }  # fmt: skip
    text = summarize(manifest(targets={"c": C_SOURCE}, files=FILES, flash=flash, ram=ram), TIMES)
    assert text.count("23,789") == text.count("4,108") == text.count("3,296") == 1
    assert "-mfloat-abi=hard" in text


def test_c_source_that_did_not_run_on_boards() -> None:
    text = lines(targets={"c": {**C_SOURCE, "boards": {"missing": "gcc is not installed"}}}, files=FILES)
    assert text["flash"] == "18,167 bytes of weights and other constants; code comes in addition"
    assert text["c"].startswith("emulated boards: not run: gcc is not installed")


def test_a_plan_that_is_not_proven() -> None:
    assert "within 1.2 % of the optimum" in lines(allocation__gap=0.012)["plan"]


def test_the_predicted_loss_is_that_of_the_whole_file() -> None:
    """Beside the measured loss, which is of weights and activations, that of weights alone would say little."""
    assert lines(activation_loss=0.004)["plan"].startswith(
        "predicted divergence 0.00602 nat (weights 0.00202, activations 0.004); proven optimal"
    )


def test_a_given_plan() -> None:
    value = lines(allocation__status="given")["plan"]
    assert value == "predicted divergence 0.00202 nat; the plan was given, not chosen by the solver"


@pytest.mark.parametrize(
    ("ratio", "low", "high", "said"),
    [
        (2.0, 1.96, 2.11, "2.00 times as fast (1.96-2.11)"),
        (1.08, 1.06, 1.11, "1.08 times as fast (1.06-1.11)"),
        (0.8, 0.75, 0.82, "SLOWER, 1.25 times as long (1.22-1.33)"),
        (0.99, 0.98, 0.995, "equally fast (0.98-0.99 times)"),
        (1.02, 1.01, 1.03, "equally fast (1.01-1.03 times)"),
        (1.01, 0.98, 1.03, "equally fast (0.98-1.03 times)"),
        (1.3, 0.9, 1.6, "the machine was too busy to say which is faster (0.90-1.60 times as fast)"),
        (7.9, 0.99, 18.0, "the machine was too busy to say which is faster (0.99-18.00 times as fast)"),
    ],
)
def test_the_faster_one_is_named_only_where_the_spread_allows(ratio: float, low: float, high: float, said: str) -> None:
    speed = {**SPEED, "speedup": ratio, "low": low, "high": high}
    assert lines({**TIMES, "latency": speed})["latency"].partition(": ")[2] == said


def test_why_speeds_were_not_compared() -> None:
    assert lines({**TIMES, "latency": None, "latency_missing": "it rains"})["latency"] == "not measured: it rains"


def test_a_batch_that_the_model_asks_for_is_named() -> None:
    text = lines({**TIMES, "latency": {**SPEED, "batch": 8}})["latency"]
    assert text.startswith("2.000 -> 1.000 ms, a batch of 8 as the model asks for, one thread")


def test_no_classes() -> None:
    assert lines(results__top1_agreement=None)["agreement"].startswith("SQNR 22.5 dB")


def test_scores() -> None:
    assert "score" not in lines()
    assert lines(results__float_score=91.2, results__compiled_score=90.95)["score"] == "score 91.20 -> 90.95 (-0.25)"
    result = lines(
        results__float_score=98.607, results__compiled_score=98.664, results__score_title="top-1 accuracy, %"
    )
    assert result["score"] == "top-1 accuracy 98.61 % -> 98.66 % (+0.05 points)"
    assert result["verdict"].endswith("2.00x as fast, top-1 accuracy +0.05 points")


def test_operators_in_float_are_named_most_frequent_first() -> None:
    operators = {"Softmax": 1, "Resize": 4, "Erf": 4, "Gather": 2, "Tanh": 1, "Sin": 1}
    result = lines(float_operators=operators)["kernels"]
    assert result == "32 integer, in float: 4 Erf, 4 Resize, 2 Gather, 1 Sin, 1 Softmax, 1 Tanh"
    result = lines(float_operators={f"Kind{i}": 20 - i for i in range(11)})["kernels"]
    assert result.endswith("13 Kind7 and 33 of 3 other kinds")
    result = lines(float_operators={"Conv": 3}, rounded_activations={"bfloat16": 2})["kernels"]
    assert result == "32 integer, in float: 3 Conv; 2 activations in bfloat16"
    earlier = manifest(bfloat16_activations=2)
    del earlier["rounded_activations"]
    assert "none in float; 2 activations in bfloat16" in summarize(earlier, TIMES)


def test_no_weights() -> None:
    assert "weights" not in lines(weights_by_format={})


def test_every_format_is_listed_with_bits_that_its_name_does_not_say() -> None:
    formats = {"int7": 1, "pairs8": 5, "tcq4": 4, "codebook4": 3, "float16": 2}
    result = lines(weights_by_format=formats)["weights"]
    assert result.endswith("bits on average: 5 pairs8 (4 bits), 4 tcq4, 3 codebook4, 2 float16, 1 int7")


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
    assert text.count("WARNING") == 1
    assert " and 6 more" not in text
    notes = [{**note, "message": f"{i} {note['message']}"} for i in range(9)]
    assert summarize(manifest(notes=notes), TIMES).count("WARNING") == 9
    assert summarize(manifest(notes=notes), TIMES).startswith("verdict     9 warnings: ")


def test_a_budget_of_memory() -> None:
    result = {"runtime": "a runtime", "weights_bytes": 1_230_000, "run_bytes": None, "predicted_run_bytes": 400_000}
    result |= {"needed_bytes": 1_680_000, "budget": None, "limit_bytes": None}
    short = "1.68 MB when loaded (weights 1.23 MB); loading itself takes more: see `ptqc expand`"
    assert lines(memory=result)["memory"] == short
    result |= {"budget": "2,000,000 B of memory", "limit_bytes": 2_000_000}
    assert lines(memory=result)["memory"].startswith(
        "1.68 MB, 84.0 % of the budget of 2,000,000 B of memory; weights 1.23 MB, a run"
    )


def test_a_library_that_could_not_be_compared_says_so() -> None:
    result = {"isa": "arm-neon", "bytes": 1000, "steps": {"dense": 3}, "kernels": 2, "verification": {"missing": "why"}}
    text = lines(targets={"cpu": {"weights_bytes": 2000, "libraries": [result]}})["cpu"]
    size = "1,000 bytes beside 2,000 of weights"
    assert text == f"native library for arm-neon, {size}, 3 steps of 2 kernels; NOT VERIFIED: why"


def test_what_is_not_fit_for_use_is_said_first() -> None:
    text = summarize(manifest(unfit=["there was time for 8 of 40 calibration samples", "another reason"]), TIMES)
    assert text.splitlines()[0] == "NOT FIT     for use: there was time for 8 of 40 calibration samples"
    assert not summarize(manifest(unfit=[]), TIMES).startswith("NOT FIT")


def test_what_the_time_limit_cut_short_is_said_first() -> None:
    assert summarize(manifest(cut_short=True), TIMES).startswith("CUT SHORT   by the time limit")
    assert summarize(manifest(cut_short=True, unfit=["few samples"]), TIMES).startswith("NOT FIT")
    assert summarize(manifest(cut_short=False), TIMES).startswith("verdict")
