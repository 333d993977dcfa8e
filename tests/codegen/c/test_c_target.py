"""The C source as a compile delivers it: every value that ONNX Runtime computes, on this machine and on boards."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from boards import needs_boards
from compiling import compiled, compiled_once, proto, residual, samples, weight
from graphs import noise, parse
from in_c import HAS_COMPILER, case, of_model
from lowering import CONSTANTS, RESIDUAL, quantized
from lowering import samples as feeds_of
from mostly_slow import mostly_slow

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.codegen.c import verify
from ptqc.codegen.c.emulation import BOARDS, Board, compile_c
from ptqc.codegen.c.options import COptions
from ptqc.codegen.c.source import CODE_FUNCTIONS, functions
from ptqc.codegen.c.target import TARGET
from ptqc.codegen.onnxruntime.export import export
from ptqc.errors import NoKernel, TargetError, UsageError, VerificationError
from ptqc.execution.onnxruntime import Runner
from ptqc.ir.runtimes import RULES
from ptqc.passes.base import Probed
from ptqc.passes.canonicalize.fold_batch_norm import FoldBatchNorm

pytestmark = HAS_COMPILER
STRICT = ("-Werror", "-Wshadow", "-Wcast-align", "-Wstrict-prototypes", "-Wundef")


@pytest.fixture(scope="module")
def artifact(shared_room: Path) -> Artifact:
    """A small network with its C."""
    return compiled_once(residual(), samples(3, 8, 8), shared_room / "c", "25%", target="c")


def test_it_is_delivered_and_compared(artifact: Artifact) -> None:
    document = artifact.manifest["targets"]["c"]
    assert {path.name for path in (artifact.folder / "c").iterdir()} == {"model.c", "model.h", "model_weights.h"}
    assert document["verification"]["integers_different"] == 0
    assert document["verification"]["integers_compared"] > 1000
    assert document["verification"]["sanitized"]
    assert artifact.manifest["options"]["runtime"] == "c"
    assert (
        f"#define PTQC_MODEL_ARENA_BYTES {document['arena_bytes']}" in (artifact.folder / "c" / "model.h").read_text()
    )


@needs_boards
def test_it_ran_on_emulated_boards(artifact: Artifact) -> None:
    boards = artifact.manifest["targets"]["c"]["boards"]
    assert boards.keys() == {"cortex-m4", "cortex-m55"}
    for board in boards.values():
        assert board["samples"] == 2
        assert board["instructions"] > artifact.manifest["targets"]["c"]["multiplications"] / 4
        assert board["constant_bytes"] >= artifact.manifest["targets"]["c"]["constant_bytes"]


def test_the_rules_of_microcontrollers_are_implied() -> None:
    assert RULES["c"].defaults == {"activations": "integer", "allow_8bit": True}
    assert not RULES["c"].saturates


FLAGS = [("-O0",), ("-O3",), ("-O2", "-DPTQC_WITHOUT_FPU"), ("-Os", "-std=gnu11", "-march=native")]


@pytest.mark.parametrize("program", ["gcc", "clang"])
@pytest.mark.parametrize("flags", mostly_slow(FLAGS, *FLAGS[1:3]))
def test_compilers_agree_without_a_warning(program: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    built = case(quantized(parse(RESIDUAL, **CONSTANTS), FEEDS), FEEDS)
    comparison = built.compare(tmp_path, *STRICT, *flags, program=path)
    assert comparison.different == comparison.rounded == {}
    assert comparison.integers > 4000


FEEDS = feeds_of(2, 3, 8, 8)


@needs_boards
@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
@pytest.mark.parametrize("optimization", ["-O0", "-O3"])
def test_boards_compile_it_without_a_warning(
    board: Board, optimization: str, artifact: Artifact, tmp_path: Path
) -> None:
    source = artifact.folder / "c" / "model.c"
    compile_c(board, source, tmp_path / "model.o", [*verify.WARNINGS, *STRICT, optimization])


PACKINGS = ["column_path", "index", "pairs", "prefix", "row_path"]


@pytest.mark.parametrize("program", ["gcc", "clang"])
def test_no_function_is_written_that_nothing_calls(program: str) -> None:
    """Only what it calls is written with the function of a step."""
    compiler = shutil.which(program)
    if compiler is None:
        pytest.skip(f"{program} is not installed")
    headers = "".join(f"#include <{name}.h>\n" for name in ("stddef", "stdint", "string"))
    flags = [*verify.WARNINGS, "-Werror", "-O0", "-S", "-o", "/dev/null", "-x", "c", "-"]
    for step in ("gru", "lstm", "real_softmax", "real_unary", "dense", "depthwise", "average", "add", "softmax"):
        text = f"{headers}{functions([step], PACKINGS)}\nvoid use(void);\nvoid use(void) {{ (void){step}; }}\n"
        subprocess.run([compiler, *flags], input=text, text=True, check=True)


def test_it_is_linked_by_programs_in_cpp(artifact: Artifact, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    (tmp_path / "main.cpp").write_text(
        '#include "model.h"\nint main() { return ptqc_model_run(nullptr, nullptr) - 1; }\n'
    )
    folder = artifact.folder / "c"
    subprocess.run([verify.compiler(), "-c", folder / "model.c", "-o", tmp_path / "model.o"], check=True)
    program = tmp_path / "program"
    subprocess.run([compiler, f"-I{folder}", tmp_path / "main.cpp", tmp_path / "model.o", "-o", program], check=True)
    assert subprocess.run([program], check=False).returncode == 0


def test_names_that_are_no_identifiers_or_collide(tmp_path: Path) -> None:
    graph = parse("g (float[N,8] p, float[N,8] q) => (float[N,8] r, float[N,8] s) { r = Add(p, q)\n s = Mul(p, q) }")
    for value, name in zip((*graph.graph.inputs, *graph.graph.outputs), ("a.b", "a/b", "int", "*/ü"), strict=True):
        value.name = name
    feeds = [{"a.b": noise(1, 8, seed=1), "a/b": noise(1, 8, seed=2)} for _ in range(2)]
    built = of_model(graph, feeds)
    assert [each.name for each in (*built.text.inputs, *built.text.outputs)] == ["in_a_b", "in_a_b_", "out_int", "out"]
    built.compare(tmp_path)


def test_not_a_number_becomes_a_code_as_in_onnx_runtime(tmp_path: Path) -> None:
    graph = parse("g (float[1,8] x) => (float[1,4] y) { p = Sqrt(x)\n y = MatMul(p, w) }", w=noise(8, 4))
    feeds = [{"x": np.abs(noise(1, 8, seed=seed))} for seed in range(3)]
    network = quantized(graph, feeds, keep_float=lambda site: site == "x")
    strange = np.array([[np.nan, np.inf, -np.inf, 3e38, -3e38, 0, -0.0, 1]], np.float32)
    built = case(network, [{"x": strange}])
    assert [step.function for step in built.network.steps] == ["real_unary", "quantize", "dense"]
    built.compare(tmp_path)


def test_a_state_goes_in_and_out(tmp_path: Path) -> None:
    units, width = 6, 5
    gates = {"w": noise(1, 4 * units, width, seed=1), "r": noise(1, 4 * units, units, seed=2)}
    graph = parse(
        "g (float[4,1,5] x, float[1,1,6] h, float[1,1,6] c) => (float[4,1,1,6] y, float[1,1,6] hn, float[1,1,6] cn) {"
        "y, hn, cn = LSTM <hidden_size = 6> (x, w, r, b, , h, c) }",
        **gates,
        b=noise(1, 8 * units, seed=3),
    )
    feeds = [
        {"x": noise(4, 1, width, seed=seed), "h": noise(1, 1, units, seed=seed + 9), "c": noise(1, 1, units, seed=seed)}
        for seed in range(3)
    ]
    built = of_model(graph, feeds)
    assert [each.name for each in built.text.inputs] == ["in_x", "in_h", "in_c"]
    assert built.compare(tmp_path, *STRICT, "-O1", *verify.SANITIZERS).reals > 0


CELL = """g (float[1,3] x, float[1,4] h) => (float[1,2] y, float[1,4] hn) {
    p = Gemm(x, w) q = Gemm(h, r) s = Add(p, q) hn = Tanh(s) y = Gemm(hn, o)
}"""
STREAM = """
#include <stdio.h>
#include <string.h>
#include "net.h"
int main(void) {
  uint8_t state[PTQC_NET_IN_H_ELEMENTS], next[PTQC_NET_OUT_HN_ELEMENTS];
  static float x[PTQC_NET_IN_X_ELEMENTS], y[PTQC_NET_OUT_Y_ELEMENTS];
  uint8_t codes[PTQC_NET_IN_X_ELEMENTS];
  memset(state, PTQC_NET_IN_H_ZERO, sizeof state);
  while (fread(x, sizeof x, 1, stdin) == 1) {
    for (int i = 0; i < PTQC_NET_IN_X_ELEMENTS; ++i) codes[i] = PTQC_NET_IN_X_CODE(x[i]);
    if (ptqc_net_run(codes, state, y, next)) return 1;
    for (int i = 0; i < PTQC_NET_IN_H_ELEMENTS; ++i) state[i] = PTQC_NET_IN_H_NEXT(next[i]);
    fwrite(next, sizeof next, 1, stdout);
  }
  return 0;
}
"""


def test_a_state_of_codes_goes_round_as_in_onnx_runtime(tmp_path: Path) -> None:
    """The codes of both ends of a state have scales of their own."""
    graph = parse(CELL, w=noise(3, 4), r=noise(4, 4, seed=1), o=noise(4, 2, seed=2))
    feeds = [{"x": noise(1, 3, seed=seed), "h": np.tanh(noise(1, 4, seed=seed + 9))} for seed in range(8)]
    model = quantized(graph, feeds)
    built = case(model, feeds)
    state, following = built.network.inputs[1].codes, built.network.outputs[1].codes
    assert state is not None
    assert following is not None
    assert state != following
    for name, content in {**built.text.files(), "main.c": STREAM}.items():
        (tmp_path / name).write_text(content)
    command = [verify.compiler(), *verify.WARNINGS, "-Werror", f"-I{tmp_path}", "-o", str(tmp_path / "stream")]
    subprocess.run([*command, tmp_path / "main.c", tmp_path / "net.c"], check=True)
    frames = noise(20, 1, 3, seed=5)
    ran = subprocess.run([tmp_path / "stream"], input=frames.tobytes(), capture_output=True, check=True)
    packed, h = Runner(export(model.lowered, model.model).proto), np.zeros((1, 4), np.float32)
    wanted = []
    for frame in frames:
        h = packed.run({"x": frame, "h": h})["hn"]
        wanted.append(np.rint(h / np.float32(following[0])) + following[1])
    assert np.array_equal(np.frombuffer(ran.stdout, np.uint8), np.concatenate(wanted, axis=None))


def test_codes_of_real_numbers(tmp_path: Path) -> None:
    print_codes = (
        "#include <stdint.h>\n#include <stdio.h>\n{}int main(void) {{ float x; while (fread(&x, 4, 1, stdin) == 1)"
        ' printf("%d ", ptqc_code(x, 0.25f, 100)); return 0; }}'
    )
    (tmp_path / "codes.c").write_text(print_codes.format(CODE_FUNCTIONS))
    command = [verify.compiler(), *verify.WARNINGS, "-Werror", *verify.SANITIZERS, "-o", str(tmp_path / "codes")]
    subprocess.run([*command, tmp_path / "codes.c"], check=True)
    halves = np.arange(-300, 300, dtype=np.float32) / 8
    numbers = np.concatenate([halves, np.array([np.inf, -np.inf, 3e38, -3e38, 0.1249999, 0.3750001], np.float32)])
    ran = subprocess.run([tmp_path / "codes"], input=numbers.tobytes(), capture_output=True, check=True)
    wanted = np.clip(np.rint(numbers.astype(np.float64) / 0.25) + 100, 0, 255)
    assert np.array_equal(np.array(ran.stdout.split(), np.int64), wanted)


@pytest.mark.parametrize("direction", ["bidirectional", "reverse"])
def test_gru(direction: str, tmp_path: Path) -> None:
    count = 2 if direction == "bidirectional" else 1
    graph = parse(
        f"g (float[4,1,5] x) => (float[4,{count},1,6] y) {{ y = GRU <hidden_size = 6, linear_before_reset = 1, "
        f'direction = "{direction}"> (x, w, r, b) }}',
        w=noise(count, 18, 5, seed=1),
        r=noise(count, 18, 6, seed=2),
        b=noise(count, 36, seed=3),
    )
    feeds = [{"x": noise(4, 1, 5, seed=seed)} for seed in range(2)]
    of_model(graph, feeds).compare(tmp_path, *STRICT, "-O1", *verify.SANITIZERS)


def test_a_normalization_of_features(tmp_path: Path) -> None:
    graph = parse(
        "g (float[N,4] x) => (float[N,3] y) {h = BatchNormalization(x, scale, shift, mean, variance) y = Gemm(h, w) }",
        **{name: np.abs(noise(4, seed=seed)) + 0.5 for seed, name in enumerate(("scale", "shift", "mean", "variance"))},
        w=noise(4, 3),
    )
    FoldBatchNorm().apply(Probed(graph))
    feeds = [{"x": noise(1, 4, seed=seed)} for seed in range(3)]
    built = of_model(graph, feeds)
    assert built.network.steps[-1].function == "dense"
    assert built.compare(tmp_path).different == {}


# What it refuses


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Erf(x)", "has no kernel for Erf y: the operator is not known to it"),
        ("y = Pow(x, three)", "has no kernel for Pow y: only the powers 2, 0.5 and -1"),
        ("p = Sin(x)\n y = Relu(p)", "has no kernel for Sin p"),
        (
            "i = ArgMax <axis = 1> (x)\n y = Cast <to = 1> (i)",
            "for ArgMax i: .* take the largest output in the program",
        ),
    ],
)
def test_an_operator_without_a_kernel_is_named(body: str, reason: str) -> None:
    graph = parse(f"g (float[N,8] x) => (float[N,8] y) {{ {body} }}", three=np.array(3, np.float32))
    feeds = [{"x": np.abs(noise(1, 8))} for _ in range(2)]
    with pytest.raises(NoKernel, match=reason):
        case(quantized(graph, feeds, keep_float=lambda _: True), feeds)


def test_it_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    model = proto("g (float[N,16] x) => (float[N,32] y) { p = Gemm(x, w)\n y = Sin(p) }", w=weight(16, 32))
    with pytest.raises(TargetError, match="the c target has no kernel for Sin y"):
        compiled(model, samples(16), tmp_path, None, target="c")


def test_samples_of_several_sizes(tmp_path: Path) -> None:
    del tmp_path
    model = ir.from_proto(residual())
    with pytest.raises(TargetError, match="the c target plans its memory for one size of samples, and these have 2"):
        TARGET.check_sizes({((3, 8, 8),), ((3, 9, 9),)}, model)


def test_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(TargetError, match="CC is 'no-such-compiler', which is not a program: install a C compiler"):
        TARGET.check_present()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TargetError, match="none of cc, gcc and clang is installed"):
        TARGET.check_present()


@pytest.mark.parametrize("name", ["", "1st", "a-b", "ü"])
def test_names_that_c_does_not_take(name: str) -> None:
    with pytest.raises(UsageError, match="give letters, digits and _, a letter first"):
        COptions(name)


def test_a_name_of_a_header_of_the_system() -> None:
    with pytest.raises(UsageError, match=r"the system has a string\.h: give another name, such as string_net"):
        COptions("String")


def test_an_unknown_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "model.onnx", "--target", "c", "--cname", "x"]) == 2
    assert "--c-name" in capsys.readouterr().err


def test_what_differs_is_named_with_its_tensor(tmp_path: Path) -> None:
    built = case(quantized(parse(RESIDUAL, **CONSTANTS), FEEDS), FEEDS)
    name = next(step.value for step in built.network.steps if step.function == "dense")
    built.values[0][name] = built.values[0][name] + np.uint8(1)
    with pytest.raises(VerificationError, match=f"differs from the ONNX file at {name} .dense.: .* integers, by up to"):
        built.compare(tmp_path)


def test_it_is_not_run_by_ptqc(artifact: Artifact) -> None:
    with pytest.raises(TargetError, match="has no native library"):
        ptqc.load(artifact.folder).native()
