"""The options of every command: what each means, in the words of `--help`."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from ptqc import presets
from ptqc.cli import commands
from ptqc.cli.commands import DETECTOR, PREPROCESSING, TEXTS, flag, target_options
from ptqc.cli.config_file import Commands, Configuration, Each
from ptqc.cli.help import HelpGroup, Parser, real, whole
from ptqc.cli.topics import TOPICS
from ptqc.errors import UsageError
from ptqc.options import CompileOptions, Phase, possible_values
from ptqc.utils.arguments import meant, unknown
from ptqc.utils.deadline import parse_seconds
from ptqc.utils.version import __version__

SHELLS = ("bash", "zsh", "fish", "tcsh")
TIME: Mapping[str, Any] = {"type": parse_seconds, "metavar": "TIME"}
# Names that are taken for others, where neither is an option of the command.
MISTAKEN = {
    "--isa": "--cpu",
    "--outputs": "--detector-outputs",
    "--output": "--score-output",
    "--calibration": "--data",
    "--data": "--calibration",
}


def parse(words: Sequence[str], namespace: argparse.Namespace | None = None) -> argparse.Namespace:
    """The command and its options; what the words leave out is taken from the nearest configuration file.

    Of what it returns, `run` is the function that runs the command, `used` says what was taken from the file, and
    `configured` has the names of those options. Raises UsageError for words and files that are wrong.
    """
    parser, known = parsers()
    command = words[0] if words else ""
    if command and not command.startswith("-") and command not in known:
        raise unknown("command", [command], known)
    used, configured = "", frozenset[str]()
    if command in known:
        if command == "resolve":
            _check_of_compile(words[1:], known)
        _check_options(words[1:], known[command])
        used, configured = _configure(command, known)
    options, unexpected = parser.parse_known_args(words, namespace)
    if unexpected:
        known[command].error(f"unrecognized arguments: {' '.join(unexpected)}")
    options.used = "" if getattr(options, "quiet", False) else used
    options.configured = configured
    return options


def _configure(command: str, known: Commands) -> tuple[str, frozenset[str]]:
    """Take defaults of the command from the nearest configuration file; what to print of them, and their names."""
    configuration = Configuration.find(Path.cwd(), known)
    used = configuration.apply(command, known[command]) if configuration else ()
    message = f"from {configuration.path}: {', '.join(used)}" if configuration and used else ""
    return message, frozenset(name.replace("-", "_") for name in used)


def _stated(words: Sequence[str]) -> list[str]:
    """The options among some words."""
    return [word.partition("=")[0] for word in words if re.match("--[a-z]", word)]


def _check_of_compile(words: Sequence[str], known: Commands) -> None:
    """Raises UsageError for options of compile that resolve lacks."""
    lacked = known["compile"]._option_string_actions.keys() - known["resolve"]._option_string_actions.keys()
    if stated := [name for name in _stated(words) if name in lacked and name not in MISTAKEN]:
        raise UsageError(f"give {', '.join(stated)} to `ptqc compile`: `ptqc resolve` keeps what was compiled")


def _check_options(words: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raises UsageError for options that the command lacks, before others are missed."""
    options = list(parser._option_string_actions)  # argparse has no public list of them
    if missing := [name for name in _stated(words) if name not in options]:
        likely = [MISTAKEN.get(name, name) for name in missing]
        message = f"unknown option {', '.join(missing)}{meant(likely, options)}"
        raise UsageError(f"{message}; `{parser.prog} --help` lists the options")


def parsers() -> tuple[argparse.ArgumentParser, Commands]:
    """The parser of all commands, and that of each."""
    parser = _Ptqc(prog="ptqc", description="Post-training quantization compiler for ONNX models.")
    parser.add(HelpGroup.OUTPUT, "--version", action="version", version=f"ptqc {__version__}", help="show the version")
    parser.add_help_options()
    added = parser.add_subparsers(required=True, metavar="COMMAND", dest="name", parser_class=Parser)
    for name, command in COMMANDS.items():
        summary = f"{command.summary[0].upper()}{command.summary[1:]}."
        one = added.add_parser(
            name, help=command.summary, description=summary, common=command.common, examples=command.examples
        )
        command.add(one)
        if name not in ("completion", "help"):
            text = "print the result, or the error, as one JSON document for programs"
            one.add(HelpGroup.OUTPUT, "--json", action="store_true", help=text)
        one.add_help_options()
    return parser, added.choices


class _Ptqc(Parser):
    """The parser of all commands, which its help lists in groups."""

    lists = "commands"

    def help_text(self, *, is_short: bool = False) -> str:
        """What each command does."""
        del is_short
        lines = ["usage: ptqc COMMAND [options]", "", str(self.description)]
        for title in dict.fromkeys(command.title for command in COMMANDS.values()):
            lines += ["", f"{title}:"]
            lines += [f"  {name:<11} {one.summary}" for name, one in COMMANDS.items() if one.title == title]
        lines += ["", "example:", "  ptqc compile model.onnx --budget 13% --calibration images/ -o out/", ""]
        lines += [
            "`ptqc COMMAND -h` shows the options that are used most, `ptqc COMMAND --help` all, and `ptqc help` lists",
            "topics such as budgets. A project can keep its options in ptqc.toml, or in [tool.ptqc] of pyproject.toml.",
        ]
        return "\n".join([*lines, ""])


def _add_compile(parser: Parser) -> None:
    _add_model(parser)
    parser.add(
        HelpGroup.DATA,
        "--calibration",
        metavar="DATA",
        help="a few hundred unlabelled samples: a folder of images, an .npz (one array per input) or .npy file, "
        "a folder of those, text with its --tokenizer, module:function, or the word synthetic: ptqc then "
        "generates samples, which costs accuracy",
    )
    _add_common(parser)
    for option in fields(CompileOptions):
        if option.metadata["phase"] < Phase.FIT:
            _add_option(parser, option)
    parser.add(
        HelpGroup.LIMITS,
        "--times",
        metavar="DIR",
        help="for a latency budget, reuse the operator times that this artifact recorded instead of measuring them",
    )
    parser.add(
        HelpGroup.RUNNING,
        "--executor",
        metavar="WHERE",
        help="where weights are quantized: threads, processes (of this machine), ray (a Ray cluster that ptqc starts "
        "on this machine) or ray://HOST:PORT (a running cluster); the result is the same",
        default_text="threads",
        values=_executors,
    )
    parser.add(
        HelpGroup.RUNNING,
        "--workers",
        type=whole,
        metavar="N",
        help="how many weights to quantize at a time",
        default_text="one per processor",
    )
    text = "write the result of every pass to a folder: models as text, everything else as JSON"
    parser.add(HelpGroup.OUTPUT, "--dump-passes", metavar="DIR", help=text)
    _add_data_options(parser)
    _add_detector(parser)
    parser.set_defaults(run=commands.run_compile)


def _executors() -> Sequence[str]:
    from ptqc.utils.executors.registry import EXECUTORS

    return [*EXECUTORS, "ray://HOST:PORT"]


def _add_resolve(parser: Parser) -> None:
    _add_folder(parser)
    _add_common(parser, "as compiled")
    text = "use the decisions of this plan.json instead of solving"
    parser.add(HelpGroup.LIMITS, "--plan", metavar="FILE", help=text)
    _add_data(
        parser,
        "samples on which to judge a loss budget, if the compile set none aside; given as for compile. Samples on "
        "which the compile measured are left out",
    )
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_resolve)


def _add_sweep(parser: Parser) -> None:
    parser.add(
        HelpGroup.ARGUMENTS,
        "folder",
        metavar="FOLDER",
        help="a folder that `ptqc compile` wrote; sweep.json and the plot are added to it",
    )
    text = "number of sizes, from the smallest to the best file"
    parser.add(HelpGroup.LIMITS, "--points", type=whole, metavar="N", help=text, default_text="10")
    text = "build these sizes instead, for example 25%,13%,9%"
    parser.add(HelpGroup.LIMITS, "--budgets", metavar="SIZE,…", help=text)
    _add_cache_option(parser)
    parser.add(HelpGroup.LIMITS, "--time-limit", **TIME, help="90s, 5m or 1h: begin no further size after this time")
    _add_quiet(parser)
    parser.set_defaults(run=commands.run_sweep)


def _add_cache(parser: Parser) -> None:
    parser.add(
        HelpGroup.ARGUMENTS,
        "action",
        metavar="ACTION",
        type=partial(_among, "action", ("size", "clear")),
        help="size: report its size; clear: remove everything that no running compile uses",
        values=lambda: ("size", "clear"),
    )
    _add_cache_option(parser)
    parser.set_defaults(run=commands.run_cache)


def _among(what: str, known: Sequence[str], text: str) -> str:
    """A value that is one of the known ones, for argparse."""
    if text not in known:
        raise argparse.ArgumentTypeError(str(unknown(what, [text], known)))
    return text


def _add_verify(parser: Parser) -> None:
    _add_folder(parser)
    text = "the float model, to check that the artifact was compiled from it"
    parser.add(HelpGroup.DATA, "--model", metavar="FILE", help=text)
    _add_onnx_only(parser)
    _add_runtime(parser, "run the golden samples in this runtime too, on what was built for it; may be repeated")
    _add_quiet(parser)
    parser.set_defaults(run=commands.run_verify)


def _add_runtime(parser: Parser, text: str) -> None:
    parser.add(
        HelpGroup.RUNNING, "--runtime", action="append", default=[], metavar="NAME", help=text, values=_foreign_runtimes
    )


def _foreign_runtimes() -> Sequence[str]:
    from ptqc.runtime.foreign import MODULES

    return list(MODULES)


def _add_onnx_only(parser: Parser) -> None:
    text = "use only the ONNX file, not the native library"
    parser.add(HelpGroup.RUNNING, "--onnx-only", action="store_true", help=text)


def _add_bisect(parser: Parser) -> None:
    text = "a folder that `ptqc compile --target cpu` or `--target cuda` wrote"
    parser.add(HelpGroup.ARGUMENTS, "folder", metavar="FOLDER", help=text)
    _add_data(parser, "samples to run, given as for compile, in addition to extreme, zero and random inputs")
    _add_samples(parser, "use at most this many samples", "8")
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_bisect)


def _add_data(parser: Parser, text: str, default_text: str = "", *, is_required: bool = False) -> None:
    parser.add(HelpGroup.DATA, "--data", metavar="DATA", help=text, default_text=default_text, required=is_required)


def _add_samples(parser: Parser, text: str, default_text: str) -> None:
    parser.add(HelpGroup.DATA, "--samples", type=whole, metavar="N", help=text, default_text=default_text)


def _add_threads(parser: Parser, default_text: str, text: str = "threads per run") -> None:
    parser.add(HelpGroup.RUNNING, "--threads", type=whole, metavar="N", help=text, default_text=default_text)


def _add_quiet(parser: Parser, text: str = "print nothing but errors") -> None:
    parser.add(HelpGroup.OUTPUT, "-q", "--quiet", action="store_true", help=text)


def _add_cache_option(parser: Parser) -> None:
    parser.add(
        HelpGroup.RUNNING,
        "--cache",
        metavar="DIR",
        help="where measurements are kept: a folder, or a URL such as s3://BUCKET/FOLDER",
        default_text="$PTQC_CACHE, else ~/.cache/ptqc",
    )


def _add_compare(parser: Parser) -> None:
    _add_models(parser, "all are compared with the first")
    _add_data(parser, "samples to run, given as for compile", "an artifact's golden samples, or synthetic ones")
    _add_samples(parser, "use at most this many samples", "256; 16 with --runtime or without data")
    _add_threads(parser, "1")
    _add_runtime(parser, "run artifacts in this runtime too, on what was built for it; may be repeated")
    _add_quiet(parser, "print the result alone, without progress")
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_compare)


def _add_models(parser: Parser, text: str) -> None:
    parser.add(
        HelpGroup.ARGUMENTS,
        "models",
        nargs="+",
        metavar="MODEL",
        help=f"ONNX files, and folders that `ptqc compile` wrote; {text}",
    )


def _metrics() -> Sequence[str]:
    from ptqc.tools.evaluating.own import known_metrics

    return [*known_metrics(), "MODULE:FUNCTION"]


def _add_eval(parser: Parser) -> None:
    _add_models(parser, "scores are compared with that of the first")
    parser.add(
        HelpGroup.DATA,
        "--metric",
        required=True,
        metavar="METRIC",
        help="top-1 or top-5 (classes), map or map-50 (detectors), mean-iou (masks), cross-entropy or "
        "perplexity (next tokens), similarity (Spearman, of pairs), cosine, psnr (both compare with the first model if "
        "there are no labels), word-errors, or module:function, called with outputs and label",
        values=_metrics,
    )
    _add_data(
        parser,
        "samples as for compile, with labels: an .npz with `labels`, a folder of those, one folder of images per "
        "class, a CSV with lines image,class-number, or with --tokenizer a .tsv of texts and labels; for perplexity, "
        "a text file is enough; for map, a folder of images with their boxes as YOLO or COCO writes them",
        is_required=True,
    )
    parser.add(
        HelpGroup.DATA,
        "--labels",
        metavar="FILE",
        help="the labels, if they are not with the data: an .npz with `labels`, an .npy, or a CSV with lines "
        "image,class-number of images in the folder of --data, or a folder of masks of the same names; for map, a "
        "folder of YOLO's text files, or COCO's JSON file",
    )
    text = "the output of the model that is scored"
    parser.add(HelpGroup.DATA, "--score-output", metavar="NAME", help=text, default_text="the first")
    text = "end with exit code 2 where a score is worse than the first by more than N, in the unit of the metric"
    parser.add(HelpGroup.LIMITS, "--max-drop", type=real, metavar="N", help=text)
    _add_samples(parser, "use at most this many labels, evenly spread", "all")
    _add_threads(parser, "all processors")
    _add_quiet(parser, "print the result alone, without progress")
    _add_data_options(parser)
    _add_detector(parser)
    parser.set_defaults(run=commands.run_eval)


def _add_reduce(parser: Parser) -> None:
    parser.usage = f"{parser.prog} MODEL -o FILE [options] [-- COMMAND]"
    parser.epilog = (
        "COMMAND is a command of ptqc, or another program. Write {model} for the file and {data} for samples of its "
        "inputs. Default: compile {model} --calibration {data} -o out --cache cache. It runs in a folder of its own."
    )
    _add_model(parser)
    text = "the .onnx file to write; an .npz is written beside it"
    parser.add(HelpGroup.OUTPUT, "-o", "--output", required=True, metavar="FILE", help=text)
    text = "count only failures whose message matches this regular expression"
    parser.add(HelpGroup.LIMITS, "--message", metavar="REGEX", help=text)
    _add_data(parser, "samples, given as for compile", "synthetic ones")
    text = "90s, 5m or 1h: after this time, keep the smallest so far"
    parser.add(HelpGroup.LIMITS, "--time-limit", **TIME, help=text)
    _add_quiet(parser)
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_reduce)


def _add_common(parser: Parser, defaults: str = "") -> None:
    """Add what `compile` and `resolve` share. defaults: what to say of those of options that `resolve` takes."""
    parser.add(HelpGroup.OUTPUT, "-o", "--output", required=True, metavar="DIR", help="the folder to write")
    parser.add(
        HelpGroup.LIMITS,
        "--budget",
        action=Each,
        metavar="LIMIT",
        help="13%, 4.5MB, 2ms, 60MBram, 99%same …; repeat for several; see `ptqc help budgets`",
    )
    _add_targets(parser, defaults)
    for option in fields(CompileOptions):
        if option.metadata["phase"] >= Phase.FIT:
            _add_option(parser, option, "" if option.name == "time_limit" else defaults)
    parser.add(
        HelpGroup.DATA,
        "--labels",
        metavar="DATA",
        help="labelled samples, to report a score and for a drop budget: for top-1 accuracy an .npz with the inputs "
        "and `labels`, a CSV with lines image,class-number (images beside the CSV or in the folder of --calibration), "
        "or with a tokenizer a .tsv with lines text, tab, class-number; for the mean IoU of masks a folder with the "
        "folders images and masks, or an .npz whose `labels` have a mask for each sample; for a detector's mAP a "
        "folder of images with YOLO's text files, or COCO's JSON file with the images below its folder",
    )
    parser.add(
        HelpGroup.LIMITS,
        "--strict",
        action="store_true",
        help="write nothing and end with exit code 2 if the file misses its latency or memory budget, is not shown to "
        "meet its loss budget, or is not fit for use because the time limit left out too much",
    )
    text = "replace the artifact that is in the output folder"
    parser.add(HelpGroup.OUTPUT, "--force", action="store_true", help=text)
    _add_cache_option(parser)
    _add_quiet(parser)


def _add_option(parser: Parser, option: Field[Any], default_text: str = "") -> None:
    """Add an option of `ptqc.compile` as it is declared. default_text: what to say of its default instead."""
    about, default = option.metadata, option.default
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    if isinstance(default, bool | float):  # a float is 0, which its description explains
        shown = ""
    words: dict[str, Any] = {"dest": option.name, "help": about["help"]}
    if isinstance(default, bool):
        words["action"] = argparse.BooleanOptionalAction
    else:
        words["metavar"] = about["metavar"]
        if about["per"] or (about["flag"] and isinstance(default, tuple)):
            words["action"] = Each
        else:
            words["type"] = _typed(about["parse"]) if about["parse"] else TYPES[type(default)]
    parser.add(
        HelpGroup(about["group"]),
        flag(about["flag"] or option.name),
        default_text=default_text or shown,
        values=partial(possible_values, option.name),
        **words,
    )


TYPES: Mapping[type, Callable[[str], object]] = {int: whole, float: real, str: str}


def _typed(parse: Callable[[str], object]) -> Callable[[str], object]:
    """The same for argparse, which says what is wrong only of errors of its own."""

    def typed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return typed


def _add_targets(parser: Parser, defaults: str) -> None:
    from ptqc.codegen.targets import NONE, names, title_of

    message = "; ".join([*(f"{name}: {title_of(name)}" for name in names()), f"{NONE}: only the ONNX file"])
    parser.add(
        HelpGroup.TARGETS,
        "--target",
        metavar="NAME",
        help=message,
        default_text=defaults,
        values=lambda: [*names(), NONE],
    )
    text = "if the target cannot be built, deliver the rest"
    parser.add(HelpGroup.TARGETS, "--allow-missing-target", action="store_true", help=text)
    for option in target_options().values():
        stated = {"default_text": defaults} if defaults else {}
        parser.add_of_target(flag(option.name), {**option.metadata, **stated})


def _add_texts(parser: Parser) -> None:
    text = "the tokenizer.json of the model (needs ptqc[text])"
    parser.add(HelpGroup.TEXTS, "--tokenizer", metavar="FILE", help=text)
    meanings = {
        "unit": ("what one sample is", "lines of a file, files of a folder"),
        "length": ("the most tokens in a sample", "as the model or the tokenizer states, else 128"),
        "overlong": ("what to do with longer texts: cut them, or split them into several samples", "cut"),
        "padding": ("none: keep different lengths, or full: pad to --length", "full if the model's length is fixed"),
        "padding_side": ("where to pad", "as the tokenizer states"),
        "padding_token": ("the token to pad with, if the tokenizer states none", ""),
        "special_tokens": ("whether to add the tokens that begin and end a text", "yes"),
    }
    metavars = {"unit": "UNIT", "length": "N", "overlong": "HOW", "padding": "HOW", "padding_side": "SIDE"}
    for name in TEXTS:
        text, default = meanings[name]
        words: dict[str, Any] = {"metavar": metavars.get(name, "TOKEN"), "type": whole if name == "length" else str}
        if name == "special_tokens":
            words = {"action": argparse.BooleanOptionalAction}
        values = partial(_choices, "ptqc.calibration.texts", name)
        parser.add(HelpGroup.TEXTS, flag(name), help=text, default_text=default, values=values, **words)


def _choices(module: str, name: str) -> Sequence[str]:
    """What a module takes for an option; some of these modules load ONNX Runtime."""
    from importlib import import_module

    return [value for value in import_module(module).CHOICES.get(name, ()) if value]


def _add_data_options(parser: Parser) -> None:
    parser.add(
        HelpGroup.IMAGES,
        "--preprocessing",
        metavar="NAME|FILE",
        help="settings by the origin of the model, or a TOML file with the options below as keys; options given as "
        "well take precedence; see `ptqc help preprocessing`",
        values=lambda: presets.PREPROCESSING,
    )
    meanings = {
        "resize": (
            "SIZE",
            "size before --crop, for example 256 (the short side) or 224x192 (height and width)",
            "--crop",
        ),
        "crop": ("SIZE", "what is cut from the centre, for example 224", "the model's size"),
        "fit": (
            "HOW",
            "how an image gets the model's size: crop (fill it, and cut off the rest), stretch, letterbox (the whole "
            "image inside --resize, centred) or letterbox-corner (at the top left, as for YOLOX)",
            "crop",
        ),
        "scale": ("NUMBER", "255 makes pixels 0 to 1; 1 leaves them 0 to 255", "255"),
        "mean": ("NUMBERS", "after --scale, for example 0.485,0.456,0.406", "0"),
        "std": ("NUMBERS", "after --scale, for example 0.229,0.224,0.225", "1"),
        "layout": ("AXES", "order of the axes", "where the model's input has 1 or 3 channels"),
        "channel_order": ("ORDER", "order of the colour channels", "RGB"),
        "resample": ("HOW", "interpolation", "bilinear"),
        "fill": ("NUMBERS", "pixel values around a letterboxed image, for example 0 or 124,116,104", "114"),
    }
    for name in PREPROCESSING:
        metavar, text, default = meanings[name]
        values = partial(_choices, "ptqc.calibration.images", name)
        parser.add(HelpGroup.IMAGES, flag(name), metavar=metavar, help=text, default_text=default, values=values)
    _add_texts(parser)


def _add_detector(parser: Parser) -> None:
    parser.add(
        HelpGroup.DETECTORS,
        "--detector",
        metavar="NAME",
        help="the family of the detector, which sets the options below; options given as well take precedence; see "
        "`ptqc help detectors`",
        values=lambda: presets.DETECTORS,
    )
    meanings = {
        "boxes": (
            "ORDER",
            "xyxy (left, top, right, bottom), yxyx, cxcywh (centre, width, height), xywh; cells (YOLOX) or distances "
            "(FCOS), relative to a grid; offsets or offsets-yx (SSD), relative to --anchors",
            "",
        ),
        "box_unit": ("UNIT", "pixels of the model's input, or shares of its height and width", ""),
        "columns": (
            "NAME,…",
            "if one output holds everything, what it has for each box: box,classes or box,objectness,classes "
            "or box,score,class or image,box,class,score",
            "",
        ),
        "scores": ("HOW", "what turns scores into probabilities", "none"),
        "classes": (
            "FROM",
            "how the model numbers classes: from-0 (as the labels do), from-1 (0 is the background), or ids (as in a "
            "COCO file)",
            "from-0",
        ),
        "anchors": ("FILE", "an .npy of shape (n, 4): centre x, centre y, width and height of each anchor", ""),
        "variances": ("NUMBERS", "what offsets are multiplied by", "0.1,0.1,0.2,0.2"),
        "overlap": ("SHARE", "of boxes of a class that overlap by more than this, keep the most certain", "0.65"),
        "outputs": ("ROLE=NAME", "which output has what, if the names do not say so; once per role", ""),
    }
    for name in DETECTOR:
        metavar, text, default = meanings[name]
        parser.add(
            HelpGroup.DETECTORS,
            "--detector-outputs" if name == "outputs" else flag(name),
            dest=name,
            action=Each if name == "outputs" else "store",
            metavar=metavar,
            help=text,
            default_text=default,
            values=partial(_choices, "ptqc.evaluation.detection.detector", name),
        )


def _add_folder(parser: Parser) -> None:
    parser.add(HelpGroup.ARGUMENTS, "folder", metavar="FOLDER", help="a folder that `ptqc compile` wrote")


def _add_model(parser: Parser) -> None:
    parser.add(HelpGroup.ARGUMENTS, "model", metavar="MODEL", help="the ONNX file; it is not changed")


def _add_expand(parser: Parser) -> None:
    _add_folder(parser)
    parser.add(HelpGroup.OUTPUT, "-o", "--output", required=True, metavar="DIR", help="the folder to write")
    text = "replace what an earlier expand wrote there"
    parser.add(HelpGroup.OUTPUT, "--force", action="store_true", help=text)
    _add_quiet(parser)
    parser.set_defaults(run=commands.run_expand)


def _add_explain(parser: Parser) -> None:
    _add_folder(parser)
    parser.set_defaults(run=commands.run_explain)


def _add_inspect(parser: Parser) -> None:
    _add_model(parser)
    parser.set_defaults(run=commands.run_inspect)


def _add_passes(parser: Parser) -> None:
    parser.set_defaults(run=commands.run_passes)


def _add_doctor(parser: Parser) -> None:
    _add_cache_option(parser)
    parser.set_defaults(run=commands.run_doctor)


def _add_bench(parser: Parser) -> None:
    parser.add(
        HelpGroup.ARGUMENTS,
        "model",
        metavar="MODEL",
        help="a folder that `ptqc compile` wrote: the kernels of its native library are timed, if it has one; or an "
        "ONNX file: its operators are timed in ONNX Runtime",
    )
    _add_threads(parser, "1", "threads per run of the library")
    text = "time the library for this instruction set, one of those that it was compiled for"
    parser.add(HelpGroup.RUNNING, "--cpu", metavar="ISA", help=text, default_text="the best one")
    parser.set_defaults(run=commands.run_bench)


def _add_run(parser: Parser) -> None:
    text = "an ONNX file, or a folder that `ptqc compile` wrote"
    parser.add(HelpGroup.ARGUMENTS, "model", metavar="MODEL", help=text)
    text = "samples, given as for --calibration of compile; all are run"
    parser.add(HelpGroup.ARGUMENTS, "data", metavar="DATA", help=text)
    parser.add(
        HelpGroup.OUTPUT,
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="an .npz file for all outputs, samples along axis 0; or a folder, for one .npz file per sample",
    )
    _add_threads(parser, "all processors")
    _add_onnx_only(parser)
    _add_quiet(parser)
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_run)


def _add_completion(parser: Parser) -> None:
    parser.add(
        HelpGroup.ARGUMENTS,
        "shell",
        metavar="SHELL",
        type=partial(_among, "shell", SHELLS),
        help="your shell",
        values=lambda: SHELLS,
    )
    parser.set_defaults(run=commands.run_completion, parsers=parsers)


def _add_help(parser: Parser) -> None:
    parser.add(
        HelpGroup.ARGUMENTS,
        "topic",
        nargs="?",
        metavar="TOPIC",
        type=partial(_among, "topic", (*TOPICS, *COMMANDS)),
        help="a topic, or a command; without one, the topics are listed",
        values=lambda: TOPICS,
    )
    parser.set_defaults(run=commands.run_help, parsers=parsers)


@dataclass(frozen=True)
class Subcommand:
    """One command. title: of the group that help lists it in. summary: what it does. add: adds its options.

    common: the options that -h shows, in this order, if it shows fewer than --help. examples: lines of a shell.
    """

    title: str
    summary: str
    add: Callable[[Parser], None]
    examples: tuple[str, ...] = ()
    common: tuple[str, ...] = ()


_DELIVERY = ("--target", "--time-limit", "--strict", "--force", "-q", "--json")
COMMANDS: Mapping[str, Subcommand] = {
    "inspect": Subcommand(
        "compile",
        "describe a model and estimate what compiling it takes, without data",
        _add_inspect,
        ("ptqc inspect model.onnx",),
    ),
    "compile": Subcommand(
        "compile",
        "compile an ONNX model to a budget of bytes, time, memory or loss",
        _add_compile,
        (
            "ptqc compile model.onnx --budget 13% --calibration images/ --preprocessing imagenet -o out/",
            "ptqc compile model.onnx --budget 2ms --calibration samples.npz -o out/",
            "ptqc compile encoder.onnx --budget 25% --calibration corpus.txt --tokenizer tokenizer.json -o out/",
        ),
        (
            *("model", "--calibration", "-o", "--budget", "--preprocessing", "--tokenizer", "--labels"),
            *_DELIVERY,
        ),
    ),
    "resolve": Subcommand(
        "compile",
        "compile to another budget, from the measurements of an earlier compile",
        _add_resolve,
        ("ptqc resolve out/ --budget 10% -o smaller/",),
        ("folder", "-o", "--budget", "--data", "--labels", *_DELIVERY),
    ),
    "sweep": Subcommand(
        "compile",
        "measure loss and time at several sizes, from the measurements of a compile",
        _add_sweep,
        ("ptqc sweep out/ --budgets 25%,13%,9%",),
    ),
    "explain": Subcommand(
        "judge", "show what was decided for each layer, and why", _add_explain, ("ptqc explain out/",)
    ),
    "compare": Subcommand(
        "judge",
        "compare models: bytes, time and outputs",
        _add_compare,
        ("ptqc compare model.onnx out/ --data samples.npz",),
    ),
    "eval": Subcommand(
        "judge",
        "score models on labelled data, with standard errors",
        _add_eval,
        (
            "ptqc eval model.onnx out/ --metric top-1 --data labelled.npz",
            "ptqc eval yolox.onnx out/ --metric map --data images/ --labels instances.json --detector yolox",
        ),
    ),
    "run": Subcommand(
        "judge",
        "run a model or an artifact on samples and write the outputs",
        _add_run,
        ("ptqc run out/ images/ -o outputs.npz",),
    ),
    "bench": Subcommand(
        "judge", "time each kernel of a library, or each operator of an ONNX file", _add_bench, ("ptqc bench out/",)
    ),
    "verify": Subcommand(
        "trust", "check an artifact again, on this machine", _add_verify, ("ptqc verify out/ --model model.onnx",)
    ),
    "bisect": Subcommand(
        "trust", "compare the native library with the ONNX file, kernel by kernel", _add_bisect, ("ptqc bisect out/",)
    ),
    "reduce": Subcommand(
        "trust",
        "shrink a model on which a command fails",
        _add_reduce,
        ("ptqc reduce model.onnx -o small.onnx -- compile {model} --calibration {data} --budget 13% -o out",),
    ),
    "expand": Subcommand(
        "ship",
        "unpack the compiled file once, on the device, so that it loads faster",
        _add_expand,
        ("ptqc expand out/ -o expanded/",),
    ),
    "doctor": Subcommand(
        "housekeeping", "check whether ptqc can work here: packages, processor, targets, store", _add_doctor
    ),
    "passes": Subcommand("housekeeping", "list the passes in order, with their options", _add_passes),
    "cache": Subcommand(
        "housekeeping",
        "report the size of the store of measurements, or clear it",
        _add_cache,
        ("ptqc cache size",),
    ),
    "completion": Subcommand(
        "housekeeping",
        "print a script that lets a shell complete commands, options and files",
        _add_completion,
        (
            "ptqc completion bash > ~/.local/share/bash-completion/completions/ptqc",
            "ptqc completion fish > ~/.config/fish/completions/ptqc.fish",
        ),
    ),
    "help": Subcommand(
        "housekeeping", "explain a topic: budgets, preprocessing, detectors", _add_help, ("ptqc help budgets",)
    ),
}
