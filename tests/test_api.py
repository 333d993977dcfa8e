"""The API as Python applications meet it: its names, its types, what it takes, and what it says of a mistake."""

import inspect
import logging
import pydoc
import re
import subprocess
import sys
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import compiled, kept_budgets, proto, quick, samples, weight

import ptqc
from ptqc.codegen import targets
from ptqc.errors import ModelError, PtqcError, UsageError
from ptqc.frontend.in_memory import read_source
from ptqc.options import CompileOptions, Keywords, Phase
from ptqc.utils.logs import CHATTY, quiet_libraries
from ptqc.utils.store import file_digest

ROOT = Path(__file__).resolve().parent.parent
GRAPH = "g (float[N,16] x) => (float[N,32] y) { y = Gemm(x, w) }"


def network() -> onnx.ModelProto:
    return proto(GRAPH, w=weight(16, 32))


def test_the_names_of_the_api_are_shown() -> None:
    assert set(ptqc.__all__) <= set(dir(ptqc))
    assert all(getattr(ptqc, name) is not None for name in ptqc.__all__)


def test_types_and_fields_of_the_options_are_the_same() -> None:
    assert typing.get_type_hints(Keywords) == typing.get_type_hints(CompileOptions)
    of_targets = [typing.get_type_hints(targets.options_of(name)) for name in targets.names()]
    expected = {name: hint for hints in of_targets for name, hint in hints.items()}
    assert typing.get_type_hints(targets.TargetKeywords) == expected


def test_signatures_list_every_option_by_name_with_its_default() -> None:
    parameters = inspect.signature(ptqc.compile).parameters
    options = {option.name: option.default for option in fields(CompileOptions)}
    assert options.items() <= {name: one.default for name, one in parameters.items()}.items()
    assert set(typing.get_type_hints(targets.TargetKeywords)) <= set(parameters)
    fitting = set(CompileOptions.names(Phase.FIT))
    assert fitting == set(options) & set(inspect.signature(ptqc.resolve).parameters)
    assert all(one.kind is not one.VAR_KEYWORD for one in parameters.values())


SECTIONS = ["Args", "Returns", "Raises", "Example"]


def test_help_fits_a_terminal() -> None:
    functions = [getattr(ptqc, name) for name in ptqc.__all__ if inspect.isfunction(getattr(ptqc, name))]
    text = pydoc.plain(pydoc.render_doc(ptqc.compile))
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "progress: Progress = SILENT," in text
    for option in fields(CompileOptions):
        assert f"\n        {option.name}: {option.metadata['help'][:20]}" in text
    for function in functions:
        assert [line for line in (inspect.getdoc(function) or "").splitlines() if len(line) > 76] == []
        assert re.findall(r"^ {4}([A-Z]\w+):$", function.__doc__ or "", re.MULTILINE) == SECTIONS, function
        documented = re.findall(r"^ {8}(?:\*{0,2})(\w+): ", function.__doc__ or "", re.MULTILINE)
        assert set(inspect.signature(function).parameters) <= set(documented), function


def test_helpers_are_there_after_a_plain_import_which_stays_light() -> None:
    code = (
        "import sys, ptqc\n"
        "assert not {'onnxruntime', 'onnx_ir', 'numpy'} & set(sys.modules)\n"
        "print(ptqc.errors.Infeasible, ptqc.Texts, ptqc.Preprocessing, ptqc.Progress, ptqc.Metric)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_type_checker_finds_what_is_misspelled() -> None:
    command = [sys.executable, "-m", "mypy", str(ROOT / "tests" / "typed_use.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# Models in memory


def test_a_model_in_memory_gives_the_file_that_its_file_gives(tmp_path: Path) -> None:
    model = network()
    onnx.save(model, tmp_path / "model.onnx")
    result = []
    models: list[Path | onnx.ModelProto | ir.Model] = [tmp_path / "model.onnx", model, ir.from_proto(model)]
    for number, value in enumerate(models):
        with quick():
            place = tmp_path / "new" / str(number)
            result.append(ptqc.compile(value, calibration=samples(16), output=place, cache=tmp_path / "c", budget=0.5))
    files = [artifact.path.read_bytes() for artifact in result]
    assert files[0] == files[1] == files[2]
    sources = [artifact.manifest["source"] for artifact in result]
    assert [source["given"] for source in sources] == ["file", "onnx.ModelProto", "onnx_ir.Model"]
    assert sources[0]["sha256"] == sources[1]["sha256"] == file_digest(tmp_path / "model.onnx")
    assert sources[1]["bytes"] == len(model.SerializeToString())
    assert kept_budgets(result[0]) == {"size": True}


def test_external_data_of_a_model_in_memory_are_written_with_it(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "copy").mkdir()
    result = read_source(ir.load(tmp_path / "m.onnx"), tmp_path / "copy")
    assert result.size > 16 * 32 * 4
    stored = result.model.graph.initializers["w"].const_value
    assert stored is not None
    np.testing.assert_array_equal(stored.numpy(), weight(16, 32))
    with pytest.raises(UsageError, match="without its external data: give the path of its file"):
        read_source(onnx.load(tmp_path / "m.onnx", load_external_data=False), tmp_path / "copy")


def test_what_is_wrong_with_a_model_in_memory_is_told_without_a_path(tmp_path: Path) -> None:
    model = proto("g (float[N,16] x) => (float[N,32] y) { y = Gemm(x, v) }", w=weight(16, 32))
    with pytest.raises(ModelError, match=r"the onnx\.ModelProto: .*'v'") as error:
        read_source(model, tmp_path)
    assert str(tmp_path) not in str(error.value)


# Mistakes

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a model": ({"model": 3}, "model is 3; give the path of an .onnx file, its bytes, an onnx.ModelProto, an onnx_ir"),
    "no path": ({"model": ""}, "model is ''; give a path"),
    "an output": ({"output": None}, "output is None; give a path"),
    "a cache": ({"cache": 3.5}, "cache is 3.5; give a path"),
    "labels": ({"labels": [1, 2]}, r"labels is \[1, 2\], which holds no samples"),
    "a budget": (
        {"budget": 13.0},
        r"budget 13.0 is neither a fraction of the model's size \(0.13\) nor a number of bytes",
    ),
    "a misspelled option": ({"sampels": 64}, r"unknown option sampels \(did you mean samples\?\); known: samples, obs"),
    "a misspelled parameter": (
        {"buget": "13%"},
        r"unknown option buget \(did you mean budget\?\); known: samples, .*, budget, ",
    ),
    "a parameter in the plural": (
        {"budgets": "13%"},
        r"options? budgets \(did you mean budget\?\); known: .*, budget, ",
    ),
    "samples": ({"samples": "64"}, "samples is '64'; give a whole number"),
    "bits": ({"bits": 8}, r"bits is 8; give widths, as in \(2, 4, 8\)"),
    "a flag": ({"allow_8bit": "no"}, "allow_8bit is 'no'; give True or False"),
    "a number": ({"time_limit": "5m"}, "time_limit is '5m'; give a number"),
    "an instruction set": ({"target": "cpu", "cpu": 3}, "cpu is 3; give names of instruction sets"),
    "preprocessing": ({"preprocessing": {"mean": 0}}, "preprocessing is {'mean': 0}; give a Preprocessing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_argument_of_the_wrong_kind_is_told(case: str, tmp_path: Path) -> None:
    value, message = WRONG[case]
    settings = {"model": network(), "output": tmp_path / "out", "calibration": samples(16), "cache": tmp_path, **value}
    with pytest.raises(UsageError, match=message):
        ptqc.compile(settings.pop("model"), **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("calibration", [3, object(), b"x", {"y": 3}])
def test_calibration_data_of_the_wrong_kind_are_told(calibration: object, tmp_path: Path) -> None:
    with pytest.raises(PtqcError) as error:
        ptqc.compile(network(), calibration=calibration, output=tmp_path / "out", cache=tmp_path)
    assert error.value.exit_code == 2


# Logs


def test_what_libraries_tell_stays_out_of_the_applications_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ptqc.verify(compiled(network(), samples(16), tmp_path).folder)
    assert caplog.records == []
    assert CHATTY.level == logging.NOTSET


def test_a_level_that_the_application_set_stays() -> None:
    CHATTY.setLevel(logging.DEBUG)
    try:
        with quiet_libraries(), quiet_libraries():
            assert CHATTY.level == logging.DEBUG
        assert CHATTY.level == logging.DEBUG
    finally:
        CHATTY.setLevel(logging.NOTSET)
