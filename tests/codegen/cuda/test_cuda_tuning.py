"""Layers on tensor cores take the tiles that are the fastest on a GPU, where times are there or can be measured."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from fours import two_of_four
from small import FEEDS, network
from test_cuda_target import needs_nvcc, process
from test_times_table import A100

from ptqc.codegen.cuda import tuner
from ptqc.codegen.cuda.backend import CUDA
from ptqc.codegen.cuda.costs import SAMPLES
from ptqc.codegen.cuda.jobs import CudaChoices
from ptqc.codegen.cuda.measuring import Measuring
from ptqc.codegen.cuda.options import CudaOptions
from ptqc.codegen.cuda.target import TARGET
from ptqc.codegen.cuda.times import KernelTimer
from ptqc.codegen.cuda.times_table import GpuTimes
from ptqc.codegen.cuda.trials import TimingEffort, TrialTimes
from ptqc.codegen.cuda.tuner import Tuner
from ptqc.codegen.cuda.tuning import kernel_key, selected, tried, tunable, tuned
from ptqc.codegen.cuda.variants import Variant
from ptqc.codegen.kernels.backend import LayerSpec
from ptqc.codegen.kernels.epilogue import Requantization
from ptqc.codegen.program.batching import Batching
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Alternatives, Program, ProgramStep, Window
from ptqc.codegen.targets import TargetInput
from ptqc.errors import TargetError, UsageError
from ptqc.runtime import cuda
from ptqc.runtime.cuda import CudaDevice
from ptqc.utils.store import Store

L4 = CudaDevice("L4", (8, 9), "580.65")
B200 = CudaDevice("B200", (10, 0), "580.65")


def step(name: str, outputs: int = 64, *, is_sparse: bool = False) -> ProgramStep:
    """A layer of 64 channels and 3 × 3 pixels."""
    window = Window(64, (10, 10), (3, 3))
    weights = np.random.default_rng(outputs).integers(-127, 128, (outputs, 64, 3, 3)).astype(np.int8)
    weights = two_of_four(weights, 0) if is_sparse else weights
    x, y = Layout((64, 10, 10), "uint8"), Layout((outputs, *window.output), "uint8")
    numbers = Requantization(np.zeros(outputs, np.int32), np.ones(outputs, np.float32), 7)
    kernel = CUDA.layer(LayerSpec(x, y, window, weights, numbers))
    assert kernel is not None
    return ProgramStep(kernel.compile(CUDA.loops), (f"{name}.x",), f"{name}.y", name)


@pytest.fixture(scope="module")
def program() -> Program:
    """A layer, its twin, a layer of another shape, and one that two kinds of tensor cores take."""
    steps = (step("a"), step("b"), step("c", 32), step("d", is_sparse=True))
    return Program(steps, {}, (), ())


def label_of(variant: Variant) -> str:
    return variant.label


def test_variants_of_a_layer_are_all_different(program: Program) -> None:
    for one in program.steps:
        labels = [variant.label for variant in one.kernel.alternatives.cuts]  # type: ignore[union-attr]
        assert len(labels) == len(set(labels)) > 50


def test_equal_layers_share_a_kernel_and_those_with_zeros_have_another_key(program: Program) -> None:
    a, b, c, d = map(kernel_key, program.steps)
    assert a == b
    assert len({a, c, d}) == 3
    assert d.endswith((" or dense_mma or group_mma", " or group_mma or sparse_mma"))
    assert list(tunable(program)) == [a, c, d]


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90a", "sm_100"])
def test_few_variants_are_tried_of_several_sizes_and_of_both_families(gpu: str, program: Program) -> None:
    for one in program.steps:
        result = tried(one, gpu)
        assert one.kernel.cut(result[0]).name == one.kernel.name
        assert len({variant.label for variant in result}) == len(result) == 8
        sizes = [(variant.family, variant.tiles.cut.rows, variant.tiles.cut.columns) for variant in result]
        assert max(map(sizes.count, sizes)) <= 2
        assert {variant.family for variant in result} == {
            variant.family
            for variant in one.kernel.alternatives.cuts  # type: ignore[union-attr]
            if variant.gpu in ("", gpu)
        }
        assert ("group_mma" in {variant.family for variant in result}) == (gpu == "sm_90a")


def test_what_is_predicted_to_be_the_fastest_on_the_chip_is_tried(program: Program) -> None:
    for gpu in ("sm_80", "sm_86", "sm_89", "sm_90a"):
        cuts: Sequence[Variant] = program.steps[0].kernel.alternatives.cuts  # type: ignore[union-attr]
        own = [variant for variant in cuts if variant.gpu in ("", gpu)]
        best = min(own, key=lambda each: np.prod([each.predicted(samples)[gpu] for samples in SAMPLES]))
        assert best.label in map(label_of, tried(program.steps[0], gpu))


class Measured:
    """A timer in which the last variant of each kernel is the fastest. asked: the keys of each library."""

    def __init__(self, device: CudaDevice = A100, *, seconds: float = 60.0, problem: str = "", most: int = 9) -> None:
        self.device, self.effort, self.problem, self.most = device, TimingEffort((1, 64), 3, seconds), problem, most
        self.gpu, self.key, self.asked = "sm_80", {"device": device.to_json()}, list[list[str]]()

    def times(self, _layouts: Any, candidates: Mapping[str, Any], _seconds: float) -> tuple[list[TrialTimes], str]:
        """For each size of batch that `KernelTimer` or `Measuring` asks for."""
        self.asked.append(list(candidates))
        result = []
        for key, (_, variants) in list(candidates.items())[: self.most]:
            shares = dict(zip(variants, np.linspace(1, 0.5, len(variants)).tolist(), strict=True))
            sizes = 1 if len(variants) == 1 else 2
            times = {label: (10 * share, 100 * share)[:sizes] for label, share in shares.items()}
            result.append(TrialTimes(key, times, shares, {}))
        return result, self.problem


def measure(program: Program, timer: Any, folder: Path, done: Callable[[str], object] = str) -> GpuTimes:
    return Measuring(timer, Store(folder), done)(program)


@pytest.fixture(scope="module")
def few(program: Program) -> Program:
    """Three steps of two kernels in two variants each."""
    steps = []
    for one in program.steps[:3]:
        ways = one.kernel.alternatives
        assert ways is not None
        steps.append(replace(one, kernel=replace(one.kernel, alternatives=Alternatives(ways.cuts[:2], ways.write))))
    return replace(program, steps=tuple(steps))


@pytest.fixture(scope="module")
def times(few: Program, tmp_path_factory: pytest.TempPathFactory) -> GpuTimes:
    return measure(few, Measured(), tmp_path_factory.mktemp("store"))


def test_the_fastest_variants_are_taken(few: Program, times: GpuTimes) -> None:
    result, again = tuned(few, times), tuned(few, GpuTimes.from_json(times.to_json()))
    for before, after, same in zip(few.steps, result.steps, again.steps, strict=True):
        last = before.kernel.cut(tried(before, "sm_80")[-1])
        assert after.kernel.name == same.kernel.name == last.name != before.kernel.name
    assert times.report["tuning"]["of_first"] == [0.5] * 2
    low, middle, high = times.report["tuning"]["predicted_of_measured"]
    assert 0 < low <= middle <= high


def test_what_was_measured_once_is_not_measured_again(few: Program, tmp_path: Path) -> None:
    first, second = Measured(), Measured()
    result = measure(few, first, tmp_path)
    assert first.asked == [list(tunable(few))]
    assert measure(few, second, tmp_path) == result
    assert second.asked == []
    for other in (L4, replace(A100, driver="590.1"), replace(A100, is_emulator=True)):
        third = Measured(other)
        measure(few, third, tmp_path)
        assert third.asked == first.asked


def test_kernels_that_time_does_not_allow_for_stay_as_predicted(few: Program, tmp_path: Path) -> None:
    late = measure(few, Measured(seconds=0.0), tmp_path)
    assert (late.kernels, late.missing) == ({}, "2 kernels left: 0 s were over")
    assert tuned(few, late) == few


def test_a_library_that_does_not_run_is_told_and_no_further_one_built(
    few: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptqc.codegen.cuda.measuring.TOGETHER", 1)
    done: list[str] = []
    some, none = Measured(problem="the GPU is busy"), Measured(problem="the GPU is busy", most=0)
    assert measure(few, none, tmp_path).missing == "2 kernels left: the GPU is busy"
    assert len(none.asked) == 1
    assert measure(few, some, tmp_path, done.append).missing == ""
    assert done == ["timed 1 of 2 kernels", "timed 2 of 2 kernels"]


def test_a_table_of_other_kernels_is_refused(few: Program, times: GpuTimes) -> None:
    assert selected(few, times) == times
    other = Program((step("e", 96),), {}, (), ())
    with pytest.raises(UsageError, match=r"none of this network's 1 kernels with variants: .*--tune quick"):
        selected(other, times)
    both = selected(replace(few, steps=(*few.steps, *other.steps)), times)
    assert both.missing == "the table has no times of 1 kernels"


def test_a_variant_that_there_is_none_of_is_refused(few: Program, times: GpuTimes) -> None:
    (key, one), *_ = times.kernels.items()
    strange = replace(one.times, of_first={**one.times.of_first, "dense_mma of 9 bits": 0.1})
    with pytest.raises(UsageError, match="choose 'dense_mma of 9 bits'; known: dense_mma of 8 bits, "):
        tuned(few, replace(times, kernels={key: replace(one, times=strange)}))


def test_kernels_of_a_budget_are_timed_once(few: Program, tmp_path: Path) -> None:
    first, again = Measured(), Measured()
    result = KernelTimer(first, Store(tmp_path))(few)  # type: ignore[arg-type]
    assert result == [10.0] * 3
    assert first.asked == [list(dict.fromkeys(one.kernel.name for one in few.steps))]
    assert KernelTimer(again, Store(tmp_path))(few) == result  # type: ignore[arg-type]
    assert again.asked == []


def test_a_kernel_of_a_budget_that_is_not_timed_ends_it(few: Program, tmp_path: Path) -> None:
    busy: Any = Measured(problem="the GPU is busy", most=1)
    with pytest.raises(TargetError, match=r"1 kernels could not be timed on A100, dense_mma_.*: the GPU is busy; with"):
        KernelTimer(busy, Store(tmp_path))(few)
    rest: Any = Measured()
    assert KernelTimer(rest, Store(tmp_path))(few) == [10.0] * 3
    assert [len(names) for names in rest.asked] == [1]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[CudaDevice], None]:
    """Lets a machine have a GPU."""
    return lambda device: monkeypatch.setattr(cuda, "find", lambda: device)


def test_without_a_gpu_nothing_is_asked_for_and_no_process_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "NODES", (Path("/dev/of-nobody"),))
    monkeypatch.setattr(subprocess, "run", lambda *_given, **_more: pytest.fail("a process was started"))
    assert Tuner.of(CudaOptions()) == Tuner()
    with pytest.raises(TargetError, match=r"this machine's GPU, but this machine has no GPU of NVIDIA.*--tune off"):
        TARGET.check_options(CudaOptions(tune="quick"))


def loaded() -> set[str]:
    """Drivers in this process."""
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcuda" in line}


@pytest.mark.skipif(any(node.exists() for node in cuda.NODES), reason="this machine has a GPU")
@pytest.mark.skipif(sys.platform != "linux", reason="asks the system what is loaded")
def test_a_driver_that_is_absent_is_asked_in_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda, "NODES", (tmp_path,))
    before = loaded()
    with pytest.raises(TargetError, match=r"libcuda\.so\.1 does not load|NVIDIA's driver"):
        cuda.find()
    assert loaded() == before


def test_kernels_are_measured_where_the_library_is_for_this_gpu_alone(gpu: Callable[[CudaDevice], None]) -> None:
    gpu(A100)
    assert Tuner.of(CudaOptions("sm_80")) == Tuner(A100)
    assert Tuner.of(CudaOptions("sm_80", "off")) == Tuner()
    several = Tuner.of(CudaOptions("sm_80,sm_90a"))
    assert several.device is None
    assert several.reason.startswith(
        "A100 is sm_80, and the library is for sm_80, sm_90a, which all run the same tiles"
    )
    assert Tuner.of(CudaOptions("sm_80,sm_90a", "quick")) == Tuner(A100, is_asked=True)
    gpu(B200)
    assert Tuner.of(CudaOptions("sm_90a")).device is None
    assert Tuner.of(CudaOptions(tune="quick")) == Tuner(B200, is_asked=True)


def test_budgets_are_measured_where_the_library_is_for_this_gpu_alone(gpu: Callable[[CudaDevice], None]) -> None:
    gpu(A100)
    measured = TARGET.timer(CudaOptions("sm_80"))  # type: ignore[attr-defined]
    assert (measured.is_measured, measured.runtime) == (True, "the CUDA library on A100 (sm_80, driver 580.65)")
    for options in (CudaOptions(), CudaOptions("sm_80", "off"), CudaOptions("sm_80,sm_86", "quick")):
        assert not TARGET.timer(options).is_measured  # type: ignore[attr-defined]


def test_what_tune_is_not_is_told_with_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tune is 'fast'; known: auto, off, quick, or a folder or file"):
        TARGET.check_options(CudaOptions(tune="fast"))
    with pytest.raises(UsageError, match=r"cuda.tuning\.json has no times of kernels"):
        TARGET.check_options(CudaOptions(tune=tmp_path))
    with pytest.raises(UsageError, match="tune is 3; give auto, off, quick"):
        CudaOptions(tune=3)  # type: ignore[arg-type]


def test_a_failure_ends_a_compile_only_where_times_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_given: Any) -> None:
        raise TargetError("the GPU fell off the bus")

    monkeypatch.setattr(tuner, "_measured", failing)
    choices, graph = CudaChoices(Batching(None), ("sm_80",)), SimpleNamespace()
    result = Tuner(A100).tuned(graph, [], choices)  # type: ignore[arg-type]
    assert (result.times, result.untuned) == (None, "the GPU fell off the bus")
    with pytest.raises(TargetError, match="fell off the bus"):
        Tuner(A100, is_asked=True).tuned(graph, [], choices)  # type: ignore[arg-type]


@needs_nvcc
@pytest.mark.slow
def test_kernels_of_a_budget_are_timed_by_another_process(tmp_path: Path) -> None:
    done = process("tuned_kernels", str(tmp_path), "budget")
    assert done.problem is None, done.errors
    (microseconds,) = json.loads(done.said)
    assert microseconds > 0


@pytest.mark.slow
@needs_nvcc
def test_variants_are_built_run_and_timed_by_another_process(tmp_path: Path) -> None:
    """On the emulator, which this test names as the device: a compile never does."""
    done = process("tuned_kernels", str(tmp_path))
    assert done.problem is None, done.errors
    result = json.loads(done.said)
    (kernel,) = result["kernels"].values()
    assert len(kernel["times"]["microseconds"]) == 2
    assert all(each > 0 for (each,) in kernel["times"]["microseconds"].values())
    assert kernel["times"]["dropped"] == {}
    assert result["missing"] == ""


@needs_nvcc
@pytest.mark.slow
def test_a_compile_takes_what_it_measured_and_another_one_the_same_from_its_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The emulator is the device, because this test says so."""
    made, file = network()
    emulator = CudaDevice("no GPU: the emulator of ptqc", (8, 0), "none", is_emulator=True)
    first, second, store = tmp_path / "first", tmp_path / "second", tmp_path / "store"
    first.mkdir()
    second.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(cuda, "find", lambda: emulator)
        patched.setattr(tuner, "EFFORT", TimingEffort((1,), 2, 1200.0))
        source = TargetInput(made.lowered, file, FEEDS, FEEDS, made.model, {})
        measured = TARGET.build(source, CudaOptions("sm_80"), store, first)
    repeated = TARGET.build(source, CudaOptions("sm_80", first / "tuning.json"), store, second)
    assert measured.document["tuning"]["kernels"] == 3
    assert measured.document["verified"].startswith("0 of ")
    assert {**repeated.document, "verification": {}} == {**measured.document, "verification": {}}
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in measured.files)
