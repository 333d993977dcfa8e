import hashlib
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.calibration.images import Preprocessing
from ptqc.calibration.samples import DATA, INDEX, InputSpec, Samples, _spooling, collect
from ptqc.errors import CalibrationError, Interrupted
from ptqc.notes import Level

X = InputSpec("x", np.dtype(np.float32), ("N", 4))
MASK = InputSpec("mask", np.dtype(np.bool_), ("N",))


def feeds(count, rows=1, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {"x": rng.normal(size=(rows, 4)).astype(np.float32), "mask": rng.normal(size=rows) > 0}


def numbers(samples):
    """Place of each sample among all that were collected."""
    return [record.number for record in samples.records]


def assert_same(left, right):
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype
        np.testing.assert_array_equal(left[name], right[name])


def test_a_one_shot_iterator_can_be_read_again_and_again(tmp_path):
    samples = collect(feeds(5), [X, MASK], tmp_path, 10)
    assert len(samples) == 5
    for _ in range(2):
        for got, expected in zip(samples, feeds(5), strict=True):
            assert_same(got, expected)
    assert_same(samples[3], list(feeds(5))[3])
    assert_same(samples[-1], samples[4])
    with pytest.raises(IndexError):
        samples[5]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["float32", "float16", "int64", "uint8", "bool", "bfloat16"]).flatmap(
        lambda name: st.lists(
            hnp.arrays(np.int8, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)).map(
                lambda array: array.astype(np.dtype(name))
            ),
            min_size=1,
            max_size=4,
        )
    )
)
def test_every_dtype_and_shape_survives_the_spool(tmp_path_factory, arrays):
    folder = tmp_path_factory.mktemp("spool")
    ranked = [array for array in arrays if array.ndim == arrays[0].ndim]
    spec = InputSpec("x", arrays[0].dtype, (None,) * arrays[0].ndim)
    collect(({"x": array} for array in ranked), [spec], folder, 10)
    for got, expected in zip(Samples.open(folder), ranked, strict=True):
        assert_same(got, {"x": expected})


def test_strings_survive_the_spool(tmp_path):
    arrays = [np.array([["a", "long one"]]), np.array([["", "é"]]), np.zeros((1, 0), "U3")]
    collect(({"x": array} for array in arrays), [InputSpec("x", np.dtype(np.str_), (1, None))], tmp_path, 10)
    assert [feeds["x"].tolist() for feeds in Samples.open(tmp_path)] == [array.tolist() for array in arrays]


def test_the_limit_ends_an_endless_reader(tmp_path):
    def endless():
        while True:
            yield np.zeros((1, 4), np.float32)

    assert len(collect(endless(), [X], tmp_path, 7)) == 7


def test_the_digest_follows_content_and_order_only(tmp_path):
    items = list(feeds(4))
    one = collect(iter(items), [X, MASK], tmp_path / "a", 10)
    swapped_keys = ({"mask": item["mask"], "x": item["x"]} for item in items)
    assert collect(swapped_keys, [X, MASK], tmp_path / "b", 10).digest == one.digest
    assert collect(items[::-1], [X, MASK], tmp_path / "c", 10).digest != one.digest
    assert collect(items[:3], [X, MASK], tmp_path / "d", 10).digest == one[:3].digest != one.digest


def test_the_digest_tells_dtypes_shapes_and_names_apart(tmp_path):
    zeros = [
        (InputSpec("x", np.dtype(np.float32), (None, None)), np.zeros((2, 3), np.float32)),
        (InputSpec("x", np.dtype(np.float32), (None, None)), np.zeros((3, 2), np.float32)),
        (InputSpec("x", np.dtype(np.int32), (None, None)), np.zeros((2, 3), np.int32)),
        (InputSpec("y", np.dtype(np.float32), (None, None)), np.zeros((2, 3), np.float32)),
    ]
    digests = {
        collect([{spec.name: array}], [spec], tmp_path / str(index), 1).digest
        for index, (spec, array) in enumerate(zeros)
    }
    assert len(digests) == 4


def test_the_digest_is_stable_across_versions(tmp_path):
    samples = collect([np.arange(4, dtype=np.float32)[np.newaxis]], [X], tmp_path, 1)
    one = hashlib.sha256(b'[["x","float32",[1,4]]]' + np.arange(4, dtype="<f4").tobytes()).hexdigest()
    assert samples.digest == hashlib.sha256(one.encode()).hexdigest()


def test_a_copied_spool_opens_with_the_same_digest(tmp_path):
    samples = collect(feeds(3), [X, MASK], tmp_path / "a", 10)
    (tmp_path / "a").rename(tmp_path / "b")
    again = Samples.open(tmp_path / "b")
    assert again.digest == samples.digest
    assert_same(again[2], list(feeds(3))[2])


def test_a_selection_is_a_view(tmp_path):
    samples = collect(feeds(6), [X, MASK], tmp_path, 10)
    view = samples.select([5, 0, 5])
    assert view.directory == samples.directory
    assert len(view) == 3
    for got, index in zip(view, [5, 0, 5], strict=True):
        assert_same(got, samples[index])


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_batches_join_samples_of_equal_rows(tmp_path, size):
    samples = replace(collect(feeds(5, rows=2), [X, MASK], tmp_path, 10), batchable=True)
    batches = list(samples.batches(size))
    assert [len(batch["x"]) for batch in batches] == [2 * min(size, 5 - start) for start in range(0, 5, size)]
    for name in ("x", "mask"):
        joined = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(joined, np.concatenate([sample[name] for sample in samples]))


def test_batches_are_single_samples_unless_batchable(tmp_path):
    samples = collect(feeds(4), [X, MASK], tmp_path, 10)
    assert [len(batch["x"]) for batch in samples.batches(4)] == [1] * 4


def test_batches_join_equal_shapes_wherever_they_are_and_never_scalars(tmp_path):
    spec = InputSpec("x", np.dtype(np.float32), ("N", "T"))
    arrays = [np.full((1, length), index, np.float32) for index, length in enumerate([3, 3, 2, 3, 2, 3, 5])]
    samples = replace(collect(arrays, [spec], tmp_path / "a", 10), batchable=True)
    assert [batch["x"][:, 0].tolist() for batch in samples.batches(3)] == [[0, 1, 3], [2, 4], [5], [6]]
    assert [batch["x"].shape for batch in samples.batches(3)] == [(3, 3), (2, 2), (1, 3), (1, 5)]
    scalar = InputSpec("x", np.dtype(np.float32), ())
    scalars = replace(collect([1.0, 2.0], [scalar], tmp_path / "b", 10), batchable=True)
    assert [batch["x"].shape for batch in scalars.batches(2)] == [(), ()]


def test_sizes_are_counted_in_elements_and_rows(tmp_path):
    spec = InputSpec("x", np.dtype(np.float32), ("N", "T"))
    samples = collect([np.zeros(shape, np.float32) for shape in ((1, 2), (2, 4), (4, 2))], [spec], tmp_path, 10)
    assert samples.elements == 18
    assert samples.rows == 3
    assert replace(samples, batchable=True).rows == 7
    assert [sample["x"].shape for sample in samples.largest] == [(2, 4)]


def test_an_added_batch_axis_is_told_once_for_each_input(tmp_path):
    values = [{"x": sample["x"][0], "mask": sample["mask"]} for sample in feeds(32)]
    samples = collect(values, [X, MASK], tmp_path / "a", 100)
    assert [(note.subject, note.level) for note in samples.notes] == [("x", Level.INFO)]
    assert "no batch axis" in samples.notes[0].message
    assert samples.digest == collect(feeds(32), [X, MASK], tmp_path / "b", 100).digest


def test_one_sample_of_each_shape_from_the_smallest_to_the_largest(tmp_path):
    spec = InputSpec("x", np.dtype(np.float32), ("N", "T"))
    samples = collect([np.zeros((1, n), np.float32) for n in (5, 2, 5, 9, 2, 7)], [spec], tmp_path, 10)
    assert numbers(samples.of_each_shape(9)) == [1, 0, 5, 3]
    assert numbers(samples.of_each_shape(2)) == numbers(samples.few(2)) == [1, 3]
    assert numbers(samples.select([0, 2]).few(9)) == [0, 2]
    assert numbers(Samples.open(tmp_path).select([4, 2])) == [4, 2]


def test_the_main_size_is_that_of_more_than_half(tmp_path):
    spec = InputSpec("x", np.dtype(np.float32), ("N", "T"))
    samples = collect([np.zeros((1, n), np.float32) for n in (5, 2, 5, 9, 5)], [spec], tmp_path, 10)
    assert numbers(samples.of_main_size()) == [0, 2, 4]
    assert numbers(samples[:4].of_main_size()) == [0, 1, 2, 3]
    assert numbers(samples[:0].of_main_size()) == []


def test_a_reader_that_raises_is_named_with_its_sample_and_cause(tmp_path):
    def reader():
        yield from feeds(3)
        raise KeyError("label")

    with pytest.raises(
        CalibrationError, match=r"samples\[3\]: reading the generator raised KeyError: 'label'"
    ) as caught:
        collect(reader(), [X, MASK], tmp_path, 10)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(CalibrationError, match="not a finished calibration spool"):
        Samples.open(tmp_path)


def test_a_bad_sample_leaves_no_finished_spool_not_even_an_older_one(tmp_path):
    collect(feeds(2), [X, MASK], tmp_path, 10)
    with pytest.raises(CalibrationError, match=r"samples\[1\], input 'x'"):
        collect([np.zeros((1, 4), np.float32), np.zeros((1, 5), np.float32)], [X], tmp_path, 10)
    with pytest.raises(CalibrationError, match="not a finished"):
        Samples.open(tmp_path)


def test_few_samples_are_warned_about(tmp_path):
    few = collect(feeds(31), [X, MASK], tmp_path / "a", 100)
    assert [note.level for note in few.notes] == [Level.WARNING]
    assert "only 31 calibration samples" in few.notes[0].message
    assert collect(feeds(32), [X, MASK], tmp_path / "b", 100).notes == ()


@pytest.mark.parametrize(
    ("count", "distinct", "warned"), [(256, 1, 1), (256, 31, 1), (256, 32, 0), (8, 1, 2), (8, 8, 1), (1, 1, 1)]
)
def test_samples_that_hardly_differ_are_warned_about(tmp_path, count, distinct, warned):
    rows = np.arange(count, dtype=np.float32)[:, None] % distinct * np.ones(4, np.float32)
    notes = collect(rows, [X], tmp_path, 256).notes
    said = [note.message for note in notes if note.level == Level.WARNING]
    assert len(said) == warned
    alike = distinct < min(count, 32)
    assert any(text.startswith(f"only {distinct} of the {count} calibration samples differ") for text in said) is alike


@pytest.mark.parametrize(("stated", "warned"), [(None, False), ({}, False), ({"mean": 1.0}, True)])
def test_preprocessing_of_arrays_is_warned_about(tmp_path, stated, warned):
    preprocessing = None if stated is None else Preprocessing(**stated)
    rows = np.arange(400, dtype=np.float32).reshape(100, 4)
    notes = collect(rows, [X], tmp_path, 100, preprocessing).notes
    assert ["taken as they are: the preprocessing is for images" in note.message for note in notes] == [True] * warned


def test_a_subset_is_noted(tmp_path):
    samples = collect(np.arange(400, dtype=np.float32).reshape(100, 4), [X], tmp_path, 40)
    assert [note.message for note in samples.notes] == ["40 of the 100 samples given are used, evenly spread"]


class Dataset:
    """Indexed and not iterated, as those of PyTorch are."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index >= 100:
            raise IndexError(index)
        return np.full((1, 4), index, np.float32), index % 10


@pytest.mark.parametrize("source", [[item for item, _ in map(Dataset().__getitem__, range(100))], Dataset()])
def test_of_a_long_list_evenly_spread_items_are_taken(source, tmp_path):
    samples = collect(source, [X], tmp_path, 4)
    assert [int(feeds["x"][0, 0]) for feeds in samples] == [0, 33, 66, 99]
    assert samples.notes[0].message == "4 of the 100 samples given are used, evenly spread"
    assert samples.names[1] == "samples[33]"
    assert len(collect(source, [X], tmp_path / "all", 100)) == 100


@pytest.mark.parametrize("in_files", [False, True])
def test_of_many_batches_evenly_spread_ones_are_taken(in_files, tmp_path):
    batches = [np.full((2, 1, 2), index, np.float32) for index in range(9)]
    folder = tmp_path / "batches"
    folder.mkdir()
    for index, batch in enumerate(batches):
        np.savez(folder / f"{index}.npz", x=batch)
    source, spec = (folder if in_files else batches), InputSpec("x", np.dtype(np.float32), (1, 2))
    samples = collect(source, [spec], tmp_path / "spool", 6)
    assert [int(feeds["x"][0, 0]) for feeds in samples] == [0, 2, 3, 5, 6, 8]
    assert samples.names[3].endswith(" (5.npz)") is in_files
    assert samples.notes[0].message == "6 samples of 6 of the 9 items given are used, evenly spread"
    assert len(collect(source, [spec], tmp_path / "all", 100)) == 18


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize(
    ("rows", "limit", "taken"),
    [
        ((100,) * 10, 50, (5,) * 10),
        ((1, 90, 90, 90), 31, (1, 10, 10, 10)),
        ((90, 90, 2, 1), 33, (15, 15, 2, 1)),  # what small ones leave goes to the others, whatever the order
        ((200, 20, 20), 256, (200, 20, 20)),
        ((40, 40), 1, (1, 0)),
    ],
)
def test_of_recordings_evenly_spread_rows_are_taken(in_files, rows, limit, taken, tmp_path):
    """Of each as many as of the others, up to its last row."""
    recordings = []
    for place, count in enumerate(rows):
        recording = np.full((count, 4), place, np.float32)
        recording[:, 1] = np.arange(count)
        recordings.append(recording)
    folder = tmp_path / "recordings"
    folder.mkdir()
    for place, recording in enumerate(recordings):
        np.savez(folder / f"{place}.npz", x=recording)
    samples = collect(
        folder if in_files else recordings, [X], tmp_path / "spool", limit, rows=lambda feeds: one_by_one(feeds["x"])
    )
    seen = np.concatenate([feeds["x"] for feeds in samples])
    assert tuple(np.bincount(seen[:, 0].astype(int), minlength=len(rows))) == taken
    for place, count in enumerate(taken):
        of_one = seen[seen[:, 0] == place, 1]
        if count > 1:
            assert (of_one[0], of_one[-1]) == (0, rows[place] - 1)
            assert np.ptp(np.diff(of_one)) <= 1
    said = [note.message for note in samples.notes if "evenly" in note.message]
    assert len(said) == (sum(rows) > limit)


def one_by_one(rows):
    return [{"x": row[np.newaxis]} for row in rows]


def test_single_rows_are_taken_from_other_places_of_each_recording(tmp_path):
    recordings = [np.arange(400, dtype=np.float32).reshape(100, 4) for _ in range(50)]
    samples = collect(recordings, [X], tmp_path, 50, rows=lambda feeds: one_by_one(feeds["x"]))
    rows = np.sort([int(feeds["x"][0, 0]) // 4 for feeds in samples])
    assert len(rows) == 50
    assert np.diff(rows, prepend=0, append=99).max() <= 5


@pytest.mark.parametrize(("count", "is_told"), [(9, False), (10, False), (11, True)])
def test_the_first_samples_of_an_iterator_are_told_where_it_gives_more(count, is_told, tmp_path):
    samples = collect(({"x": np.full((1, 4), i, np.float32)} for i in range(count)), [X], tmp_path, 10)
    said = [note for note in samples.notes if note.message.startswith("the first 10 samples of the generator are used")]
    assert [note.level for note in said] == [Level.WARNING] * is_told


def test_a_source_of_known_length_gives_no_more_than_is_used(tmp_path):
    class Loader:
        def __init__(self, count):
            self.count, self.yielded = count, 0

        def __len__(self):
            return self.count

        def __iter__(self):
            for i in range(self.count):
                self.yielded += 1
                yield {"x": np.full((1, 4), i, np.float32)}

    for count in (10, 11):
        loader = Loader(count)
        samples = collect(loader, [X], tmp_path / str(count), 10)
        assert loader.yielded == 10
        assert any(note.message.startswith("the first 10 samples of") for note in samples.notes) == (count > 10)


def test_stacks_of_batches_are_evenly_spread(tmp_path):
    stacks = np.arange(3 * 4 * 5 * 4, dtype=np.float32).reshape(3, 4, 5, 4)
    samples = collect(list(stacks), [X], tmp_path, 12, rows=lambda feeds: one_by_one(feeds["x"]))
    places = [int(feeds["x"][0, 0]) // 4 for feeds in samples]
    assert [place // 20 for place in places] == [0] * 4 + [1] * 4 + [2] * 4
    assert numbers(samples) == places
    assert [note.message for note in samples.notes if "evenly" in note.message] == [
        "12 of the 60 samples given are used, evenly spread"
    ]


def test_some_are_spread_from_the_first_to_the_last(tmp_path):
    samples = collect(np.arange(400, dtype=np.float32).reshape(100, 4), [X], tmp_path, 100)
    assert numbers(samples.some(4)) == [0, 33, 66, 99]
    assert numbers(samples.some(200)) == list(range(100))


def test_what_is_made_of_samples_keeps_what_was_read(tmp_path):
    samples = collect(np.zeros((2, 4), np.float32), [X], tmp_path / "a", 10)
    drawn = samples.extended(tmp_path / "b", lambda _: {"drawn": np.random.default_rng().random(3)})
    first, second = Samples.open(tmp_path / "b").records
    assert first.sha256 != second.sha256
    assert first.origin == second.origin == samples.records[0].sha256 == drawn.records[0].origin


def test_of_what_is_iterated_in_its_own_way_the_first_are_taken(tmp_path):
    class Shuffled(Dataset):
        def __iter__(self):
            return (self[index] for index in range(99, -1, -1))

    samples = collect(Shuffled(), [X], tmp_path, 3)
    assert [int(feeds["x"][0, 0]) for feeds in samples] == [99, 98, 97]


def test_samples_of_a_subset_are_named_by_their_rows_in_the_data(tmp_path):
    rows = np.arange(400, dtype=np.float32).reshape(100, 4)
    samples = collect(rows, [X], tmp_path, 5)
    in_data = [int(feeds["x"][0, 0]) // 4 for feeds in samples]
    assert samples.names == [f"samples[{row}]" for row in in_data] != [f"samples[{place}]" for place in range(5)]
    assert Samples.open(tmp_path).names == samples.names
    rows[in_data[2], 1] = np.nan
    with pytest.raises(CalibrationError, match=rf"^samples\[{in_data[2]}\], input 'x': "):
        collect(rows, [X], tmp_path, 5)


def test_progress_is_told_with_the_expected_count(tmp_path):
    calls = []
    collect(np.zeros((3, 4), np.float32), [X], tmp_path, 9, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    calls.clear()
    collect(feeds(1), [X, MASK], tmp_path, 9, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, None)]


@pytest.mark.parametrize("source", [[], np.zeros((0, 4), np.float32)])
def test_no_samples_at_all_are_refused(tmp_path, source):
    with pytest.raises(CalibrationError, match="holds no samples"):
        collect(source, [X], tmp_path, 9)


def test_a_limit_below_one_is_refused(tmp_path):
    with pytest.raises(CalibrationError, match="limit of 0"):
        collect(feeds(1), [X, MASK], tmp_path, 0)


def damage_data(folder: Path) -> None:
    data = bytearray((folder / DATA).read_bytes())
    data[9] ^= 1
    (folder / DATA).write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / DATA).write_bytes((folder / DATA).read_bytes()[:-1]),
        lambda folder: (folder / DATA).unlink(),
        lambda folder: (folder / INDEX).write_text((folder / INDEX).read_text()[:-5]),
        lambda folder: (folder / INDEX).write_text("{}"),
        lambda folder: (folder / INDEX).write_text('{"layout": "ptqc-samples-1", "samples": [{"offset": "0"}]}'),
        lambda folder: (folder / INDEX).write_text("[1]"),
        damage_data,
    ],
)
def test_a_damaged_spool_is_refused(tmp_path, damage):
    collect(feeds(3), [X, MASK], tmp_path, 10)
    damage(tmp_path)
    with pytest.raises(CalibrationError, match="collect the samples again"):
        Samples.open(tmp_path)


def test_a_spool_that_cannot_be_written_is_an_interruption(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Interrupted, match="cannot write calibration samples"):
        collect(feeds(1), [X, MASK], tmp_path / "file", 10)


def test_an_os_error_of_the_reader_is_not_taken_for_a_full_disk(tmp_path):
    def reader():
        yield np.zeros((1, 4), np.float32)
        raise OSError("gone")

    with pytest.raises(CalibrationError, match=r"samples\[1\]: .*OSError: gone"):
        collect(reader(), [X], tmp_path, 10)


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path):
    spec = InputSpec("x", np.dtype(np.float32), (1, 100_000))
    tracemalloc.start()
    collect((np.zeros((1, 100_000), np.float32) for _ in range(100)), [spec], tmp_path, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 400_000


def test_a_refused_sample_is_named_by_its_file(tmp_path):
    for name, columns in (("a", 4), ("b", 5)):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((1, columns), np.float32))
    with pytest.raises(CalibrationError, match=r"^samples\[1\] \(b.npz\), input 'x': has shape \(1, 5\)"):
        collect(tmp_path, [X], tmp_path / "spool", 10)


def test_a_spool_remembers_the_files_of_its_samples(tmp_path):
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x=np.full((1, 4), ord(name), np.float32))
    collect(tmp_path, [X], tmp_path / "spool", 10).select([1]).save(tmp_path / "copy")
    assert Samples.open(tmp_path / "spool").names == ["samples[0] (a.npz)", "samples[1] (b.npz)"]
    assert Samples.open(tmp_path / "copy").names == ["samples[1] (b.npz)"]


def test_what_cancels_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="enough"), _spooling(tmp_path / "spool"):
        raise TimeoutError("enough")
