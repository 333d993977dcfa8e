"""Each row of a batch is a sample, however batches come in, where the model lets rows stand alone."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from graphs import parse
from torch.utils.data import DataLoader, TensorDataset

import ptqc
from ptqc.calibration.fixed_batches import parts_of
from ptqc.calibration.inputs import InputSpec, input_specs
from ptqc.calibration.open_batches import OpenBatches
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import CalibrationError

ROWS = np.random.default_rng(0).standard_normal((48, 8)).astype(np.float32)
CLASSES = np.arange(48) % 4
LAYER = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)


def layer(batch: str) -> ir.Model:
    return parse(f"g (float[{batch},8] x) => (float[{batch},4] y) {{ y = MatMul(x, w) }}", w=LAYER)


def of_loader(batch_size: int, *more: torch.Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.from_numpy(ROWS), *more), batch_size=batch_size)


class Reader:
    """What ONNX Runtime's quantizer takes."""

    def __init__(self, size: int) -> None:
        self._items = (ROWS[place : place + size] for place in range(0, len(ROWS), size))

    def get_next(self) -> dict[str, np.ndarray] | None:
        item = next(self._items, None)
        return None if item is None else {"x": item}


def of_files(size: int, folder: Path) -> Path:
    for place in range(0, len(ROWS), size):
        np.savez(folder / f"{place:02}.npz", x=ROWS[place : place + size])
    return folder


WAYS: dict[str, Callable[[Path], object]] = {
    "a data loader": lambda _: of_loader(16),
    "with class numbers": lambda _: of_loader(16, torch.from_numpy(CLASSES)),
    "with masks": lambda _: of_loader(16, torch.zeros((len(ROWS), 5, 7), dtype=torch.int64)),
    "the last batch is smaller": lambda _: of_loader(20),
    "dicts of tensors": lambda _: [{"x": batch} for (batch,) in of_loader(16)],
    "dicts with labels": lambda _: [{"x": batch, "labels": y} for batch, y in of_loader(16, torch.from_numpy(CLASSES))],
    "tensors that want a gradient": lambda _: [torch.from_numpy(part).requires_grad_() for part in np.split(ROWS, 3)],
    "a generator": lambda _: iter(np.split(ROWS, 3)),
    "lists": lambda _: [{"x": part.tolist()} for part in np.split(ROWS, 3)],
    "a reader": lambda _: Reader(12),
    "files": lambda folder: of_files(12, folder),
    "one array": lambda _: torch.from_numpy(ROWS),
    "no batches": lambda _: list(ROWS[:, np.newaxis]),
}


def collected(model: ir.Model, source: object, folder: Path, limit: int = 100) -> Samples:
    return collect(source, input_specs(model), folder / "spool", limit, rows=OpenBatches(model))


@pytest.mark.parametrize("batch", ["N", "1", "2"])
@pytest.mark.parametrize("way", WAYS)
def test_rows_are_samples(batch: str, way: str, tmp_path: Path) -> None:
    if batch == "2" and way == "no batches":
        pytest.skip("a batch of two has two rows")
    (tmp_path / "files").mkdir()
    result = collected(layer(batch), WAYS[way](tmp_path / "files"), tmp_path)
    each = 1 if batch == "N" else int(batch)
    np.testing.assert_array_equal([sample["x"] for sample in result], ROWS.reshape(-1, each, 8))
    assert [record.number for record in result.records] == list(range(48 // each))


def test_only_as_many_as_are_wanted_are_read(tmp_path: Path) -> None:
    def batches() -> Iterator[np.ndarray]:
        yield ROWS[:16]
        yield ROWS[16:32]
        raise AssertionError("more is read than is wanted")

    assert len(collected(layer("N"), batches(), tmp_path, 20)) == 20


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[N,8] x) => (float[N,8] y) { m = ReduceMean<keepdims=1>(x, axis) y = Sub(x, m) }",
        "g (float[T,8] x) => (float[1,8] y) { y = ReduceMax<keepdims=1>(x, axis) }",
        "g (float[T,8] x, float[M,8] z) => (float[T,M] y) { t = Transpose<perm=[1,0]>(z) y = MatMul(x, t) }",
    ],
    ids=["normalized over the batch", "a whole of many rows", "inputs of different lengths"],
)
def test_rows_that_depend_on_each_other_stay_together(graph: str, tmp_path: Path) -> None:
    model = parse(graph, axis=np.array([0]))
    more = {"z": ROWS[:3]} if "float[M,8] z" in graph else {}
    result = collected(model, [{"x": part, **more} for part in np.split(ROWS, 3)], tmp_path)
    assert [sample["x"].shape for sample in result] == [(16, 8)] * 3


def test_lengths_say_what_a_sample_is(tmp_path: Path) -> None:
    result = collected(layer("N"), {"x": ROWS, "x.lengths": np.array([40, 8])}, tmp_path)
    assert [sample["x"].shape for sample in result] == [(40, 8), (8, 8)]


X, SCALE = InputSpec("x", np.dtype(np.float32), (2, 8)), InputSpec("scale", np.dtype(np.float32), ())


def test_what_has_no_batch_belongs_to_every_sample() -> None:
    result = parts_of({"x": ROWS[:6], "scale": np.float32(3)}, [X, SCALE])
    np.testing.assert_array_equal([part["x"] for part in result], ROWS[:6].reshape(3, 2, 8))
    assert [part["scale"] for part in result] == [3, 3, 3]


@pytest.mark.parametrize("shape", [(3, 2, 8), (6, 8)])
def test_samples_may_be_stacked_or_joined(shape: tuple[int, ...]) -> None:
    result = parts_of({"x": ROWS[:6].reshape(shape)}, [X])
    np.testing.assert_array_equal([part["x"] for part in result], ROWS[:6].reshape(3, 2, 8))


def test_an_incomplete_batch_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"samples\[1\].*give 2 rows in each sample.*drop_last=True"):
        collected(layer("2"), [ROWS[:2], ROWS[2:5]], tmp_path)


def test_a_batch_that_fits_no_input_is_told_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"has shape \(6, 7\), expected \(2, 8\)"):
        collected(layer("2"), [ROWS[:6, :7]], tmp_path)


def test_a_loader_with_classes_is_scored(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(layer("N"), path)
    labels = (ROWS @ LAYER).argmax(1)
    labels[:12] = (labels[:12] + 1) % 4
    result = ptqc.evaluate(path, metric="top-1", data=of_loader(20, torch.from_numpy(labels)))
    assert (result.cases, result.models[0].score.value) == (48, 75)


def test_a_loader_gives_the_file_that_its_rows_give(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(layer("N"), path)
    of_batches = ptqc.compile(path, calibration=of_loader(16), output=tmp_path / "a", cache=tmp_path / "cache")
    of_rows = ptqc.compile(path, calibration=ROWS, output=tmp_path / "b", cache=tmp_path / "cache")
    assert of_batches.path.read_bytes() == of_rows.path.read_bytes()
    assert not [note for note in of_batches.manifest["notes"] if "calibration samples" in note["message"]]


def test_some_of_a_sorted_list_are_scored_evenly_spread_and_of_a_loader_the_first(tmp_path: Path) -> None:
    """The labels of the first half are right."""
    path = tmp_path / "m.onnx"
    ir.save(layer("N"), path)
    labels = (ROWS @ LAYER).argmax(1)
    labels[24:] = (labels[24:] + 1) % 4
    pairs = [(row[np.newaxis], int(label)) for row, label in zip(ROWS, labels, strict=True)]
    batches = [(ROWS[start : start + 12], labels[start : start + 12]) for start in range(0, 48, 12)]
    for data in (pairs, batches):
        result = ptqc.evaluate(path, metric="top-1", data=data, samples=20)
        assert (result.cases, result.models[0].score.value, result.notes) == (20, 50, ())
    result = ptqc.evaluate(path, metric="top-1", data=of_loader(20, torch.from_numpy(labels)), samples=20)
    assert (result.cases, result.models[0].score.value) == (20, 100)
    assert result.notes == ("of the DataLoader, at most the first 20 samples are scored",)


class Lazily(Sequence[tuple[np.ndarray, int]]):
    """Pairs that are read when they are asked for; one of them cannot be."""

    def __init__(self, broken: int = -1) -> None:
        self.broken, self.read = broken, set[int]()

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, place: Any) -> Any:
        if place >= len(self):
            raise IndexError
        if place == self.broken:
            raise OSError("broken.jpg")
        self.read.add(place)
        return ROWS[place : place + 1], int((ROWS[place] @ LAYER).argmax())


def test_of_a_list_only_those_are_read_that_are_scored(tmp_path: Path) -> None:
    ir.save(layer("N"), tmp_path / "m.onnx")
    pairs = Lazily()
    result = ptqc.evaluate(tmp_path / "m.onnx", metric="top-1", data=pairs, samples=4)
    assert (result.cases, result.models[0].score.value) == (4, 100)
    assert pairs.read == {0, 16, 31, 47}


@pytest.mark.parametrize("broken", [0, 16])
def test_a_labelled_sample_that_cannot_be_read_is_named(broken: int, tmp_path: Path) -> None:
    ir.save(layer("N"), tmp_path / "m.onnx")
    with pytest.raises(CalibrationError, match=rf"samples\[{broken}\]: reading .*broken.jpg"):
        ptqc.evaluate(tmp_path / "m.onnx", metric="top-1", data=Lazily(broken), samples=4)


def test_rows_of_batches_are_scored_one_by_one(tmp_path: Path) -> None:
    path, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    ir.save(layer("N"), path)
    ir.save(parse("g (float[N,8] x) => (float[N,4] y) { y = MatMul(x, w) }", w=LAYER + 0.5), other)
    for data in (of_loader(16), np.split(ROWS, 3)):
        result = ptqc.evaluate(path, other, metric="cosine", data=data)
        single = ptqc.evaluate(path, other, metric="cosine", data=ROWS)
        assert result.cases == 48
        assert result.models[1].score == single.models[1].score
