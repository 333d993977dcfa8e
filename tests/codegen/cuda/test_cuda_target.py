"""A quantized network becomes a CUDA library without a GPU, and is compared with the file in the emulator."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from faults import FAULTS
from graphs import noise, parse
from small import FEEDS, network

from ptqc.codegen.cuda import target
from ptqc.codegen.cuda.emulator import building
from ptqc.codegen.cuda.options import ALL, CudaOptions
from ptqc.codegen.cuda.toolkit import Toolkit, architecture_for, architectures
from ptqc.codegen.targets import TargetInput
from ptqc.errors import NoKernel, TargetError, UsageError
from ptqc.utils import sandbox

ABSENT = building.refusal() or ("" if Toolkit.find() else "nvcc is not installed: pip install 'ptqc[cuda]'")
needs_nvcc = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
# A barrier and stores that are missing, and copies that come too late, show in the quick tests; all in the slow ones.
FEW = ("all barriers left out", "copies waited for too late", "every second store left out")

# 300 random networks in libraries of 25.
KINDS, RANDOM = ("codes", "float", "layers", "more", "stages"), tuple(f"random{first}" for first in range(0, 300, 25))


def process(script: str, *arguments: str) -> sandbox.Ended:
    """A script beside this file, in a process of its own."""
    return sandbox.run(script, arguments, 1800.0)


@needs_nvcc
def test_a_network_becomes_a_verified_library(tmp_path: Path) -> None:
    made, file = network()
    options = CudaOptions("sm_90a,sm_80")
    built = target.TARGET.build(
        TargetInput(made.lowered, file, FEEDS, FEEDS, made.model, {}), options, tmp_path / "store", tmp_path
    )
    result = built.document
    assert result["verification"]["end_to_end_different"] == {}
    assert result["verification"]["integers_compared"] > 1000
    assert (result["steps"]["dense_mma"], result["steps"]["depthwise_dp4a"]) == (3, 1)
    assert result["verified"].startswith("0 of ")
    assert result["verified"].endswith("in the emulator of PTX; not run on a GPU")
    assert list(result["gpus"]) == ["sm_80", "sm_90a"]
    assert all(code["registers"] > 0 and code["spilled_bytes"] == 0 for code in result["gpus"].values())
    assert all(code["tensor_core_instructions"] > 0 for code in result["gpus"].values())
    kernels = json.loads(built.files["kernels.json"].read_text())
    products = {call["kernel"] for call in kernels["libraries"]["cuda"]["calls"] if call["family"] == "dense_mma"}
    predicted = kernels["predicted_microseconds_of_a_sample"]
    assert predicted.keys() == {call["kernel"] for call in kernels["libraries"]["cuda"]["calls"]}
    assert all(microseconds > 3 for chips in predicted.values() for microseconds in chips.values())
    assert all(kernels["machine_code"][f"{name}_kernel"]["sm_80"]["shared_bytes"] > 1000 for name in products)
    assert json.loads(built.files["interface.json"].read_text())["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [None, 3, 8, 7]}
    ]
    # Weights are unpacked on the GPU, whose memory the host cannot read.
    assert {"part_uint8_kernel", "part_int32_kernel"} <= kernels["machine_code"].keys()


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("how", ["whole", "cropped"])
def test_a_fault_in_the_kernels_is_found(how: str, tmp_path: Path) -> None:
    result = planted(how, 1, tmp_path, "none", *FEW)
    assert result == {"none": [NOTHING]}


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("how", ["whole", "cropped"])
def test_at_most_two_of_many_faults_stay_unnoticed(how: str, tmp_path: Path) -> None:
    result = planted(how, 3, tmp_path)
    assert len(FAULTS) >= 40
    assert result.pop("none") == [NOTHING]
    assert len(result) <= 2, result


NOTHING = "changes nothing"


def planted(how: str, orders: int, folder: Path, *faults: str) -> dict[str, list[str]]:
    """What is said of faults that do not stop the verification with threads in every order."""
    done = process("faulty_kernels", how, str(orders), str(folder), *faults)
    assert done.problem is None, done.errors
    result = json.loads(done.said)
    stops = re.compile("the native library differs from the ONNX file at |.* of the emulator of ptqc: |crashed")
    return {name: messages for name, messages in result.items() if not all(map(stops.match, messages))}


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["few", *KINDS, *RANDOM])
def test_networks_of_many_operators(kind: str, tmp_path: Path) -> None:
    done = process("emulated_networks", kind, str(tmp_path))
    assert done.problem is None, done.errors
    result = json.loads(done.said)
    assert result["wrong"] == {}
    assert result["integers"] + result["reals"] > 1000


def test_a_node_without_a_kernel_is_named_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptqc.codegen.kernels.checks._known", lambda _target: {"Conv", "Relu"})
    graph = "g (float[N, 3, 8, 8] x) => (float[N, 4, 8, 8] y) { c = Conv(x, w) y = Hardmax(c) }"
    with pytest.raises(NoKernel, match="the cuda target has no kernel for Hardmax y"):
        target.TARGET.check_kernels(parse(graph, w=noise(4, 3, 1, 1)))


def test_samples_of_several_sizes_are_refused() -> None:
    with pytest.raises(TargetError, match="the cuda target is built for one size of samples, and these have 2"):
        target.TARGET.check_sizes(
            {((3, 8, 8),), ((3, 9, 9),)}, parse("g (float[N, 3, H, W] x) => (float[N, 3, H, W] y) { y = Relu(x) }")
        )


def test_a_compiler_that_is_absent_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toolkit, "find", classmethod(lambda _cls: None))
    with pytest.raises(TargetError, match=r"needs NVIDIA's compiler nvcc 13, .*pip install 'ptqc\[cuda\]'"):
        target.TARGET.check_present()


def test_an_older_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(Toolkit, "find", classmethod(lambda _cls: Toolkit(tmp_path)))
    with pytest.raises(TargetError, match=r"needs nvcc 13, and .* has 12\.8\.93"):
        target.TARGET.check_present()


def test_chips_are_taken_in_ascending_order_each_once() -> None:
    assert CudaOptions().gpus == tuple(ALL.split(","))
    assert CudaOptions("sm_89,sm_80,sm_89").gpus == ("sm_80", "sm_89")


@pytest.mark.parametrize("gpu", ["sm_70", "", "sm_80,", "SM_80"])
def test_an_unknown_chip_is_refused(gpu: str) -> None:
    with pytest.raises(UsageError, match="gpu"):
        CudaOptions(gpu)


@needs_nvcc
def test_machine_code_lies_beside_the_ptx_that_it_was_made_of(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] = x[threadIdx.x] * x[0] + x[1]; }'
    image = Toolkit.require().compile(source, ["sm_80", "sm_86"], tmp_path, "twice")
    assert "fma" not in image.ptx
    assert "mul.rn.f32" in image.ptx
    assert {gpu: list(codes) for gpu, codes in image.codes.items()} == {"sm_80": ["twice"], "sm_86": ["twice"]}
    size = int(np.frombuffer(image.path.read_bytes()[8:16], np.uint64)[0])
    assert image.path.stat().st_size == size + 16  # as the stand-in driver reads it


def test_only_source_that_asks_for_a_newer_architecture_is_compiled_for_it() -> None:
    """TVM's own head asks for 5.3 and 6.1, where bytes and float16 are."""
    head = "#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 530)\n#endif\n#if (__CUDA_ARCH__ >= 610)\n#endif\n"
    gpus = ALL.split(",")
    fp8, groups = "#if __CUDA_ARCH__ >= 890\n#endif\n", "#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n#endif\n"
    assert architectures(head, gpus) == ("80",)
    assert architectures(head + fp8, gpus) == ("80", "89")
    assert architectures(head + groups, gpus) == ("80", "90a")
    assert architectures(head + groups + fp8, gpus) == ("80", "89", "90a")
    assert architectures(head + groups, ["sm_80", "sm_89"]) == ("80",)
    assert [architecture_for(gpu, ("80", "89")) for gpu in gpus] == ["80", "80", "89", "89"]
    assert [architecture_for(gpu, ("80", "89", "90a")) for gpu in gpus] == ["80", "80", "89", "90a"]
    assert [architecture_for("sm_90a", made) for made in (("80",), ("80", "90a"))] == ["80", "90a"]


@needs_nvcc
def test_the_assembler_contracts_no_products_and_sums(tmp_path: Path) -> None:
    """What says nothing of its rounding becomes the same machine code as what does."""
    text = """extern "C" __global__ void k(float* x) {{
        asm("{{.reg .f32 t; mul{0}.f32 t, %1, %2; add{0}.f32 %0, t, %3;}}"
            : "=f"(x[0]) : "f"(x[1]), "f"(x[2]), "f"(x[3]));
    }}"""
    result = []
    for name, rounding in (("free", ""), ("fixed", ".rn")):
        (tmp_path / name).mkdir()
        Toolkit.require().compile(text.format(rounding), ["sm_80"], tmp_path / name, "k")
        result.append((tmp_path / name / "k.sm_80.cubin").read_bytes())
    assert result[0] == result[1]


@needs_nvcc
def test_what_nvcc_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"(?s)nvcc failed: .*leave the cuda target out"):
        Toolkit.require().compile("no C++", ["sm_80"], tmp_path, "wrong")
