"""The command line: every bad input ends with exit code 2 and one message, and leaves nothing behind."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, quick, residual, samples, weight
from onnx import numpy_helper
from PIL import Image

import ptqc
from ptqc.artifact.folder import load
from ptqc.cli import commands
from ptqc.cli import main as cli
from ptqc.errors import PassError, UsageError, VerificationError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, calibration data, damaged copies of both, and an artifact."""
    folder = tmp_path_factory.mktemp("place")
    onnx.save(residual(), folder / "good.onnx")
    content = (folder / "good.onnx").read_bytes()
    (folder / "text.onnx").write_text("This is not a model.\n" * 9)
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "half.onnx").write_bytes(content[: len(content) // 2])
    onnx.save(_with_nan(residual(), "w2"), folder / "nan.onnx")
    _write_calibration(folder)
    _write_labels(folder)
    _write_images(folder)
    (folder / "taken").mkdir()
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.txt").write_text("years of work")
    with quick():
        ptqc.compile(folder / "good.onnx", calibration=folder / "c.npz", output=folder / "art", cache=folder / "cache")
    other = proto("g (float[N,8] x) => (float[N,8] y) { y = Gemm(x, w) }", w=weight(8, 8))
    compiled(other, samples(8), folder / "other")
    return folder


def _with_nan(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        if tensor.name == name:
            array = numpy_helper.to_array(tensor).copy()
            array.flat[3] = np.nan
            tensor.CopyFrom(numpy_helper.from_array(array, name))
    return model


def _write_calibration(folder: Path) -> None:
    x = samples(3, 8, 8)
    infinite = x.copy()
    infinite[5, 0, 0, 0] = np.inf
    np.savez(folder / "c.npz", x=x)
    np.savez(folder / "shape.npz", x=x[:, :, :7])
    np.savez(folder / "dtype.npz", x=x.astype(np.int64))
    np.savez(folder / "name.npz", z=x)
    np.savez(folder / "infinite.npz", x=infinite)
    np.savez(folder / "one.npz", x=x[:1])
    (folder / "junk.npz").write_bytes(b"PK\x03\x04junk")
    (folder / "nothing").mkdir()


def _write_labels(folder: Path) -> None:
    x = samples(3, 8, 8, count=4)
    np.savez(folder / "labelled.npz", x=x, labels=np.arange(4))
    np.savez(folder / "short.npz", x=x, labels=np.arange(3))
    np.savez(folder / "real.npz", x=x, labels=np.ones(4))
    (folder / "endless.json").write_text("[" * 100_000)
    (folder / "names.csv").write_text("image,class\nimages/0.png,cat\n")
    (folder / "heading.csv").write_text("image,class\n")
    (folder / "missing.csv").write_text("images/99.png,1\n")
    (folder / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")


def _write_images(folder: Path) -> None:
    (folder / "images").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
    shutil.copytree(folder / "images", folder / "corrupt")
    damaged = folder / "corrupt" / "2.png"
    damaged.write_bytes(damaged.read_bytes()[:60])


def _compile(model: str = "good.onnx", data: str = "c.npz", *more: str, output: str = "out") -> list[str]:
    return ["compile", model, "--calibration", data, "-o", output, "--cache", "cache", *more]


def _good(*more: str) -> list[str]:
    return _compile("good.onnx", "c.npz", *more)


BAD = {
    "missing model": (_compile("no.onnx"), ["no.onnx", "no such file"]),
    "folder as model": (_compile("images"), ["images", "is a folder"]),
    "text as model": (_compile("text.onnx"), ["text.onnx", "is a text file"]),
    "empty model": (_compile("empty.onnx"), ["empty.onnx", "is empty"]),
    "half a model": (_compile("half.onnx"), ["half.onnx", "cut short"]),
    "nan weights": (_compile("nan.onnx"), ["weight 'w2'", "1 of 4608", "NaN"]),
    "budget too small": (
        _good("--budget", "1%"),
        ["591 bytes", "Try --budget 9%: the smallest file has between 2,900 and about"],
    ),
    "negative budget": (_good("--budget", "-5%"), ["'-5%'", "must be positive"]),
    "negative budget, joined": (_good("--budget=-5%"), ["'-5%'", "must be positive"]),
    "zero budget": (_good("--budget", "0B"), ["'0B'", "must be positive"]),
    "no budget at all": (_good("--budget", "banana"), ["'banana'", "13%"]),
    "wrong shape": (_compile(data="shape.npz"), ["samples[0]", "input 'x'", "(1, 3, 7, 8)", "(N, 3, 8, 8)"]),
    "wrong dtype": (_compile(data="dtype.npz"), ["samples[0]", "input 'x'", "int64", "float32"]),
    "wrong name": (_compile(data="name.npz"), ["name.npz", "'z'", "'x'"]),
    "infinite sample": (_compile(data="infinite.npz"), ["samples[5]", "input 'x'", "infinite"]),
    "one sample": (_compile(data="one.npz"), ["one calibration sample"]),
    "damaged npz": (_compile(data="junk.npz"), ["junk.npz", "not a readable .npz"]),
    "empty folder": (_compile(data="nothing"), ["nothing", "holds no calibration data"]),
    "missing data": (_compile(data="nowhere"), ["'nowhere'", "no such file or folder"]),
    "corrupt image": (_compile(data="corrupt"), ["corrupt/2.png", "cannot decode"]),
    "images as arrays": (
        _good("--resize", "8", "--mean", "0"),
        ["--mean, --resize applies to images", "c.npz holds none"],
    ),
    "bad mean": (_compile("good.onnx", "images", "--mean", "-1,b"), ["'-1,b'", "list of numbers"]),
    "no preprocessing file": (_compile("good.onnx", "images", "--preprocessing", "no.toml"), ["no.toml"]),
    "no calibration": (["compile", "good.onnx", "-o", "out"], ["--calibration DATA", "--calibration synthetic"]),
    "output exists": (_compile(output="taken"), ["taken", "exists", "--force"]),
    "output is a file": ([*_compile(output="c.npz"), "--force"], ["c.npz", "is a file"]),
    "force on a foreign folder": ([*_compile(output="thesis"), "--force"], ["thesis", "was not written by ptqc"]),
    "output in a file": (_compile(output="c.npz/out"), ["c.npz/out", "c.npz is a file"]),
    "unknown observer": (_good("--observer", "magic"), ["observer magic", "auto, minmax, percentile, entropy, mse"]),
    "bits are no numbers": (_good("--bits", "2,x"), ["--bits", "'2,x'", "2,3,4"]),
    "bits are empty": (_good("--bits", ""), ["--bits", "''", "2,3,4"]),
    "bits too wide": (_good("--bits", "4,9"), ["9", "from 2 to 8"]),
    "samples are no number": (_good("--samples", "many"), ["--samples: 'many' is not a whole number"]),
    "one sample asked for": (_good("--samples", "1"), ["samples is 1", "at least 2"]),
    "activation limit nan": (_good("--activation-limit", "nan"), ["activation_limit", "nan"]),
    "negative seed": (_good("--seed", "-1"), ["seed", "-1"]),
    "unknown option": (_good("--turbo"), ["--turbo", "--help"]),
    "misspelled option": (["compile", "good.onnx", "--callibration", "x"], ["did you mean --calibration?"]),
    "old name of bench": (["bench", "out", "--isa", "avx2"], ["unknown option --isa (did you mean --cpu?)"]),
    "old name of eval": (
        ["eval", "m", "--metric", "map", "--data", "x", "--output", "y"],
        ["unknown option --output (did you mean --score-output?)"],
    ),
    "old name of detectors": (_good("--outputs", "boxes=b"), ["(did you mean --detector-outputs?)"]),
    "old name of samples": (["bisect", "out", "--calibration", "x"], ["(did you mean --data?)"]),
    "no value": (_good("--budget"), ["--budget needs a value; `ptqc compile --help`"]),
    "flag with a value": (_good("--strict=yes"), ["--strict takes no value, and 'yes' was given"]),
    "unknown shell": (["completion", "powershell"], ["unknown shell powershell; known: bash, zsh, fish, tcsh"]),
    "misspelled topic": (["help", "budget"], ["unknown topic budget (did you mean budgets?)"]),
    "abbreviated option": (["compile", "good.onnx", "--calib", "x"], ["unknown option --calib (did you mean"]),
    "inspect of nothing": (["inspect", "gone.onnx"], ["gone.onnx: no such file"]),
    "unexpected word": (_good("more"), ["unexpected more; `ptqc compile --help` lists the options"]),
    "numbers apart": (_good("--mean", ".5", ".5"), ["unexpected .5", "stand together, with commas"]),
    "unknown command": (["compress", "good.onnx"], ["compress", "compile"]),
    "option of compile": (
        ["resolve", "out", "-o", "x", "--for", "qnn"],
        ["give --for to `ptqc compile`: `ptqc resolve`"],
    ),
    "misspelled command": (["compil", "good.onnx"], ["compil (did you mean compile?)", "known: inspect, compile"]),
    "no command": ([], ["missing: COMMAND; `ptqc --help` lists the commands"]),
    "no output": (
        ["compile", "good.onnx", "--calibration", "c.npz"],
        ["missing: -o/--output; `ptqc compile --help` lists the options"],
    ),
    "dump into a file": (_good("--dump-passes", "c.npz"), ["c.npz"]),
    "cache is a file": ([*_good(), "--cache", "c.npz"], ["c.npz is a file", "--cache"]),
    "no labels file": (_good("--labels", "no.npz"), ["no.npz", "do not exist"]),
    "labels without labels": (_good("--labels", "c.npz"), ["c.npz", "`labels`"]),
    "too few labels": (_good("--labels", "short.npz"), ["short.npz", "4 samples and 3 labels"]),
    "labels are no integers": (_good("--labels", "real.npz"), ["real.npz", "integer"]),
    "damaged labels": (_good("--labels", "junk.npz"), ["junk.npz", "not a readable .npz"]),
    "labels are words": (_good("--labels", "names.csv"), ["names.csv, line 2", "cat"]),
    "labels are a heading": (_good("--labels", "heading.csv"), ["heading.csv", "image,class number"]),
    "labelled image missing": (_good("--labels", "missing.csv"), ["images/99.png"]),
    "labels are binary": (_good("--labels", "binary.csv"), ["binary.csv", "cannot read the labels"]),
    "resolve of nothing": (
        ["resolve", "nowhere", "-o", "out"],
        ["nowhere", "is not a folder that `ptqc compile` wrote"],
    ),
    "resolve of a foreign folder": (["resolve", "thesis", "-o", "out"], ["thesis", "has no manifest.json"]),
    "resolve from an empty store": (
        ["resolve", "art", "-o", "out", "--cache", "nothing"],
        ["not in the store nothing", "Run `ptqc compile`", "--cache"],
    ),
    "resolve with another model's plan": (
        ["resolve", "art", "-o", "out", "--cache", "cache", "--plan", "other/out/plan.json"],
        ["the plan is for another model", "'w'"],
    ),
    "resolve with no plan": (
        ["resolve", "art", "-o", "out", "--cache", "cache", "--plan", "names.csv"],
        ["cannot read the plan names.csv"],
    ),
    "resolve with an endless plan": (
        ["resolve", "art", "-o", "out", "--cache", "cache", "--plan", "endless.json"],
        ["cannot read the plan endless.json"],
    ),
    "resolve to too little": (
        ["resolve", "art", "-o", "out", "--cache", "cache", "--budget", "100B"],
        ["100 bytes", "the smallest file has", "give --budget"],
    ),
    "resolve to too little time": (
        ["resolve", "art", "-o", "out", "--cache", "cache", "--budget", "1ns"],
        ["budget of 1e-06 ms cannot be met on this machine", "shortest predicted latency", "Slowest: "],
    ),
    "two losses": (
        _good("--budget", "99%same", "--budget", "0.1nat"),
        ["the budgets 99%same and 0.1nat are both of loss, and cannot be joined: give one of them"],
    ),
    "times of nothing": (_good("--budget", "2ms", "--times", "thesis"), ["thesis", "has no manifest.json"]),
    "times that were not recorded": (_good("--budget", "2ms", "--times", "art"), ["art", "no latency budget"]),
    "explain of a foreign folder": (["explain", "thesis"], ["thesis", "has no manifest.json"]),
}


@pytest.mark.parametrize(("arguments", "parts"), BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_bad_input_is_refused_in_one_line(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    parts: Sequence[str],
) -> None:
    monkeypatch.chdir(place)
    before = _tree(place)
    with quick():
        code = cli.main(arguments)
    output, message = capsys.readouterr()
    assert code == 2, message
    assert output == ""
    assert message.startswith("ptqc: ")
    assert message.count("\n") == 1
    assert all(part in message for part in parts), message
    assert _tree(place) == before


def _tree(folder: Path) -> list[str]:
    """Everything in a folder but the entries of the store."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if folder / "cache" not in path.parents)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (_compile("half.onnx"), "cut short"),
        pytest.param(_good("--budget", "-5%"), "must be positive", marks=pytest.mark.slow),
        (_good("--bits", "2,x"), "is not a list of widths"),
    ],
    ids=["model", "budget", "bits"],
)
def test_the_program_itself_says_the_same(place: Path, arguments: list[str], part: str) -> None:
    command = [sys.executable, "-m", "ptqc", *arguments]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place / "out").exists()


def _raiser(error: BaseException) -> Callable[..., None]:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    return fail


def test_control_c_ends_with_130(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("ptqc.passes.analyze.measure", _raiser(KeyboardInterrupt()))
    before = _tree(place)
    assert cli.main(_good()) == 130
    assert "run the same command again" in capsys.readouterr().err
    assert _tree(place) == before


WAITING = """
import signal
import time
import ptqc.passes.analyze
from ptqc.cli import commands, main
from ptqc.utils import parallel

def wait(*given):
    print("begun", flush=True)
    list(parallel.in_order(time.sleep, [600, 600]))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
parallel.processors = lambda: 2
ptqc.passes.analyze.measure = wait
main.run()
"""


def test_control_c_does_not_wait_for_threads(place: Path) -> None:
    command = [sys.executable, "-c", WAITING, *_good()]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        try:
            _, text = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "run the same command again" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("error", [ZeroDivisionError, VerificationError, PassError])
def test_an_internal_fault_ends_with_70_and_keeps_its_trace(
    error: type[Exception],
    tmp_path: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ptqc.passes.analyze.with_splits", _raiser(error("planted")))
    data, model = str(place / "c.npz"), str(place / "good.onnx")
    assert cli.main(_compile(model, data)) == 70
    message = capsys.readouterr().err
    assert f"internal fault: {error.__name__}: planted" in message
    assert "Traceback" not in message
    trace = (tmp_path / "ptqc-fault.txt").read_text()
    assert f"{error.__name__}: planted" in trace
    assert "in fail" in trace
    assert f"ptqc reduce {model} -o small.onnx --data {data} -- compile '{{model}}'" in trace
    assert [path.name for path in tmp_path.iterdir()] == ["ptqc-fault.txt"]


def test_a_fault_is_not_written_through_a_link(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("years of work")
    (tmp_path / "ptqc-fault.txt").symlink_to("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ptqc.tools.inspecting.inspect", _raiser(ZeroDivisionError("planted")))
    assert cli.main(["inspect", f"{place}/\udcff.onnx"]) == 70
    assert "internal fault: ZeroDivisionError" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "years of work"
    assert "\\udcff.onnx" in (tmp_path / "ptqc-fault.txt").read_text()


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "\x1b]0;mine\x07\udcff.onnx"]) == 2
    assert "ptqc: \\x1b]0;mine\\x07\\udcff.onnx: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["mse"], "mse"),
        (["y=logits"], {"y": "logits"}),
        (["a=b=kl", "z=embedding"], {"a=b": "kl", "z": "embedding"}),
    ],
)
def test_how_outputs_are_compared(texts: list[str], expected: str | dict[str, str]) -> None:
    assert commands.kinds_of(texts, "--loss", "output") == expected


def test_one_loss_for_all_and_one_for_an_output() -> None:
    with pytest.raises(
        UsageError, match="--loss mse applies to all outputs; to give several --loss, write OUTPUT=KIND"
    ):
        commands.kinds_of(["y=kl", "mse"], "--loss", "output")


def test_compile_resolve_and_explain(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    out, again = str(tmp_path / "out"), str(tmp_path / "again")
    with quick():
        assert cli.main([*_compile(output=out), "--budget", "25%", "--labels", "labelled.npz"]) == 0
        printed, _ = capsys.readouterr()
        assert cli.main(["resolve", out, "-o", again, "--budget", "20%", "--cache", "cache", "--quiet"]) == 0
    assert "59,172 -> " in printed
    assert f"{out}/model.onnx" in printed
    assert load(out).manifest["results"]["float_score"] is not None
    assert load(again).path.stat().st_size <= 0.20 * 59172
    assert capsys.readouterr() == ("", "")
    assert cli.main(["explain", out]) == 0
    explained = capsys.readouterr().out
    assert all(layer in explained for layer in ("\na ", "\nb ", "\nc ", "\ny ", "integer", "predicted divergence"))
    assert "\ny compared as class scores, softmax over axis 1: same top class in " in explained


def test_lines_are_plain_where_there_is_no_terminal(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    with quick():
        assert cli.main([*_compile(output=str(tmp_path / "out"))]) == 0
    printed = "".join(capsys.readouterr())
    assert "\x1b" not in printed
    assert "\r" not in printed


@pytest.mark.slow
def test_a_folder_of_images_calibrates(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    more = ("--mean", "-0.5,0.4,0.5", "--std", "0.2", "--layout", "NCHW", "--quiet")
    with quick():
        assert cli.main(_compile("good.onnx", "images", *more, output=str(tmp_path / "out"))) == 0
    assert load(tmp_path / "out").manifest["calibration"]["samples"] == 4


def test_results_are_json_where_asked_for(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same head on every document; the quick commands stand for all, which are told by one function."""
    monkeypatch.chdir(place)
    with quick():
        assert cli.main([*_compile(output=str(tmp_path / "out")), "--json"]) == 0
        assert load(tmp_path / "out").manifest == json.loads(capsys.readouterr().out)["manifest"]
        commands = {
            ("explain", "art"): "layers",
            ("verify", "art"): "checks",
            ("passes",): "passes",
            ("cache", "size", "--cache", "cache"): "entries",
            ("doctor", "--cache", "cache"): "findings",
            ("inspect", "good.onnx"): "bytes",
        }
        for words, key in commands.items():
            assert cli.main([*words, "--json"]) == 0
            result = json.loads(capsys.readouterr().out)
            assert (result["schema"], result["command"]) == (1, words[0])
            assert key in result
    assert cli.main(["verify", "art", "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_errors_are_json_as_well(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    for words in (["verify", "nowhere", "--json"], [*_good("--budget", "1%"), "--json"], ["verify", "--json"]):
        assert cli.main(words) == 2
        output, message = capsys.readouterr()
        result = json.loads(output)
        assert (result["schema"], result["command"], result["error"]["exit_code"]) == (1, words[0], 2)
        assert " ".join(result["error"]["message"].split()) == message.removeprefix("ptqc: ").rstrip()


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [(ZeroDivisionError("planted"), "ZeroDivisionError", 70), (KeyboardInterrupt(), "Interrupted", 130),
     (MemoryError(), "Interrupted", 3), (RuntimeError("Failed to allocate memory for a buffer"), "Interrupted", 3),
     (OSError(28, "No space left"), "Interrupted", 3)],
)  # fmt: skip
def test_whatever_ends_a_command_is_json(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    kind: str,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ptqc.artifact.verify.verify", _raiser(raised))
    assert cli.main(["verify", str(place / "art"), "--json"]) == code
    output, message = capsys.readouterr()
    error = json.loads(output)["error"]
    assert (error["kind"], error["exit_code"]) == (kind, code)
    assert message == f"ptqc: {error['message']}\n"


def test_options_from_a_file_are_told(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ptqc.toml").write_text(f'cache = "{place / "cache"}"')
    assert cli.main(["cache", "size"]) == 0
    output, text = capsys.readouterr()
    assert f"in {place / 'cache'}" in output
    assert text == f"ptqc: from {tmp_path}/ptqc.toml: cache\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "ptqc.bash").write_text(capsys.readouterr().out)
    (tmp_path / "net.onnx").touch()

    def completed(*words: str) -> set[str]:
        line = " ".join(f'"{word}"' for word in words)
        script = (
            f"source ptqc.bash; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMPREPLY=(); "
            f'"$(complete -p ptqc | sed "s/.*-F \\([^ ]*\\) .*/\\1/")" ptqc "{words[-1]}" "{words[-2]}" >/dev/null; '
            'printf "%s\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    assert completed("ptqc", "com") == {"compile", "compare", "completion"}
    assert "--calibration" in completed("ptqc", "compile", "--cal")
    assert "net.onnx" in completed("ptqc", "compile", "net")
    assert "letterbox-corner" in completed("ptqc", "compile", "--fit", "letter")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_the_script_for_zsh_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "zsh"]) == 0
    script = tmp_path / "_ptqc"
    script.write_text(capsys.readouterr().out)
    subprocess.run(["zsh", "-n", str(script)], check=True)
    assert "--calibration" in script.read_text()


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_completes_commands_options_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "fish"]) == 0
    (tmp_path / "ptqc.fish").write_text(capsys.readouterr().out)
    (tmp_path / "net.onnx").touch()

    def completed(line: str) -> set[str]:
        command = ["fish", "-c", f'source ptqc.fish; complete -C "{line}"']
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return {one.partition("\t")[0] for one in done.stdout.splitlines()}

    assert completed("ptqc com") == {"compile", "compare", "completion"}
    assert "--calibration" in completed("ptqc compile --cal")
    assert "net.onnx" in completed("ptqc compile net")
    assert "letterbox-corner" in completed("ptqc compile --fit letter")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"ptqc {ptqc.__version__}\n"
