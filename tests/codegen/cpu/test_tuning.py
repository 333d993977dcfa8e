"""All cuts of a kernel give the same bits; the fastest one is kept, found again, and may be given."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import present, run
from compiling import compiled, proto, samples, weight
from networks import FEEDS, residual
from test_dense import Geometry, integer_case, real_case

from ptqc.artifact.build_target import check_target
from ptqc.cli.main import main
from ptqc.codegen.cpu import isa, tuning, worker
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.cpu.options import CpuOptions
from ptqc.codegen.cpu.table import DELIVERED, Request, TunedKernel
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.kernels.tiling import Cut
from ptqc.codegen.kernels.writing import PROCESSOR
from ptqc.codegen.program.batching import Batching
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Alternatives, Program, ProgramStep, Window
from ptqc.codegen.targets import choose
from ptqc.errors import TargetError, UsageError
from ptqc.utils.store import Store

LAYOUTS = {"x": Layout((8, 1, 200), "uint8"), "y": Layout((64, 1, 200), "uint8")}


@pytest.mark.slow
@pytest.mark.parametrize("chosen", present(), ids=lambda chosen: chosen.name)
def test_all_cuts_of_a_kernel_give_the_same_bits(chosen: Isa, tmp_path: Path) -> None:
    geometries = [Geometry(Window(5, (4, 11), (2, 3)), 70), Geometry(Window(24, (10, 21)), 96, groups=2)]
    firsts = [made(g, chosen, 0)[0] for g in geometries for made in (integer_case, real_case)]
    for number, first in enumerate(firsts):
        choices = first.kernel.alternatives
        assert choices is not None
        assert len(set(choices.cuts)) == len(choices.cuts) > 2
        cases = [replace(first, kernel=choices.write(cut)) for cut in choices.cuts]
        names = [case.kernel.compile(PROCESSOR).name for case in cases]
        assert names[0] == first.kernel.compile(PROCESSOR).name
        assert len(set(names)) == len(names)
        expected, *others = run(cases, chosen, _folder(tmp_path / str(number)))
        for cut, result in zip(choices.cuts[1:], others, strict=True):
            np.testing.assert_array_equal(result, expected, str(cut))


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


CUTS = [Cut(1, 1, 1), Cut(2, 1, 1), Cut(4, 1, 1)]


def test_the_fastest_cut_is_taken_where_it_gains_more_than_chance() -> None:
    slow, fast, same = [2.0, 2.0, 9.0], [1.0, 1.0, 4.0], [1.99, 2.01, 8.9]
    assert tuning._best(CUTS, [slow, same, fast]) == TunedKernel(CUTS[2], 0.5)
    assert tuning._best(CUTS[:2], [slow, same]) == TunedKernel(CUTS[0], 1.0)


def test_a_moment_in_which_everything_is_slow_changes_nothing() -> None:
    """Medians of each cut's own times would prefer the first."""
    first, other = [1.0, 10.0, 10.0], [9.0, 9.0, 0.9]
    assert tuning._best(CUTS[:2], [first, other]) == TunedKernel(CUTS[1], 0.9)


@pytest.fixture
def program() -> Program:
    """One layer of codes."""
    case, _ = integer_case(Geometry(Window(8, (1, 200)), 64), isa.AVX2, 0)
    return Program((ProgramStep(case.kernel.compile(PROCESSOR), ("x",), "y", "y"),), LAYOUTS, ("x",), ("y",))


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes the third cut of every kernel the fastest; counts the runs."""
    runs: list[int] = []

    def timed(run: Callable[[], object]) -> float:
        run()
        runs.append(1)
        return 1.0 if (len(runs) - 1) % 4 == 2 else 3.0

    monkeypatch.setattr(tuning, "seconds_of", timed)
    monkeypatch.setattr(tuning, "TRIED", {"quick": 4})
    return runs


def test_what_was_measured_is_kept(program: Program, timer: list[int], tmp_path: Path) -> None:
    store, choices = Store(tmp_path / "store"), program.steps[0].kernel.alternatives
    assert isinstance(choices, Alternatives)
    table = tuning.measure(program, isa.AVX2, "quick", store)
    assert table == {program.steps[0].kernel.name: TunedKernel(choices.cuts[2], 1 / 3)}
    assert len(timer) == 4 * (tuning.WARM_UP + tuning.ROUNDS)
    assert tuning.measure(program, isa.AVX2, "quick", store) == table
    assert len(timer) == 4 * (tuning.WARM_UP + tuning.ROUNDS)
    tuned = tuning.tuned(program, table)
    assert tuned.steps[0].kernel.name == choices.write(choices.cuts[2]).name != program.steps[0].kernel.name


def test_what_takes_long_is_timed_less_often(
    program: Program, timer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "PATIENCE", 0.0)
    (result,) = tuning.measure(program, isa.AVX2, "quick", None).values()
    assert result.of_first == 1 / 3
    assert len(timer) == 4 * (tuning.WARM_UP + tuning.FEWEST)


def test_kernels_are_timed_on_what_decides_which_way_they_go(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants in the order of the file are the layer's own, the others and the inputs random."""
    values: list[Any] = []

    def kept(_kernel: object, arguments: list[Any]) -> Callable[[], object]:
        values.append([argument.numpy() for argument in arguments])
        return lambda: None

    monkeypatch.setattr(tuning, "_call", kept)
    tuning.measure(program, isa.AVX2, "quick", None)
    _, _, *constants, _ = values[0]
    wanted = program.steps[0].kernel.constants[1:]
    assert all(np.array_equal(result, np.asarray(constant)) for result, constant in zip(constants, wanted, strict=True))


def test_other_cuts_are_measured_again(
    program: Program, timer: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    tuning.measure(program, isa.AVX2, "quick", store)
    before = len(timer)
    monkeypatch.setattr(tuning, "TRIED", {"quick": 3})
    tuning.measure(program, isa.AVX2, "quick", store)
    assert len(timer) > before


def test_another_processor_measures_again(
    program: Program, timer: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    tuning.measure(program, isa.AVX2, "quick", store)
    monkeypatch.setattr(tuning, "processor_name", lambda: "another")
    tuning.measure(program, isa.AVX2, "quick", store)
    assert len(timer) == 2 * 4 * (tuning.WARM_UP + tuning.ROUNDS)


def test_kernels_that_a_table_does_not_name_stay(program: Program) -> None:
    assert tuning.tuned(program, {"dense_of_another_network": TunedKernel(CUTS[0], 0.5)}) == program


def test_a_table_with_an_unknown_cut_is_refused(program: Program) -> None:
    name = program.steps[0].kernel.name
    with pytest.raises(UsageError, match=rf"the tiling \(99, 1, 1\) for the kernel {name}, which .*--tune quick"):
        tuning.tuned(program, {name: TunedKernel(Cut(99, 1, 1), 0.5)})


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    made, file = residual()
    write_job(folder, made.lowered, file, FEEDS, Choices(Batching(2), "avx2", None, Request("quick")))
    return folder


@pytest.mark.slow
def test_a_table_gives_the_library_that_was_measured(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "MARGIN", -1.0)  # whichever is the fastest
    measured = shutil.copytree(job, tmp_path / "measured")
    report = worker.build(measured)
    tables = json.loads((measured / "tuning.json").read_text())
    assert list(tables) == ["avx2"]
    assert all(name.startswith("dense") for name in tables["avx2"])
    monkeypatch.setattr(tuning, "_fastest", None)
    value = shutil.copytree(job, tmp_path / "given")
    document = json.loads((value / "job.json").read_text()) | {"tuning": {"level": None, "tables": tables}}
    (value / "job.json").write_text(json.dumps(document))
    assert worker.build(value) == report
    for name in ("avx2.so", "weights.bin", "tuning.json"):
        assert (measured / name).read_bytes() == (value / name).read_bytes(), name


@pytest.mark.slow
def test_codes_lie_in_the_file_as_without_tuning(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(job, tmp_path / "job")
    document = json.loads((folder / "job.json").read_text()) | {"tuning": Request().to_json()}
    (folder / "job.json").write_text(json.dumps(document))
    worker.build(folder)
    assert not (folder / "tuning.json").exists()
    other = shutil.copytree(job, tmp_path / "other")
    monkeypatch.setattr(tuning, "_best", lambda cuts, _times: TunedKernel(cuts[-1], 0.5))
    worker.build(other)
    assert (other / "weights.bin").read_bytes() == (folder / "weights.bin").read_bytes()
    assert (other / "avx2.so").read_bytes() != (folder / "avx2.so").read_bytes()


@pytest.fixture
def artifact(tmp_path: Path) -> Callable[[str], str]:
    """Writes the record of an artifact; gives its folder."""
    (tmp_path / DELIVERED).mkdir()

    def write(text: str) -> str:
        (tmp_path / DELIVERED / "tuning.json").write_text(text)
        return str(tmp_path)

    return write


def test_what_was_recorded_is_read(artifact: Callable[[str], str]) -> None:
    request = Request.of(artifact(entry()))
    assert request == Request(None, {"avx2": {"dense_1": TunedKernel(Cut(4, 2, 7), 0.9)}})
    assert Request.from_json(request.to_json()) == request


def entry(cut: str = '{"pixels": 4, "vectors": 2, "stay": 7}', of_first: str = "0.9") -> str:
    return f'{{"avx2": {{"dense_1": {{"cut": {cut}, "of_first": {of_first}}}}}}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"avx2": {"dense_1": {}}}',
        entry("3"),
        entry('{"pixels": Infinity, "vectors": 2, "stay": 7}'),
        entry('{"pixels": true, "vectors": 2, "stay": 7}'),
        entry('{"pixels": 4.5, "vectors": 2, "stay": 7}'),
        entry('{"pixels": 4, "vectors": 2, "stay": 0}'),
        entry('{"pixels": 4, "vectors": 2, "stay": 7, "more": 1}'),
        entry(of_first="NaN"),
        entry(of_first="-3"),
        entry(of_first="1e999"),
    ],
)
def test_a_damaged_record_is_refused(artifact: Callable[[str], str], text: str) -> None:
    with pytest.raises(UsageError, match=r"tuning\.json is not a tuning of kernels"):
        Request.of(artifact(text))


def test_a_record_of_other_kernels_is_refused(job: Path, tmp_path: Path) -> None:
    folder, tables = shutil.copytree(job, tmp_path / "job"), json.loads(entry())
    document = json.loads((folder / "job.json").read_text()) | {"tuning": {"level": None, "tables": tables}}
    (folder / "job.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"the tuning has none of this network's \d+ kernels for avx2"):
        worker.build(folder)


@pytest.mark.slow
def test_what_a_compile_recorded_another_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "ROUNDS", 1)
    target_of = {"target": "cpu", "cpu": "portable"}
    for name in ("first", "second"):
        _folder(tmp_path / name)
    graph = "g (float[N,3,8,8] x) => (float[N,32,8,8] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"
    model, data = proto(graph, w=weight(32, 3, 3, 3)), samples(3, 8, 8)
    first = compiled(model, data, tmp_path / "first", bits=(4,), tune="quick", **target_of)
    second = compiled(model, data, tmp_path / "second", bits=(4,), tune=first.folder, **target_of)
    libraries = first.manifest["targets"]["cpu"]["libraries"]
    assert libraries == second.manifest["targets"]["cpu"]["libraries"]
    assert libraries[0]["tuned"]["kernels"] > 0
    names = [f"{DELIVERED}/{name}" for name in (f"{libraries[0]['isa']}.so", "weights.bin", "tuning.json")]
    for name in names:
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes(), name
    report = (first.folder / "report.html").read_text()
    assert f"of {libraries[0]['tuned']['kernels']} kernels have loops cut otherwise than usual" in report


def test_an_unknown_way_to_tune_is_refused_before_any_work(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["compile", "m.onnx", "-o", str(tmp_path / "out"), "--target", "cpu", "--tune", "fast"]
    assert main([*arguments, "--calibration", "synthetic"]) == 2
    text = capsys.readouterr().err
    assert "tune is 'fast'; known: off, quick, full, or a folder" in text


def test_without_a_target_there_is_nothing_to_tune() -> None:
    with pytest.raises(UsageError, match="tune is an option of the target cpu or cuda; give target cpu or cuda too"):
        choose(None, {"tune": "quick"})


@pytest.mark.parametrize("tune", ["", None, 3, True])
def test_what_names_no_way_to_tune_is_refused(tune: Any) -> None:
    with pytest.raises(UsageError, match="give off, quick, full, or a folder"):
        CpuOptions(tune=tune)


def test_kernels_of_another_machine_are_not_timed() -> None:
    foreign = "arm-neon" if isa.named("portable").machine != "aarch64" else "avx2"
    with pytest.raises(TargetError, match="tuning runs the kernels on this machine, but the native library is for"):
        check_target(choose("cpu", {"cpu": foreign, "tune": "quick"}))
    check_target(choose("cpu", {"cpu": foreign}))
