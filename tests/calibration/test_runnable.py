"""Samples that the model does not run on are told before anything is measured, with what helps."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from PIL import Image

from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.runnable import check_runs, runnable_short_sizes
from ptqc.calibration.samples import Samples, collect
from ptqc.calibration.synthetic import FREE_SIDE
from ptqc.errors import CalibrationError
from ptqc.execution.onnxruntime import Runner
from ptqc.notes import Level

# Of sizes that are no multiple of 2, the parts that are joined differ in size.
HOURGLASS = """g (float[N,3,H,W] x) => (float[N,6,H,W] y) {
    p = MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)
    u = Resize<mode="nearest">(p, , scales)
    y = Concat<axis=1>(u, x)
}"""
SUM = "g (float[N,L] x, float[N,M] z) => (float[N,K] y) { y = Add(x, z) }"


@pytest.fixture
def hourglass() -> ir.Model:
    return parse(HOURGLASS, scales=np.array([1, 1, 2, 2], np.float32))


def photos(folder: Path, *sizes: tuple[int, int]) -> Path:
    for number, (height, width) in enumerate(sizes):
        Image.new("RGB", (width, height)).save(folder / f"{number}.png")
    return folder


def taken(model: ir.Model, source: object, folder: Path, preprocessing: Preprocessing | None = None) -> Samples:
    return collect(source, input_specs(model), folder / "spool", 100, preprocessing)


def test_images_of_various_sizes_are_taken_as_they_are_where_all_run(hourglass: ir.Model, tmp_path: Path) -> None:
    samples = taken(hourglass, photos(tmp_path, (8, 8), (10, 12), (6, 20)), tmp_path, Preprocessing())
    check_runs(hourglass, samples)
    assert [note.message[:36] for note in samples.notes if note.level == Level.INFO] == [
        "images of 3 sizes are taken as they "
    ]


def test_a_size_that_the_model_refuses_is_told_with_the_options_that_help(hourglass: ir.Model, tmp_path: Path) -> None:
    folder = photos(tmp_path, (8, 8), (10, 12), (9, 12))
    with pytest.raises(CalibrationError) as caught:
        check_runs(hourglass, taken(hourglass, folder, tmp_path, Preprocessing()))
    message = str(caught.value)
    assert message.startswith("samples[2] (2.png): the model does not run on 'x' of shape (1, 3, 9, 12): ")
    assert "Status Message" not in message
    for remedy, value in (
        ("--resize 320 --crop 320", Preprocessing(resize=320, crop=320)),
        ("--resize 320 --fit letterbox", Preprocessing(resize=320, fit="letterbox")),
    ):
        assert remedy in message
        check_runs(hourglass, taken(hourglass, folder, tmp_path, value))


def test_other_inputs_are_told_with_all_of_their_shapes(tmp_path: Path) -> None:
    model = parse(SUM)
    feeds = [{"x": noise(1, 4), "z": noise(1, length)} for length in (4, 1, 3)]
    with pytest.raises(
        CalibrationError, match=r"samples\[2\]: .* 'x' of shape \(1, 4\), 'z' of shape \(1, 3\): .*leave this"
    ):
        check_runs(model, taken(model, feeds, tmp_path))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((5, 4, 6), r"'x' of shape \(1, 5\): .*of 3 sizes that were tried it runs on 'x' of shape \(1, 4\): pad, cut"),
        ((5, 6, 7), r"'x' of shape \(1, 5\): .*of 3 sizes that were tried it runs on none"),
    ],
)
def test_where_other_sizes_fail_too_none_is_to_be_left_out(
    lengths: tuple[int, ...], expected: str, tmp_path: Path
) -> None:
    model = parse("g (float[N,L] x) => (float[N,4] y) { y = Add(x, c) }", c=np.ones((1, 4), np.float32))
    with pytest.raises(CalibrationError, match=expected) as caught:
        check_runs(model, taken(model, [noise(1, length) for length in lengths], tmp_path))
    assert "leave this one out" not in str(caught.value)


def test_the_smallest_and_the_largest_of_very_many_sizes_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse("g (float[N,L] x) => (float[N,L] y) { y = Relu(x) }")
    samples = taken(model, [noise(1, length) for length in range(1, 60)], tmp_path)
    tried: list[int] = []
    monkeypatch.setattr(Runner, "run", lambda _, feeds: tried.append(feeds["x"].size))
    check_runs(model, samples)
    assert len(tried) == 16
    assert (min(tried), max(tried)) == (1, 59)


@pytest.mark.parametrize(("declared", "loaded"), [("float[N,L] x", True), ("float[N,4] x", False)])
def test_nothing_is_run_where_all_sizes_are_declared_or_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str, loaded: bool
) -> None:
    tried = []

    def run(*_: object) -> None:
        tried.append(True)
        raise RuntimeError("std::bad_alloc")

    model = parse(f"g ({declared}) => (float[N,K] y) {{ y = Relu(x) }}")
    samples = taken(model, [noise(1, 4)], tmp_path)
    monkeypatch.setattr(Runner, "run", run)
    check_runs(model, samples)
    assert bool(tried) is loaded


@pytest.mark.parametrize(("rows", "kept"), [(1, [1, 2, 4, 8, 16]), (4, [4, 8, 16])])
def test_short_samples_are_those_that_the_model_runs_on(rows: int, kept: list[int]) -> None:
    graph = """g (int64[N,T] ids) => (float[N,T,8] y, float[N,M,8] z) {
        y = Gather(words, ids)
        z = Reshape(y, shape)
    }"""
    model = parse(graph, words=noise(50, 8), shape=np.array([1, -1, 8 * rows]))
    assert [sizes.tokens for sizes in runnable_short_sizes(model, 0, FREE_SIDE)] == kept
