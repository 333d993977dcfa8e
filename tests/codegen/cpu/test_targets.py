"""The native library of a compile: delivered, equal to the ONNX file, refused with a reason."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, residual, samples, weight

import ptqc
from ptqc.artifact.build_target import check_target
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.codegen.cpu import isa, target
from ptqc.codegen.cpu.options import CpuOptions
from ptqc.codegen.targets import choose
from ptqc.errors import IntegrityError, TargetError, UsageError

pytest.importorskip("tvm_ffi", reason="native libraries need apache-tvm: pip install 'ptqc[tvm]'")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """With libraries for the host and for every machine of its kind."""
    folder = tmp_path_factory.mktemp("native")
    return compiled(residual(), samples(3, 8, 8), folder, "25%", target="cpu", cpu="portable,host")


def test_the_library_is_part_of_the_artifact(artifact: Artifact) -> None:
    built = isa.several("host,portable")
    files = {f"cpu/{name}" for name in ("weights.bin", "interface.json", "kernels.json")}
    assert files | {f"cpu/{one.name}.so" for one in built} <= set(artifact.manifest["files"])
    libraries = artifact.manifest["targets"]["cpu"]["libraries"]
    assert [library["isa"] for library in libraries] == [one.name for one in built]
    for library, one in zip(libraries, built, strict=True):
        assert library["cpu_features"] == list(one.features)
        assert library["verification"]["integers_compared"] > 1000
        assert library["verification"]["end_to_end_different"] == {}
    assert "none differs end to end" in " ".join(artifact.summary().split())


def test_the_library_gives_what_the_file_gives_at_any_batch_size(artifact: Artifact) -> None:
    opened = ptqc.load(artifact.folder)
    session = opened.session()
    name = session.get_inputs()[0].name
    for batch in (1, 3, 2):
        x = np.random.default_rng(batch).normal(size=(batch, 3, 8, 8)).astype(np.float32)
        wanted = session.run(None, {name: x})[0]
        (result,) = opened.run({name: x}).values()
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_the_best_library_is_run_unless_another_is_asked_for(artifact: Artifact) -> None:
    best, portable = artifact.native(), artifact.native(isa=isa.named("portable").name)
    assert (best.isa, portable.isa) == (isa.named("host").name, isa.named("portable").name)
    x = {value.name: samples(3, 8, 8, count=2) for value in best.interface.inputs}
    for name, result in best.run(x).items():
        np.testing.assert_array_equal(result, portable.run(x)[name])


def test_the_weights_lie_in_the_artifact_once(artifact: Artifact) -> None:
    library = artifact.manifest["targets"]["cpu"]["libraries"][0]
    stored = (artifact.folder / "cpu" / "weights.bin").stat().st_size
    assert artifact.manifest["targets"]["cpu"]["weights_bytes"] == stored < 1.5 * library["constant_bytes"]


def test_a_changed_library_is_refused_before_it_is_loaded(artifact: Artifact, tmp_path: Path) -> None:
    # In a copy: writing to the file of a loaded library pulls it from under the process, which crashes when it ends.
    folder = shutil.copytree(artifact.folder, tmp_path / "out")
    with (folder / "cpu" / "weights.bin").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(IntegrityError, match=r"weights\.bin was changed"):
        ptqc.load(folder)


def test_an_artifact_without_a_library_says_so(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(TargetError, match="compile with --target cpu"):
        Artifact(tmp_path).native()


@pytest.fixture(scope="module")
def hardmax() -> onnx.ModelProto:
    """A convolution behind an operator that no family takes."""
    graph = """g (float[N,3,8,8] x) => (float[N,8,8,8] y) {
        c = Hardmax(x)
        y = Conv<pads=[1,1,1,1]>(c, w)
    }"""
    return proto(graph, w=weight(8, 3, 3, 3))


def test_a_node_without_a_kernel_is_named(hardmax: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"no kernel for Hardmax c: .*--allow-missing-target"):
        compiled(hardmax, samples(3, 8, 8), tmp_path, None, target="cpu")
    assert not (tmp_path / "out").exists()


def test_the_rest_is_delivered_where_the_target_may_be_missing(hardmax: onnx.ModelProto, tmp_path: Path) -> None:
    artifact = compiled(hardmax, samples(3, 8, 8), tmp_path, None, target="cpu", allow_missing_target=True)
    assert "no kernel for Hardmax c" in artifact.manifest["targets"]["cpu"]["missing"]
    assert "--allow-missing-target" not in artifact.summary()
    assert not (artifact.folder / "cpu").exists()
    assert "not built" in artifact.summary()


def test_unknown_targets_and_instruction_sets_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="target is 'gpu'; known: c, cpu"):
        choose("gpu", {})
    known = "host, portable, avx2, avx-vnni, avx512-vnni, avx512-vbmi, avx512-bf16, amx-int8, arm-neon, arm-dotprod"
    with pytest.raises(UsageError, match=f"cpu is 'sse'; known: {known}, arm-i8mm"):
        CpuOptions(cpu="sse")
    arguments = ["compile", "m.onnx", "-o", str(tmp_path / "out"), "--target", "cpu", "--cpu", "sse"]
    assert main(arguments) == 2
    assert "known: host" in capsys.readouterr().err


def test_a_missing_tvm_is_told_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "find_spec", lambda _name: None)
    with pytest.raises(TargetError, match=r"pip install 'ptqc\[tvm\]'"):
        check_target(choose("cpu", {}))
    check_target(choose("cpu", {}, may_be_missing=True))
    check_target(None)


def test_samples_of_several_sizes_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    model = proto("g (float[N,8,L] x) => (float[N,4,L] y) { y = Conv <kernel_shape = [1]> (x, w) }", w=weight(4, 8, 1))
    feeds = [samples(8, 1 + index % 3, count=1, seed=index) for index in range(8)]
    with pytest.raises(TargetError, match="built for one size of samples, and these have 3: give samples of one size"):
        compiled(model, feeds, tmp_path, target="cpu")
    assert not (tmp_path / "cache").exists()
    artifact = compiled(model, feeds, tmp_path, target="cpu", allow_missing_target=True, bits=(7,))
    assert "sizes, which a library takes where its operators do" in artifact.manifest["targets"]["cpu"]["missing"]


# A layer reads what was before, of which there may be nothing.
PAST = """g (float[1,T,8] x, float[1,P,8] past) => (float[1,T,4] y) {
    old = MatMul(past, w)
    sums = ReduceSum <keepdims = 1> (old, axis)
    new = MatMul(x, w)
    y = Add(new, sums)
}"""


def test_an_axis_without_elements_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    model = proto(PAST, w=weight(8, 4), axis=np.array([1]))
    feeds = [
        {"x": samples(2 + i % 2, 8, count=1, seed=i), "past": samples((0, 3)[i % 2], 8, count=1)} for i in range(8)
    ]
    text = r"needs 1 or more along axis 1 of input 'past', and there are samples of shape \(1, 0, 8\)"
    with pytest.raises(TargetError, match=text):
        compiled(model, feeds, tmp_path, target="cpu")
    assert not (tmp_path / "cache").exists()
    artifact = compiled(model, feeds, tmp_path, target="cpu", allow_missing_target=True, bits=(7,))
    assert "P = 0; the library takes 1 or more" in artifact.manifest["targets"]["cpu"]["missing"]


def test_a_library_for_one_size_is_built_for_that_of_most_samples(tmp_path: Path) -> None:
    model = proto("g (float[N,8,L] x) => (float[N,4,L] y) { y = Conv <kernel_shape = [1]> (x, w) }", w=weight(4, 8, 1))
    feeds = [samples(8, 3 if index % 4 == 2 else 6, count=1, seed=index) for index in range(16)]
    artifact = compiled(model, feeds, tmp_path, target="cpu", bits=(7,))
    assert artifact.manifest["targets"]["cpu"]["fixed_sizes"].startswith(
        "built for the size of 3 of 4 held-back samples: the"
    )
    (result,) = ptqc.load(artifact.folder).native().run({"x": feeds[0]}).values()
    assert result.shape == (1, 4, 6)


@pytest.mark.parametrize(
    ("has", "name"),
    [
        (isa.AVX512_VNNI.features, "avx512-vnni"),
        (isa.AVX2.features, "avx2"),
        (isa.AVX_VNNI.features, "avx-vnni"),
        ((*isa.AVX2.features, "avx512f"), "avx2"),
    ],
)
def test_the_host_gets_the_best_that_it_has(monkeypatch: pytest.MonkeyPatch, has: tuple[str, ...], name: str) -> None:
    monkeypatch.setattr(isa, "machine", lambda: "x86_64")
    monkeypatch.setattr(isa, "processor_features", lambda: frozenset(has))
    assert isa.named("host").name == name
    assert isa.named("portable").name == "avx2"


def test_a_processor_without_any_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "processor_features", lambda: frozenset({"sse2"}))
    with pytest.raises(UsageError, match="this processor has none of"):
        isa.named("host")
