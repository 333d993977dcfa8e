"""Models that a command fails on are made small: from the command line to the files."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import proto, residual, samples
from onnx import TensorProto, helper

import ptqc
from ptqc.cli import main as cli
from ptqc.errors import UsageError
from ptqc.ir import external
from ptqc.tools.reduce import recording
from ptqc.utils import sandbox
from ptqc.utils.sandbox import Ended

# Fails on models with both operators, in another way on those with one of them alone.
CHECK = """
import sys
data = open(sys.argv[1], "rb").read()
sys.exit(7 * (b"Relu" in data) * (b"Mul" in data) or 4 * (b"Mul" in data))
"""
# A compiler that cannot take a sum behind a product.
FAULT = """
import sys

def check(model):
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type == "Add" and "Mul" in map(makers.get, node.input):
            raise ZeroDivisionError("planted")

if "ptqc.cli.main" in sys.orig_argv:
    from ptqc import frontend
    frontend.PROTO_CHECKS = (*frontend.PROTO_CHECKS, check)
"""
GRAPH = "g (float[N,8] x) => (float[N,8] y) { m = Mul(x, x) s = Add(m, x) y = Relu(s) }"
COMMAND = ("check", "{model}")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What trials would say of a residual network: code 7 with a sum and a flattening, 4 with a sum alone."""

    def run(module: str, arguments: Sequence[str], *_limits: float, **_more: object) -> Ended:
        if module == recording.__name__:
            recording.main(Path(arguments[0]))
            return Ended(None, "")
        data = Path(arguments[1]).read_bytes()
        code = 7 * (b"Add" in data) * (b"Flatten" in data) or 4 * (b"Add" in data)
        return Ended(None, "", code, f"planted: {code}\n")

    monkeypatch.setattr(sandbox, "run", run)
    onnx.save(residual(), "m.onnx")


def operators(path: str) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


# In processes


@pytest.mark.long
def test_another_program(capsys: pytest.CaptureFixture[str]) -> None:
    Path("check.py").write_text(CHECK)
    onnx.save(proto(GRAPH), "m.onnx")
    assert cli.main(["reduce", "m.onnx", "-o", "s.onnx", "--", sys.executable, "check.py", "{model}"]) == 0
    assert operators("s.onnx") == ["Mul", "Relu"]
    text = capsys.readouterr().out
    assert "2 of 3 nodes are left after 6 trials" in text
    assert shlex.join([sys.executable, str(Path("check.py").absolute()), "s.onnx"]) in text
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["check.py", "m.onnx", "s.npz", "s.onnx"]


@pytest.mark.slow
def test_a_fault_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("planted").mkdir()
    Path("planted/sitecustomize.py").write_text(FAULT)
    monkeypatch.syspath_prepend(str(Path("planted").resolve()))
    onnx.save(proto(GRAPH), "m.onnx")
    command = ("compile", "{model}", "--calibration", "nowhere.npz", "-o", "out")  # what is sound is refused behind it
    result = ptqc.reduce("m.onnx", output="s.onnx", command=command)
    assert operators("s.onnx") == ["Mul", "Add"]
    assert str(result.failure) == "ends with exit code 70 (ZeroDivisionError)"
    assert result.fails_with == "ptqc compile s.onnx --calibration nowhere.npz -o out"


# The search, the files and the refusals


@pytest.mark.usefixtures("_without_processes")
def test_only_the_same_failure_counts() -> None:
    assert ptqc.reduce("m.onnx", output="s.onnx", command=COMMAND).nodes == 2
    assert operators("s.onnx") == ["Add", "Flatten"]


@pytest.mark.usefixtures("_without_processes")
def test_an_output_of_maps_is_cut_as_a_tensor() -> None:
    model = onnx.load("m.onnx")
    model.graph.node[-1].output[0] = "scores"
    model.graph.node.append(
        helper.make_node("ZipMap", ["scores"], ["y"], domain="ai.onnx.ml", classlabels_int64s=range(10))
    )
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    one = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    model.graph.output[0].CopyFrom(helper.make_value_info("y", helper.make_sequence_type_proto(one)))
    onnx.save(model, "m.onnx")
    assert ptqc.reduce("m.onnx", output="s.onnx", command=COMMAND).nodes == 2


@pytest.mark.usefixtures("_without_processes")
def test_the_samples_fit_what_is_left() -> None:
    result = ptqc.reduce("m.onnx", output="s.onnx", command=COMMAND, data=samples(3, 8, 8, count=5))
    inputs = [value.name for value in onnx.load(result.model).graph.input]
    with np.load(result.data) as values:
        assert sorted(values) == sorted(inputs) != ["x"]
        assert {len(array) for array in values.values()} == {5}


@pytest.mark.usefixtures("_without_processes")
def test_a_message_says_which_failure_is_meant() -> None:
    ptqc.reduce("m.onnx", output="s.onnx", command=COMMAND, message="planted: [47]")
    assert operators("s.onnx") == ["Add", "Flatten"]  # the exit code still counts
    with pytest.raises(UsageError, match="does not fail on the model with a message that matches 'planted: 5'"):
        ptqc.reduce("m.onnx", output="t.onnx", command=COMMAND, message="planted: 5")


@pytest.mark.usefixtures("_without_processes")
def test_a_time_limit_takes_the_smallest_so_far() -> None:
    result = ptqc.reduce("m.onnx", output="s.onnx", command=COMMAND, time_limit=1e-9)
    assert (result.nodes, result.trials, len(operators("s.onnx"))) == (10, 1, 10)


@pytest.mark.usefixtures("_without_processes")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--", "false"], "the command 'false' does not say where the model goes: write {model}"),
        (["--message", "(", "--", "false", "{model}"], "the message '(' is not a regular expression"),
        (["--data", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_what_cannot_be_reduced_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert cli.main(["reduce", "m.onnx", "-o", "s.onnx", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("s.onnx").exists()


def ends_with(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "run", lambda *_given, **_named: Ended(None, "", code))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (0, "nothing to reduce: `ptqc compile model.onnx --calibration data.npz -o out --cache cache` does not fail"),
        (2, "say with --message which words"),
    ],
)
def test_what_is_no_failure_is_refused(code: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(residual(), "m.onnx")
    ends_with(code, monkeypatch)
    with pytest.raises(UsageError, match=message):
        ptqc.reduce("m.onnx", output="s.onnx")


@pytest.mark.parametrize(
    ("output", "message"),
    [("m.onnx", "m.onnx exists"), ("s.pb", "path of an .onnx file"), ("nowhere/s.onnx", "in a folder that exists")],
)
def test_nothing_is_written_over(output: str, message: str) -> None:
    onnx.save(residual(), "m.onnx")
    with pytest.raises(UsageError, match=message):
        ptqc.reduce("m.onnx", output=output, command=COMMAND)


@pytest.mark.usefixtures("_without_processes")
@pytest.mark.parametrize("beside", [False, True])
def test_a_model_that_is_left_in_its_files(beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large for memory, and for one message."""
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 1000)
    monkeypatch.setattr(external, "MESSAGE_LIMIT", 1000)
    monkeypatch.setattr(external, "SMALL", 256)
    monkeypatch.setattr(external, "SMALL", 256)
    monkeypatch.setattr(external, "SMALL", 256)
    onnx.save(residual(), "whole.onnx", save_as_external_data=beside, location="whole.data", size_threshold=0)
    assert ptqc.reduce("whole.onnx", output="s.onnx", command=COMMAND).nodes == 2
    assert operators("s.onnx") == ["Add", "Flatten"]
