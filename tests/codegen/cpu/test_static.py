"""Static libraries: linked by programs in C and C++, they give what the shared ones give, and need libc alone."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

import test_varying_lengths as texts
from graphs import noise, parse
from lowering import quantized, samples
from test_random_networks import network
from together import program_of

from ptqc.artifact.build_target import check_target
from ptqc.artifact.report import summary
from ptqc.codegen.cpu import emulation, isa, package, static_check, static_library, target, worker
from ptqc.codegen.cpu.c_source import FEATURES, STATUSES, CInterface, CValue, header
from ptqc.codegen.cpu.options import CpuOptions
from ptqc.codegen.kernels import documents
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Program
from ptqc.codegen.targets import Chosen, TargetOutput
from ptqc.errors import TargetError, UsageError, VerificationError
from ptqc.runtime.library import Library
from ptqc.utils.machine import machine

ROOT = Path(__file__).resolve().parents[3]
USER = Path(__file__).with_name("static_library.c")
IMAGES = noise(5, 1, 16, 16, seed=7)
GRAPH = """g (float[N, 1, 16, 16] input) => (float[N, 10] logits) {
    a = Conv <pads = [1, 1, 1, 1]> (input, w)
    r = Relu(a)
    b = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (r, v)
    s = Sigmoid(b)
    c = Mul(s, b)
    m = GlobalAveragePool(c)
    f = Flatten(m)
    logits = Gemm <transB = 1> (f, h)
}"""
CONSTANTS = {
    "w": noise(16, 1, 3, 3, seed=1, scale=0.4),
    "v": noise(32, 16, 3, 3, seed=2, scale=0.2),
    "h": noise(10, 32, seed=3),
}
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror", "-O1")
IN_C, IN_CPP = ("gcc", "-x", "c", "-std=c99"), ("g++", "-x", "c++", "-std=c++11")
CROSS = "aarch64-linux-gnu-"
LIBC = ("/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6", "/lib64/libc.so.6")


def is_emulated() -> bool:
    """Whether libraries for Arm are built and run on this machine."""
    if machine() == "aarch64":
        return False
    result = emulation.missing(isa.ARM_DOTPROD) is None and shutil.which(f"{CROSS}g++") is not None
    assert result or "PTQC_MUST_EMULATE" not in os.environ
    return result


@pytest.fixture(scope="module")
def built(shared_room: Path, tmp_path_factory: pytest.TempPathFactory) -> TargetOutput:
    """Libraries for this machine, and for Arm where they are emulated."""
    feeds = [{"input": one["x"]} for one in samples(2, 1, 16, 16)]
    model = quantized(parse(GRAPH, **CONSTANTS), feeds)
    names = "portable,host" + (",arm-dotprod" if is_emulated() else "")
    folder = tmp_path_factory.mktemp("static")
    return target.build(
        model.lowered, export(model.lowered, model.model), feeds, folder, names, shared_room / "arm", static="model"
    )


def archive_of(built: TargetOutput, kind: str) -> Path:
    return built.files[f"libmodel-{kind}.a"]


def compiled(compiler: Sequence[str], source: Path, archive: Path, program: Path) -> Path:
    command = [*compiler, *STRICT, f"-I{archive.parent}", str(source), "-x", "none", str(archive)]
    done = subprocess.run([*command, "-lm", "-pthread", "-o", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return program


def run(command: Sequence[str | Path], built: TargetOutput) -> tuple[np.ndarray, str]:
    """Outputs of the program, and the instruction set that it took."""
    arguments = [*command, built.files["weights.bin"], str(len(IMAGES))]
    done = subprocess.run(arguments, input=IMAGES.tobytes(), capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return np.frombuffer(done.stdout, np.float32).reshape(len(IMAGES), -1), done.stderr.decode().strip()


@pytest.mark.long
@pytest.mark.parametrize("compiler", [IN_C, IN_CPP], ids=["C", "C++"])
def test_a_program_gets_the_outputs_of_the_shared_library(
    compiler: Sequence[str], built: TargetOutput, tmp_path: Path
) -> None:
    program = compiled(compiler, USER, archive_of(built, machine()), tmp_path / "program")
    logits, name = run([program], built)
    library = Library.open(built.files["weights.bin"].parent)
    np.testing.assert_array_equal(logits, library.run({"input": IMAGES})["logits"])
    assert name == library.isa


def test_on_arm(built: TargetOutput, tmp_path: Path) -> None:
    if not is_emulated():
        pytest.skip("nothing emulates Arm")
    compiler = (f"{CROSS}gcc", *IN_C[1:])
    program = compiled(compiler, USER, archive_of(built, "aarch64"), tmp_path / "program")
    command = [*emulation.COMMAND, str(program)]
    logits, name = run(command, built)
    assert name == "arm-dotprod"
    here = Library.open(built.files["weights.bin"].parent).run({"input": IMAGES})["logits"]
    np.testing.assert_allclose(logits, here, rtol=0, atol=0.02 * np.abs(here).max())  # a code may be rounded otherwise
    command[2] = "cortex-a53"
    done = subprocess.run([*command, str(built.files["weights.bin"]), "0"], capture_output=True, text=True, check=False)
    assert "MODEL_OK" in done.stderr  # without dot products nothing can be created


def test_each_is_compared_before_it_is_delivered(built: TargetOutput) -> None:
    document = built.document["static"]
    assert document["header_bytes"] == built.files["model.h"].stat().st_size
    for archive in document["archives"]:
        assert archive["bytes"] == built.files[archive["file"]].stat().st_size
        for checked in archive["verification"].values():
            assert checked["numbers_compared"] >= 10 * 6  # two samples and four edge inputs
    lines = [text for _, text in summary._targets({"targets": {"cpu": built.document}})]
    assert re.search(
        r"libmodel-\w+\.a, [\d,]+ bytes; [\d,]+ numbers equal those of the shared libraries", " ".join(lines)
    )


def symbols(archive: Path, *options: str) -> list[str]:
    listing = subprocess.run(["nm", "-j", *options, archive], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.split() if not line.endswith(":")]


def kinds(built: TargetOutput) -> list[str]:
    return [archive["machine"] for archive in built.document["static"]["archives"]]


def test_what_it_needs_is_what_the_guide_says(built: TargetOutput) -> None:
    """Functions that Android's libc has as well; what mathematics a network needs comes on top."""
    guide = (ROOT / "docs" / "deploy" / "native.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- undefined symbols -->\n(.*?)<!-- end -->", guide, re.DOTALL)
    assert block is not None
    documented = set(re.findall(r"`(\w+)`", block[1]))
    linker = {"_GLOBAL_OFFSET_TABLE_"}  # the linker itself makes it
    undefined = {name for kind in kinds(built) for name in symbols(archive_of(built, kind), "-u")}
    assert undefined - linker <= documented
    assert documented - undefined <= {"getauxval", "memcpy"}  # of Arm


def test_it_defines_what_the_header_declares(built: TargetOutput) -> None:
    functions = set(re.findall(r"\bmodel_\w+(?=\()", built.files["model.h"].read_text(encoding="utf-8")))
    for kind in kinds(built):
        archive = archive_of(built, kind)
        defined = symbols(archive, "-g", "--defined-only")
        assert {name for name in defined if not name.startswith(static_library.POOL)} == functions
        sections = subprocess.run(["readelf", "-SW", archive], capture_output=True, text=True, check=True).stdout
        assert not re.search(r"\.(init_array|ctors|tbss|tdata|debug_\w+)", sections)
        assert ".note.GNU-stack" in sections  # else the linker makes the stack executable


def interface(elements: int) -> CInterface:
    values = CValue("in_input", "input", "float32", ("N", 1, 16, 16), "256")
    return CInterface(
        "model", (values,), (CValue("out_logits", "logits", "float32", ("N", 10), str(elements)),), {}, True, {}, "1"
    )


def test_a_difference_is_found(built: TargetOutput) -> None:
    folder = built.files["weights.bin"].parent
    library = Library.open(folder)
    outputs = library.run({"input": IMAGES})
    chosen, archive = isa.KNOWN[library.isa], archive_of(built, machine())
    runs = [({"input": IMAGES}, outputs)]
    assert static_check.compare(interface(10), archive, chosen, runs) == {"numbers_compared": 50}
    changed = {"logits": outputs["logits"].copy()}
    changed["logits"][3, 4] = np.nextafter(changed["logits"][3, 4], np.float32(9))
    with pytest.raises(VerificationError, match=r"output logits of the static library for .* with 1 threads is not"):
        static_check.compare(interface(10), archive, chosen, [({"input": IMAGES}, changed)])
    data = (folder / "weights.bin").read_bytes()
    (folder / "weights.bin").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        with pytest.raises(TargetError, match=re.escape(STATUSES["WRONG_WEIGHTS"])):
            static_check.compare(interface(10), archive, chosen, runs)
    finally:
        (folder / "weights.bin").write_bytes(data)


def test_what_cannot_run_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = isa.AVX2 if machine() == "aarch64" else isa.ARM_NEON
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    report = static_check.compare(interface(10), Path("absent.a"), foreign, [])
    assert report == {"missing": foreign.refusal()}
    document = {"file": "libmodel-aarch64.a", "bytes": 7, "verification": {foreign.name: report}}
    libraries = {"libraries": [], "static": {"archives": [document]}}
    ((_, line),) = summary._targets({"targets": {"cpu": libraries}})
    assert f"{foreign.name} NOT VERIFIED: {report['missing']}" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu_library": "dynamic"}, "cpu_library.*dynamic.*shared, static"),
        ({"cpu_library": "static", "c_name": "my-net"}, "letters, digits and _"),
        (
            {"cpu_library": "static", "c_name": "String"},
            "the system has a string.h: give another name, such as string_",
        ),
        ({"cpu_library": "static", "c_name": "pthread"}, "pthread.h"),
        ({"cpu_library": "static", "c_name": "timer"}, "timer_create: give another name, such as timer_net"),
        ({"c_name": "net"}, "give cpu_library static too"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CpuOptions(**options)


def test_names_of_the_systems_functions_are_refused() -> None:
    """All those of libc that end as those of a library do."""
    libc = next((path for path in map(Path, LIBC) if path.is_file()), None)
    if libc is None or shutil.which("nm") is None:
        pytest.skip("needs libc and nm")
    listing = subprocess.run(["nm", "-D", "--defined-only", libc], capture_output=True, text=True, check=True).stdout
    endings = [name.removeprefix("n_") for name in CInterface("n", (), (), {}, True, {}, "1").functions]
    # One @ marks what only programs of long ago are linked with.
    names = re.findall(rf" ([a-z]\w*)_({'|'.join(endings)})(?:@@.*)?$", listing, re.MULTILINE)
    assert names
    for name, _ in names:
        with pytest.raises(UsageError, match=f"the system has a {name}"):
            CpuOptions(cpu_library="static", c_name=name)


def test_every_feature_can_be_asked_for() -> None:
    known = [one for one in isa.KNOWN.values() if one.cpu]
    static_library.check(known)
    assert all(len(row) == 4 for row in FEATURES.values())
    strange = Isa("avx10", "", ("avx10",), lanes=8, registers=32, working=1)
    with pytest.raises(TargetError, match=r"cannot tell whether a processor has avx10 \(avx10\)"):
        static_library.check([strange])


def test_an_absent_tool_is_named_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    options = CpuOptions("portable", cpu_library="static")
    check_target(Chosen("cpu", target.TARGET, options))
    monkeypatch.setattr(package, "BINUTILS", ("absent-objcopy",))
    problem = f"for {machine()} is made with absent-objcopy.*install binutils.*--allow-missing-target delivers the rest"
    with pytest.raises(TargetError, match=problem):
        check_target(Chosen("cpu", target.TARGET, options))
    check_target(Chosen("cpu", target.TARGET, options, may_be_missing=True))
    check_target(Chosen("cpu", target.TARGET, CpuOptions("portable")))


def test_an_absent_tool_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="made with absent-objcopy, which does not run"):
        static_library._run(tmp_path, "absent-objcopy")
    with pytest.raises(TargetError, match="false does not build the static library"):
        static_library._run(tmp_path, "false")


def test_names_that_c_does_not_take() -> None:
    """Keywords, ends of comments, letters of other scripts, and outputs of one name in C."""
    shapes = {name: Layout((4,), "float32", is_io=True) for name in ("int", "a*/b", "a b", "輸出")}
    program = Program((), shapes, ("int",), ("a*/b", "a b", "輸出"))
    text = " ".join(header(CInterface.of("n", program), b"").split())
    assert "const float *in_int, float *out_a_b, float *out_a_b_, float *out_)" in text
    assert text.count("*/") == text.count("/*")


def test_a_long_name_stays_whole() -> None:
    name = "a" * 200
    program = Program((), {name: Layout((4,), "float32", is_io=True)}, (name,), (name,))
    text = header(CInterface.of("n", program), b"")
    assert f"const float *in_{name}, float *out_{name});" in " ".join(text.split())


@pytest.mark.slow
def test_names_that_are_used_within_a_library(tmp_path: Path) -> None:
    """Of its parts, of what they define, of the checking program's variables, and what C and C++ have as keywords."""
    chosen = isa.named("portable")
    graph = """g (float[N, 4] run, float[N, 4] model) => (float[N, 3] create) {
        a = Add(run, model)
        create = MatMul(a, w)
    }"""
    feeds = [{"run": noise(2, 4, seed=1), "model": noise(2, 4, seed=2)}]
    program = program_of(quantized(parse(graph, w=noise(4, 3)), feeds), feeds, chosen, tmp_path / "job")
    weights = worker.write_all({chosen: program}, tmp_path)
    runs = [(feeds[0], Library.open(tmp_path).run(feeds[0]))]
    for name in ("library", "threads", chosen.name.replace("-", "_"), "in", "class"):
        (archive,) = static_library.write_archives(name, {chosen: program}, weights, tmp_path, None)
        assert archive.compare(chosen, runs) == {"numbers_compared": 6}, name


def test_the_shared_library_runs_once_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, job = isa.named("portable"), tmp_path / "job"
    program = network(3, chosen, job)
    worker.write(program, chosen, job)
    loaded, runs, calls = worker.load(job, program), list[static_check.Run](), list[object]()
    right = Library.run
    monkeypatch.setattr(Library, "run", lambda library, feeds: calls.append(feeds) or right(library, feeds))
    worker._compared(loaded, job, runs)
    assert len(calls) == len(runs) == len(documents.runs(job))
    library = Library.open(job)
    for feeds, outputs in runs:
        again = right(library, feeds)
        assert list(outputs) == list(again)
        for name, values in again.items():
            np.testing.assert_array_equal(outputs[name], values)


def test_an_input_that_is_always_the_same_is_no_argument() -> None:
    layouts = {name: Layout((2,), "int64", is_io=True) for name in ("size", "x", "y")}
    program = Program((), layouts, ("size", "x"), ("y",), fixed={"size": np.array([3, 4])})
    text = " ".join(header(CInterface.of("n", program), b"").split())
    assert "int64_t samples, const int64_t *in_x, int64_t *out_y);" in text
    assert "The input size is part of the library: [3, 4]." in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "feeds"),
    [
        (texts.ENCODER, [texts.text(5, seed=1), texts.text(7, seed=2)]),
        (texts.DECODER, [texts.continued(3, 4, seed=1), texts.continued(2, 5, seed=2)]),
    ],
    ids=["encoder", "decoder"],
)
def test_lengths_are_arguments(graph: str, feeds: list[dict[str, np.ndarray]], tmp_path: Path) -> None:
    model = quantized(parse(graph, **texts.CONSTANTS), feeds)
    built = target.build(model.lowered, export(model.lowered, model.model), feeds, tmp_path, "portable", static="text")
    (archive,) = built.document["static"]["archives"]
    assert all(checked["numbers_compared"] > 1000 for checked in archive["verification"].values())
    assert "int64_t length_" in built.files["text.h"].read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed: int, tmp_path: Path) -> None:
    chosen = isa.named("portable" if seed % 2 else "host")
    program = network(seed, chosen, job := tmp_path / "job")
    weights = worker.write_all({chosen: program}, tmp_path)
    (archive,) = static_library.write_archives("net", {chosen: program}, weights, tmp_path, None)
    library, runs = Library.open(tmp_path), []
    for path in documents.runs(job).values():
        with np.load(path) as values:
            feeds = {value.name: values[value.name] for value in library.interface.inputs}
        runs.append((feeds, library.run(feeds)))
    assert archive.compare(chosen, runs)["numbers_compared"] > 0


@pytest.mark.slow
def test_two_libraries_in_one_program_share_their_threads(built: TargetOutput, tmp_path: Path) -> None:
    feeds = [{"input": one["x"]} for one in samples(2, 1, 16, 16)]
    model = quantized(parse(GRAPH, **CONSTANTS), feeds)
    other = target.build(model.lowered, export(model.lowered, model.model), feeds, tmp_path, "portable", static="other")
    source = tmp_path / "both.c"
    source.write_text(
        '#include "model.h"\n#include "other.h"\nint main(void) { return model_message(0)[0] - other_message(0)[0]; }\n'
    )
    archives = [str(archive_of(built, machine())), str(other.files[f"libother-{machine()}.a"])]
    folders = [f"-I{Path(archive).parent}" for archive in archives]
    program = tmp_path / "both"
    subprocess.run(["gcc", *folders, str(source), *archives, "-lm", "-pthread", "-o", program], check=True)
    assert subprocess.run([program], check=False).returncode == 0
    assert sum(name == f"{static_library.POOL}4poolE" for name in symbols(program)) == 1


def test_the_example_for_a_board(built: TargetOutput, tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    folder, weights = shutil.copytree(ROOT / "examples" / "arm_board", tmp_path / "board"), built.files["weights.bin"]
    (folder / "input.f32").write_bytes(IMAGES[0].tobytes())
    best = int(Library.open(weights.parent).run({"input": IMAGES[:1]})["logits"][0].argmax())
    machines: list[tuple[str, list[str], str]] = [("", [], "")]
    machines += [(CROSS, [emulation.EMULATOR, "-cpu", "max"], "arm-dotprod")] if is_emulated() else []
    for cross, emulator, name in machines:
        make = ["make", "-B", f"MODEL={weights.parent}", f"CROSS={cross}", "LDFLAGS=-static"]
        done = subprocess.run(make, cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        command = [*emulator, str(folder / "classify"), str(weights)]
        done = subprocess.run([*command, folder / "input.f32"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"class {best}, logit ")
        assert done.stdout.strip().endswith(name)
        done = subprocess.run([*command, "/dev/null"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "/dev/null: has not as many numbers as the network takes\n")


def jni_headers() -> list[str]:
    """Flags for the headers of the Java that is installed."""
    compiler = shutil.which("javac")
    if compiler is None or shutil.which("cmake") is None:
        pytest.skip("needs a JDK and CMake")
    include = Path(compiler).resolve().parent.parent / "include"
    return [f"-I{include}", f"-I{include / 'linux'}"]


@pytest.mark.slow
def test_the_native_part_of_the_example_for_android(built: TargetOutput, tmp_path: Path) -> None:
    model, source = built.files["weights.bin"].parent, ROOT / "examples/android/classifier/src/main/cpp"
    flags = f"-DCMAKE_C_FLAGS={' '.join(jni_headers())} -Wall -Wextra -pedantic -Werror"
    cross = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_C_COMPILER={CROSS}gcc"]
    here, arm = tmp_path / "here", tmp_path / "arm"
    for folder, more in [(here, list[str]()), *([(arm, cross)] if is_emulated() else [])]:
        configured = ["cmake", "-S", str(source), "-B", str(folder), f"-DMODEL={model}", flags, *more]
        for command in (configured, ["cmake", "--build", str(folder)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        exported = symbols(folder / "libclassifier.so", "-D", "--defined-only")
        assert all(name.startswith("Java_") for name in exported)
    (tmp_path / "input.f32").write_bytes(IMAGES[0].tobytes())
    program, files = Path(__file__).with_name("Classifier.java"), (model / "weights.bin", tmp_path / "input.f32")
    command = ["java", f"-Djava.library.path={here}", *map(str, (program, *files))]
    *bits, length, weights = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    expected = Library.open(model).run({"input": IMAGES[:1]})["logits"][0]
    assert list(map(int, bits)) == expected.view(np.uint32).tolist()
    assert length == "the input has not as many numbers as the network takes"
    assert weights == STATUSES["WRONG_WEIGHTS"]


def test_kotlin_declares_the_methods_of_the_native_part() -> None:
    module = ROOT / "examples" / "android" / "classifier" / "src" / "main"
    native = set(
        re.findall(r"Java_com_example_classifier_Classifier_(\w+)", (module / "cpp" / "classifier.c").read_text())
    )
    kotlin = (module / "java" / "com" / "example" / "classifier" / "Classifier.kt").read_text()
    assert set(re.findall(r"external fun (\w+)", kotlin)) == native
