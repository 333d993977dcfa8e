"""Options from a file: which file, which option wins, and what is wrong with a file that ptqc does not understand."""

from pathlib import Path

import pytest

from ptqc.calibration.texts import Texts
from ptqc.cli.commands import data_of
from ptqc.cli.main import main
from ptqc.cli.parser import parse
from ptqc.errors import UsageError

COMPILE = ("compile", "net.onnx")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "images").mkdir()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path


def write(place: Path, content: str, name: str = "ptqc.toml") -> None:
    (place / name).write_text(content)


def test_options_of_the_nearest_file(place: Path) -> None:
    write(
        place,
        """
        cache = "store"
        resize = 256
        [compile]
        budget = ["13%", "2ms"]
        calibration = "images"
        output = "out"
        samples = 64
        time-limit = "5m"
        mean = [0.485, 0.456, 0.406]
        bits = "3,4"
        strict = true
        inline = false
        [compare]
        threads = 2
        """,
    )
    options = parse(COMPILE)
    assert options.budget == ["13%", "2ms"]
    assert options.calibration == str(place / "images")
    assert options.output == str(place / "out")
    assert options.cache == str(place / "store")
    assert (options.samples, options.time_limit, options.bits) == (64, 300.0, (3, 4))
    assert (options.mean, options.resize) == ("0.485,0.456,0.406", "256")
    assert (options.strict, options.inline) == (True, False)
    origin, _, names = options.used.partition("ptqc.toml: ")
    assert origin == f"from {place}/"
    assert names.startswith("cache, resize, budget")
    compared = parse(("compare", "a.onnx", "b.onnx"))
    assert (compared.threads, compared.resize, compared.samples) == (2, "256", None)
    assert parse(("passes",)).used == ""


def test_a_url_is_no_path(place: Path) -> None:
    write(place, 'cache = "s3://bucket/ptqc"\nexecutor = "ray://10.0.0.1:10001"\nworkers = 8')
    options = parse((*COMPILE, "-o", "out"))
    assert (options.cache, options.executor, options.workers) == ("s3://bucket/ptqc", "ray://10.0.0.1:10001", 8)


def test_the_command_line_comes_first(place: Path) -> None:
    write(place, 'compile.budget = ["13%"]\ncompile.samples = 64\ncompile.output = "out"\ncompile.inline = true')
    options = parse((*COMPILE, "--budget", "9%", "--budget", "1ms", "--samples", "8", "-o", "here", "--no-inline"))
    assert (options.budget, options.samples, options.output) == (["9%", "1ms"], 8, "here")
    assert options.inline is False


def test_options_of_texts_for_commands_that_have_texts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(place, 'tokenizer = "tokenizer.json"\nlength = 32\n[compile]\ncalibration = "corpus.txt"\n')
    assert main(["compare", "gone.onnx", "gone.onnx"]) == 2
    assert "gone.onnx" in capsys.readouterr().err
    write(place, 'length = 32\n[compile]\ntokenizer = "tokenizer.json"\n')
    assert main(["compare", "gone.onnx", "gone.onnx"]) == 2
    assert "gone.onnx" in capsys.readouterr().err.splitlines()[-1]
    assert main(["compare", "gone.onnx", "gone.onnx", "--padding", "full"]) == 2
    assert "--padding applies to text only: give its --tokenizer, too" in capsys.readouterr().err


def test_a_tokenizer_makes_texts_of_texts_alone(place: Path) -> None:
    write(place, 'tokenizer = "tokenizer.json"\nlength = 9')
    for folder, names in {"arrays": ["a.npz", "README.txt"], "texts": ["a.txt", "b.txt", "cover.png"]}.items():
        (place / folder).mkdir()
        for name in names:
            (place / folder / name).touch()
    for name in ("x.npz", "x.NPY", "corpus.md", "corpus.txt"):
        (place / name).touch()

    def taken(value: str, *more: str) -> object:
        return data_of(parse((*COMPILE, "-o", "out", "--calibration", value, *more)))

    for value in (*(str(place / name) for name in ("images", "arrays", "x.npz", "x.NPY")), "synthetic", "module:name"):
        assert taken(value) == value
    for name in ("texts", "corpus.md", "corpus.txt", "missing.txt"):
        assert taken(str(place / name)) == Texts(str(place / name), str(place / "tokenizer.json"), length=9)
    with pytest.raises(UsageError, match="--padding applies to text only, and the data are none"):
        taken(str(place / "x.npz"), "--padding", "full")


def test_names_of_data_that_are_no_files_stay(place: Path) -> None:
    write(place, 'compile.calibration = "synthetic"\ncompile.output = "out"')
    assert parse(COMPILE).calibration == "synthetic"


def test_a_project_file(place: Path) -> None:
    write(place, '[tool.ptqc.compile]\noutput = "out"', "pyproject.toml")
    assert parse(COMPILE).output == str(place / "out")
    write(place, 'compile.output = "nearer"')
    assert parse(COMPILE).output == str(place / "nearer")


def test_project_files_of_others_are_left_alone(place: Path) -> None:
    write(place, '[tool.other]\nname = "x"', "pyproject.toml")
    for content in ("this is no TOML", "tool = 3"):
        write(place / "below", content, "pyproject.toml")
        assert parse((*COMPILE, "-o", "out")).used == ""


def test_quiet_says_nothing(place: Path) -> None:
    write(place, 'compile.output = "out"')
    assert parse((*COMPILE, "--quiet")).used == ""


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("budget = ", ["cannot read", "ptqc.toml"]),
        ("budget = " + "[" * 10_000, ["cannot read", "ptqc.toml"]),
        ("[compil]\nsamples = 8", ["unknown command in", "compil (did you mean compile?)"]),
        ("[compile]\nsampels = 8", ["unknown option of compile in", "sampels (did you mean samples?)"]),
        ("thread = 8", ["unknown option in", "thread (did you mean threads?)"]),
        ("compile.model = 'x'", ["unknown option of compile in", "model"]),
        ("compile.samples = 'many'", ["ptqc.toml: samples: 'many' is not a whole number"]),
        ("compile.samples = [[1]]", ["samples: '[1]' is not a whole number"]),
        (
            "compile.samples = true",
            ["samples is True", "expected a text or a number: use at most this many calibration samples"],
        ),
        ("compile.strict = 1", ["strict is 1", "true or false"]),
        ("compile.bits = 'x'", ["bits: 'x' is not a list of widths such as 2,3,4"]),
        ("compile.budget = [true]", ["budget is True", "expected a text or a number"]),
    ],
)
def test_a_file_that_is_wrong(place: Path, content: str, parts: list[str]) -> None:
    write(place, content)
    with pytest.raises(UsageError) as caught:
        parse((*COMPILE, "-o", "out"))
    message = str(caught.value)
    assert all(part in message for part in parts), message
