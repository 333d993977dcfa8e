import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization import CalibrationDataReader
from PIL import Image

from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import InputSpec
from ptqc.calibration.samples import collect
from ptqc.calibration.sources import open_source, spread
from ptqc.errors import CalibrationError
from ptqc.notes import Level
from ptqc.utils.store import write_npz

X = InputSpec("x", np.dtype(np.float32), ("N", 2))
STATE = InputSpec("state", np.dtype(np.float32), ())
IMAGE = InputSpec("image", np.dtype(np.uint8), (1, 3, 4, 4))
ROWS = np.arange(10, dtype=np.float32).reshape(5, 2)


def read(source, inputs=(X,), limit=100, preprocessing=None):
    return list(open_source(source, inputs, limit, preprocessing).samples)


def refusal(source, inputs=(X,), preprocessing=None):
    with pytest.raises(CalibrationError) as caught:
        read(source, inputs, preprocessing=preprocessing)
    return str(caught.value)


def assert_rows(samples, indices=range(5)):
    np.testing.assert_array_equal([sample["x"] for sample in samples], [ROWS[i : i + 1] for i in indices])


@given(st.integers(1, 3000), st.integers(1, 300))
def test_a_spread_is_distinct_sorted_and_reaches_both_ends(count, limit):
    indices = list(spread(count, limit))
    assert len(indices) == min(count, limit)
    assert indices == sorted(set(indices))
    assert indices[0] == 0
    assert limit == 1 or indices[-1] == count - 1
    assert np.ptp(np.diff(indices)) <= 1 if len(indices) > 2 else True


class Foreign:
    """An array of another library, which is iterable too."""

    def __array__(self, dtype=None, copy=None):
        return np.array(ROWS, dtype)

    def __iter__(self):
        return iter(ROWS)


@pytest.mark.parametrize("make", [lambda: ROWS, Foreign, lambda: {"x": ROWS}, lambda: {"x": ROWS[:, np.newaxis]}])
def test_arrays_are_cut_along_axis_0(make):
    source = open_source(make(), [X], 100)
    assert (source.count, source.available) == (5, 5)
    assert_rows(source.samples)


def test_a_limit_takes_an_even_subset_of_arrays_and_lists():
    for source in (ROWS, list(ROWS[:, np.newaxis])):
        assert_rows(read(source, limit=3), [0, 2, 4])
        assert open_source(source, [X], 3).count == 3


def test_npy_and_npz_files_are_stacked_arrays(tmp_path):
    np.save(tmp_path / "a.npy", ROWS)
    np.savez_compressed(tmp_path / "a.npz", x=ROWS, state=np.arange(5, dtype=np.float32))
    assert_rows(read(str(tmp_path / "a.npy")))
    samples = read(tmp_path / "a.npz", (X, STATE))
    assert_rows(samples)
    assert [sample["state"].shape for sample in samples] == [()] * 5
    assert [float(sample["state"]) for sample in samples] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", [np.uint8, np.uint64, np.int8])
def test_lengths_are_integers_of_any_type(kind):
    arrays = {"ids": np.arange(150), "ids.lengths": np.array([100, 50], kind)}
    result = read(arrays, (InputSpec("ids", np.dtype(np.int64), ("N",)),))
    assert [sample["ids"].shape for sample in result] == [(100,), (50,)]


def test_samples_of_different_lengths_lie_one_after_the_other(tmp_path):
    tokens, sound = (
        InputSpec("ids", np.dtype(np.int64), ("N", "T")),
        InputSpec("sound", np.dtype(np.float32), ("N", "T", 2)),
    )
    lengths = np.array([2, 0, 3])
    arrays = {"ids": np.arange(5), "ids.lengths": lengths, "sound": ROWS, "sound.lengths": lengths}
    write_npz(tmp_path / "ragged.npz", arrays)
    for data in (arrays, tmp_path / "ragged.npz"):
        source = open_source(data, (tokens, sound), 100)
        assert (source.count, source.available) == (3, 3)
        samples = list(source.samples)
        assert [sample["ids"].tolist() for sample in samples] == [[0, 1], [], [2, 3, 4]]
        assert [sample["sound"].shape for sample in samples] == [(2, 2), (0, 2), (3, 2)]
        np.testing.assert_array_equal(samples[2]["sound"], ROWS[2:])
    assert [sample["ids"].tolist() for sample in read(arrays, (tokens, sound), limit=2)] == [[0, 1], [2, 3, 4]]
    mixed = {"ids": np.arange(5), "ids.lengths": lengths, "x": ROWS[:3]}
    assert [sample["x"].tolist() for sample in read(mixed, (tokens, X))] == [[row] for row in ROWS[:3].tolist()]


def test_an_input_may_be_named_as_lengths_are():
    named = InputSpec("x.lengths", np.dtype(np.int64), ("N",))
    scalar = InputSpec("x", np.dtype(np.int64), ("N",))
    samples = read({"x": np.array([1, 2]), "x.lengths": np.array([3, 4])}, (scalar, named))
    assert [(sample["x"].item(), sample["x.lengths"].item()) for sample in samples] == [(1, 3), (2, 4)]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([2, 2], "'x.lengths': sums up to 4, but 'x' has shape (5, 2): join its samples along axis 0"),
        ([[2, 3]], "'x.lengths': int64 of shape (1, 2), expected a length per sample"),
        ([2.0, 3.0], "'x.lengths': float64 of shape (2,), expected a length per sample"),
        ([6, -1], "'x.lengths': int64 of shape (2,), expected a length per sample"),
    ],
)
def test_lengths_that_do_not_fit(lengths, message):
    assert message in refusal({"x": ROWS, "x.lengths": lengths})


def test_a_fixed_batch_takes_its_rows_together():
    spec = InputSpec("x", np.dtype(np.float32), (2, 2))
    samples = read({"x": ROWS[:4]}, (spec,))
    np.testing.assert_array_equal([sample["x"] for sample in samples], ROWS[:4].reshape(2, 2, 2))
    assert "has 5 rows, expected a multiple of the model's batch 2" in refusal(ROWS, (spec,))


@pytest.mark.parametrize(
    ("arrays", "inputs", "message"),
    [
        ({"y": ROWS}, (X,), "holds arrays ['y'], expected the model's inputs ['x']"),
        (
            {"x": ROWS, "other": ROWS},
            (X,),
            "expected the model's inputs ['x']: leave out other (labels are called `labels`)",
        ),
        ({"x": ROWS, "state": np.zeros(4)}, (X, STATE), "different numbers of samples {'x': 5, 'state': 4}"),
        ({"x": np.zeros(5)}, (X,), "has shape (5,), expected samples of shape (N, 2)"),
        ({"x": np.zeros((2, 5, 1, 2))}, (X,), "joined along axis 0 or stacked on a new one"),
        ({"x": [[1], [1, 2]]}, (X,), "does not convert to an array"),
        (ROWS, (X, STATE), "one array can feed a model with one input, this one has 'x', 'state'"),
    ],
)
def test_arrays_that_do_not_fit(arrays, inputs, message):
    assert message in refusal(arrays, inputs)


def test_a_folder_of_array_files_is_one_sample_per_file(tmp_path):
    for index, row in enumerate(ROWS):
        folder = tmp_path / f"part{index % 2}"
        folder.mkdir(exist_ok=True)
        np.savez(folder / f"{index}.npz", x=row[np.newaxis])
    (tmp_path / "readme.txt").write_text("ignored")
    assert_rows(read(tmp_path), [0, 2, 4, 1, 3])
    assert_rows(read(tmp_path, limit=2), [0, 3])
    single = tmp_path / "single"
    single.mkdir()
    np.save(single / "one.npy", ROWS[:1])
    assert_rows(read(single), [0])


def save_image(path, value):
    Image.new("RGB", (4, 4), (value, value, value)).save(path)


def test_a_folder_of_images_is_read_sorted_and_recursively(tmp_path):
    (tmp_path / "b").mkdir()
    save_image(tmp_path / "b" / "1.png", 10)
    save_image(tmp_path / "a.BMP", 20)
    save_image(tmp_path / "c.gif", 30)
    save_image(tmp_path / ".hidden.png", 40)
    (tmp_path / ".ipynb_checkpoints").mkdir()
    save_image(tmp_path / ".ipynb_checkpoints" / "a-checkpoint.png", 50)
    (tmp_path / "labels.csv").write_text("ignored")
    source = open_source(tmp_path, [IMAGE], 100, Preprocessing())
    assert (source.count, source.available) == (3, 3)
    assert [int(sample["image"].max()) for sample in source.samples] == [20, 10, 30]


def test_folders_that_are_linked_are_read_once(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "night").mkdir()
    save_image(tmp_path / "data" / "a.png", 10)
    save_image(tmp_path / "night" / "b.jfif.png", 20)
    (tmp_path / "data" / "night").symlink_to(tmp_path / "night")
    (tmp_path / "night" / "up").symlink_to(tmp_path / "data")  # a circle
    (tmp_path / "data" / "nowhere").symlink_to(tmp_path / "gone")
    source = open_source(tmp_path / "data", [IMAGE], 100, Preprocessing())
    assert source.files == ["a.png", "night/b.jfif.png"]


def test_images_that_are_not_read_are_told(tmp_path):
    save_image(tmp_path / "a.png", 10)
    save_image(tmp_path / "scan.pgm.ppm", 10)
    for name in ("b.heic", "c.avif", "d.AVIF", "readme.md"):
        (tmp_path / name).write_bytes(b"")
    source = open_source(tmp_path, [IMAGE], 100, Preprocessing())
    (note,) = source.notes()
    assert (len(source.files), note.level) == (2, Level.WARNING)
    assert note.message == "3 files ending in .avif, .heic are left out: save them as .png"


def test_masks_beside_images_are_no_samples(tmp_path):
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
        save_image(tmp_path / part / "a.png", 10)
    assert open_source(tmp_path, [IMAGE], 100, Preprocessing()).files == ["a.png"]
    (tmp_path / "masks").rename(tmp_path / "more")
    assert open_source(tmp_path, [IMAGE], 100, Preprocessing()).files == ["images/a.png", "more/a.png"]


def test_what_is_wrong_with_a_folder_of_images_is_said(tmp_path):
    save_image(tmp_path / "a.png", 1)
    assert "say how the model takes them" in refusal(tmp_path, (IMAGE,))
    assert "can feed a model with one input" in refusal(tmp_path, (IMAGE, X), Preprocessing())
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8 not a photo")
    assert f"cannot decode image {tmp_path / 'b.jpg'}" in refusal(tmp_path, (IMAGE,), Preprocessing())
    np.save(tmp_path / "c.npy", ROWS)
    assert "keep one kind" in refusal(tmp_path, (IMAGE,), Preprocessing())


def test_an_empty_folder_names_what_it_should_hold(tmp_path):
    assert ".jpeg" in refusal(tmp_path)


def write_truncated(path):
    np.savez(path, x=ROWS)
    path.write_bytes(path.read_bytes()[:-30])


def write_pickled(path):
    np.savez(path, x=np.array([{"a": 1}], dtype=object))


def write_bad_checksum(path):
    np.savez(path, x=ROWS)
    data = path.read_bytes()
    at = data.index(ROWS.tobytes())
    path.write_bytes(data[:at] + b"\x55" + data[at + 1 :])


def write_npy_inside(path):
    with path.open("wb") as file:
        np.save(file, ROWS)


def write_foreign_member(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"not an array")


@pytest.mark.parametrize(
    "write",
    [
        write_truncated,
        write_pickled,
        write_bad_checksum,
        write_npy_inside,
        write_foreign_member,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1"),
    ],
)
def test_damaged_archives_are_named(tmp_path, write):
    path = tmp_path / "data.npz"
    write(path)
    assert f"{path} is not a readable .npz archive" in refusal(path)


def write_npz_inside(path):
    with path.open("wb") as file:
        np.savez(file, x=ROWS)


def write_short(path):
    np.save(path, ROWS)
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize("write", [write_npz_inside, write_short, lambda path: path.write_bytes(b"")])
def test_damaged_arrays_are_named(tmp_path, write):
    path = tmp_path / "data.npy"
    write(path)
    assert f"{path} is not a readable .npy array" in refusal(path)


@pytest.mark.parametrize("order", "<>")
def test_text_that_is_none_is_refused(tmp_path, order):
    """Python makes no str of numbers beyond the last character."""
    text = np.array([["cat", "\U0010ffff"]], f"{order}U3")
    spec = InputSpec("x", np.dtype(np.str_), ("N", 2))
    np.save(tmp_path / "x.npy", text)
    assert read(tmp_path / "x.npy", (spec,))[0]["x"].tolist() == text.tolist()
    text.view(f"{order}u4")[0, 3] += 1
    np.save(tmp_path / "x.npy", text)
    np.savez(tmp_path / "x.npz", x=text)
    for name in ("x.npy", "x.npz"):
        assert "its text holds numbers that are no characters" in refusal(tmp_path / name, (spec,))


def test_what_no_input_takes_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez(path, x=ROWS, labels=np.zeros(10**6), other=np.zeros(10**6))
    monkeypatch.setattr("ptqc.calibration.sources.available_bytes", lambda: 10**6)
    assert "leave out other" in refusal(path)
    np.savez(path, x=ROWS, labels=np.zeros(10**6))
    assert_rows(read(path))
    assert read(tmp_path)[0]["x"].shape == ROWS.shape


def test_an_array_beyond_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros((10**6, 2), np.float32))
    monkeypatch.setattr("ptqc.calibration.sources.available_bytes", lambda: 10**6)
    message = f"{path}: array 'x' has 8,000,128 bytes, and 1,000,000 bytes of memory are free"
    assert message in refusal(path)
    with pytest.raises(CalibrationError, match="has 8,000,128 bytes"):
        read(tmp_path)[0]["x"]


def test_samples_without_a_number_are_refused(tmp_path):
    """Any number of them fits into a small file."""
    np.savez(tmp_path / "x.npz", x=np.zeros((10**12, 0), np.float32))
    spec = InputSpec("x", np.dtype(np.float32), ("N", "T"))
    assert "x.npz holds 1,000,000,000,000 samples without a number" in refusal(tmp_path / "x.npz", (spec,))
    past = InputSpec("past", np.dtype(np.float32), ("N", "P", 2))
    assert len(read({"x": ROWS, "past": np.zeros((5, 0, 2))}, (X, past))) == 5


def test_the_places_of_all_samples_take_no_memory():
    assert spread(10**12, 10**12)[-1] == 10**12 - 1


@pytest.mark.parametrize("name", ["data.pkl", "data.jpg"])
def test_other_files_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    assert "a folder of images" in refusal(tmp_path / name)


@pytest.mark.parametrize("text", ["no/such/folder", "gone.npz", "C:", "a:b:c"])
def test_a_path_that_does_not_exist_is_named(text):
    assert f"calibration data {text!r}: no such file or folder" in refusal(text)


class Reader(CalibrationDataReader):
    def __init__(self):
        self.rows = iter(ROWS)

    def get_next(self):
        row = next(self.rows, None)
        return None if row is None else {"x": row[np.newaxis]}


@pytest.mark.parametrize(
    "make",
    [
        Reader,
        lambda: ({"x": row[np.newaxis]} for row in ROWS),
        lambda: [row[np.newaxis] for row in ROWS],
        lambda: iter([(row[np.newaxis],) for row in ROWS]),
    ],
)
def test_readers_and_iterables(make):
    assert_rows(read(make()))


def test_tuples_follow_the_order_of_the_inputs():
    assert read([(ROWS[:1], 3.0)], (X, STATE))[0]["state"] == 3.0


@pytest.mark.parametrize(("item", "inputs"), [((ROWS[:1], 3.5), (X,)), (ROWS[:1], (X, STATE)), ([], (X,))])
def test_items_with_another_number_of_arrays_are_refused(item, inputs):
    assert "samples[0]: " in refusal([item], inputs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"x": ROWS, "labels": np.arange(5)},
        lambda: {"x": ROWS, "labels": np.arange(7), "labels.lengths": np.array([1, 1, 1, 2, 2])},
        lambda: [{"x": row[np.newaxis], "labels": 3} for row in ROWS],
        lambda: [(row[np.newaxis], 3) for row in ROWS],
        lambda: iter([[row[np.newaxis], np.array([3])] for row in ROWS]),
    ],
)
def test_labels_beside_the_inputs_are_left_out(make):
    assert_rows(read(make()))


def test_an_input_may_be_called_labels():
    spec = InputSpec("labels", np.dtype(np.int64), ("N",))
    assert read({"x": ROWS, "labels": np.arange(5)}, (X, spec))[3]["labels"] == 3


@pytest.mark.parametrize("source", [3, None, b"bytes", object()])
def test_what_is_no_source_is_refused(source):
    assert "cannot read calibration samples from" in refusal(source)


def test_a_model_without_inputs_is_refused():
    assert "no inputs" in refusal(ROWS, ())


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "user_calibration.py").write_text(
        "import numpy as np\n"
        "rows = np.arange(10, dtype=np.float32).reshape(5, 2)\n"
        "def make():\n"
        "    for row in rows:\n"
        "        yield {'x': row[None]}\n"
        "def array():\n"
        "    return rows\n"
        "def listed():\n"
        "    calls.append(1)\n"
        "    return list(rows)\n"
        "calls = []\n"
        "def fails():\n"
        "    raise RuntimeError('no data today')\n"
        "def path():\n"
        "    return 'folder'\n"
    )
    yield "user_calibration"
    sys.modules.pop("user_calibration", None)


def test_a_function_is_imported_from_the_working_folder(module):
    assert_rows(read(f"{module}:make"))
    assert_rows(read(f"{module}:array"))


def test_a_function_is_called_once(module, tmp_path):
    assert len(collect(f"{module}:listed", [X], tmp_path / "spool", 3)) == 3
    assert sys.modules[module].calls == [1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "RuntimeError: no data today"),
        ("missing", "has no attribute 'missing'"),
        ("rows", "not callable"),
        ("path", "returned 'folder', expected samples"),
    ],
)
def test_a_function_that_gives_no_samples_is_refused(module, name, message):
    assert message in refusal(f"{module}:{name}")


def test_a_module_that_does_not_exist_is_refused():
    assert "ModuleNotFoundError" in refusal("no_such_module_here:make")
