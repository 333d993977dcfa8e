"""How much of a network the emulator takes on, and what is told of it."""

from pathlib import Path

from ptqc.codegen.cuda import verification

LARGE = {"runs": 3, "integers_compared": 48_000, "cropped": {"a": 0.5, "b": 0.1}}


def test_a_large_network_takes_one_sample_and_two_edge_inputs() -> None:
    names = ("sample 0", "sample 1", "lowest", "highest", "zero", "random")
    runs = {name: Path(name) for name in names}
    assert [path.name for path in verification._taken(runs)] == ["sample 0", "random", "highest"]


def test_edge_inputs_that_a_model_refuses_are_replaced() -> None:
    runs = {name: Path(name) for name in ("sample 0", "lowest", "zero")}
    assert [path.name for path in verification._taken(runs)] == ["sample 0", "lowest", "zero"]


def test_what_was_cropped_is_told() -> None:
    wanted = (
        "0 of 48,000 integers differ from model.onnx, kernel by kernel on one sample of each of 3 runs; "
        "of 2 large ones a part, in the emulator of PTX; not run on a GPU"
    )
    assert verification.summary(LARGE) == wanted
    assert "part" not in verification.summary({**LARGE, "cropped": {}})


def test_what_differs_end_to_end_alone_lies_behind_float_parts() -> None:
    whole = {"integers_compared": 48_000, "end_to_end_different": {}, "end_to_end_rounded": {}}
    text = "0 of 48,000 integers differ from model.onnx{}, in the emulator of PTX; not run on a GPU"
    assert verification.summary(whole) == text.format("")
    after = text.format("; 1,200 differ end to end, all after 3 roundings of float parts")
    different = {"end_to_end_different": {"a": 1_000, "b": 200}, "end_to_end_rounded": {"a": 3}}
    assert verification.summary(whole | different) == after


def test_what_was_not_verified_is_told() -> None:
    assert verification.summary({"missing": "no mma"}) == "NOT VERIFIED HERE: no mma"
