"""The options of every command: what each means, in the words of `--help`."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from ptqc.cli import commands
from ptqc.cli.commands import DETECTOR, PREPROCESSING, TEXTS, flag, target_options
from ptqc.cli.config_file import Commands, Configuration, Each
from ptqc.errors import UsageError
from ptqc.options import CompileOptions, Phase
from ptqc.utils.arguments import meant, unknown
from ptqc.utils.deadline import parse_seconds
from ptqc.utils.version import __version__

EPILOG = (
    "For example: ptqc compile model.onnx --budget 13% --calibration images/ -o out. `ptqc COMMAND --help` lists the "
    "options of a command. A project can keep its options in ptqc.toml, or in [tool.ptqc] of pyproject.toml."
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is told."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        if re.match(r"unrecognized arguments: -?\.?\d", message):  # as in --mean 0.5 0.5 0.5
            message += "; several numbers of one option stand together, with commas"
        raise UsageError(f"{message}; `{self.prog} --help` lists the options")


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

    Of what it returns, `run` is the function that runs the command, `used` tells what the file said, and `configured`
    has the names of those options. Raises UsageError for words and files that are wrong.
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
    options = parser.parse_args(words, namespace)
    options.used = "" if getattr(options, "quiet", False) else used
    options.configured = configured
    return options


def _configure(command: str, known: Commands) -> tuple[str, frozenset[str]]:
    """Defaults of the command from the nearest configuration file; what to tell of them, and their names."""
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
    stated = _stated(words)
    if missing := [name for name in stated if name not in options]:
        likely = [MISTAKEN.get(name, name) for name in missing]
        message = f"unknown option {', '.join(missing)}{meant(likely, options)}"
        raise UsageError(f"{message}; `{parser.prog} --help` lists the options")


def parsers() -> tuple[argparse.ArgumentParser, Commands]:
    """The parser of all commands, and that of each."""
    parser = Parser(
        prog="ptqc",
        allow_abbrev=False,
        description="Post-training quantization compiler for ONNX models.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"ptqc {__version__}")
    added = parser.add_subparsers(required=True, metavar="COMMAND", dest="name")
    for name, (summary, add) in COMMANDS.items():
        one = added.add_parser(
            name, allow_abbrev=False, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        add(one)
        if name != "completion":
            one.add_argument(
                "--json", action="store_true", help="print the result, or the error, as one JSON document for programs"
            )
    return parser, added.choices


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the ONNX file; it is not changed")
    parser.add_argument(
        "--calibration",
        metavar="DATA",
        help="a few hundred unlabelled samples: a folder of images, an .npz (one array per input) or .npy file, "
        "a folder of those, texts with their --tokenizer, module:function, or the word synthetic: ptqc then "
        "generates samples, which costs accuracy",
    )
    _add_common(parser)
    for option in fields(CompileOptions):
        if option.metadata["phase"] < Phase.FIT:
            _add_option(parser, option)
    parser.add_argument(
        "--times",
        metavar="DIR",
        help="for a latency budget, use the operator times that this artifact recorded instead of measuring them",
    )
    parser.add_argument(
        "--executor",
        metavar="E",
        help="where weights are solved: threads (default), processes (of this machine), ray (a Ray cluster that ptqc "
        "starts on this machine) or ray://HOST:PORT (a cluster that is running); the result is the same",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="how many weights to solve at a time (default: one for each processor)"
    )
    parser.add_argument(
        "--dump-passes", metavar="DIR", help="write the result of every pass: models as text, everything else as JSON"
    )
    _add_data_options(parser)
    _add_detector(parser)
    parser.set_defaults(run=commands.run_compile)


def _add_resolve(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    _add_common(parser, "as compiled")
    parser.add_argument("--plan", metavar="FILE", help="use the decisions of this plan.json instead of solving")
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="samples to judge a loss budget on, if the compile set none aside; given as for compile. Samples on "
        "which the compile measured are left out",
    )
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_resolve)


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `ptqc compile` wrote; sweep.json and the plot are added to it")
    parser.add_argument(
        "--points", type=int, metavar="N", help="number of sizes, from the smallest to the best file (default 10)"
    )
    parser.add_argument("--budgets", metavar="B,B,…", help="build these sizes instead, for example 25%%,13%%,9%%")
    parser.add_argument("--cache", metavar="DIR", help="where measurements are kept (default ~/.cache/ptqc)")
    parser.add_argument(
        "--time-limit", type=parse_seconds, metavar="T", help="90s, 5m or 1h: begin no further size after this time"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=commands.run_sweep)


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("size", "clear"), help="report its size, or remove everything that no running compile uses"
    )
    parser.add_argument("--cache", metavar="DIR", help="the store (default ~/.cache/ptqc, or $PTQC_CACHE)")
    parser.set_defaults(run=commands.run_cache)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.add_argument(
        "--model", metavar="FILE", help="the float model, to check that the artifact was compiled from it"
    )
    parser.add_argument("--onnx-only", action="store_true", help="use only the ONNX file, not the native library")
    parser.add_argument(
        "--runtime",
        action="append",
        default=[],
        metavar="NAME",
        help="run the golden samples in litert, openvino or qnn too, on what was built for it; may be repeated",
    )
    parser.set_defaults(run=commands.run_verify)


def _add_bisect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `ptqc compile --target T` wrote")
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="samples to run, given as for compile, in addition to extreme, zero and random inputs",
    )
    parser.add_argument("--samples", type=int, metavar="N", help="use at most N samples (default 8)")
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_bisect)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="ONNX files, and folders that `ptqc compile` wrote; all are compared with the first",
    )
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="samples to run, given as for compile (default: an artifact's golden samples, or random ones)",
    )
    parser.add_argument("--samples", type=int, metavar="N", help="use at most N samples (default 16)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads per run (default 1)")
    parser.add_argument(
        "--runtime",
        action="append",
        default=[],
        metavar="NAME",
        help="run artifacts in litert, openvino or qnn too, on what was built for it; may be repeated",
    )
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_compare)


def _add_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="ONNX files, and folders that `ptqc compile` wrote; scores are compared with that of the first",
    )
    parser.add_argument(
        "--metric",
        required=True,
        metavar="M",
        help="top-1 or top-5 (classes), map or map-50 (detectors), cross-entropy or perplexity (next tokens), "
        "similarity (Spearman, of pairs), cosine, psnr (both compare with the first model if there are no labels), "
        "word-errors, or module:function, called with outputs and label",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="DATA",
        help="samples as for compile, with labels: an .npz with `labels`, a folder of those, one folder of images per "
        "class, a CSV with lines image,class-number, or with --tokenizer a .tsv of texts and labels; for perplexity, "
        "a text file is enough; for map, a folder of images with their boxes as YOLO or COCO writes them",
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="the labels, if they are not with the data: an .npz with `labels`, or an .npy; for map, a folder of "
        "YOLO's text files, or COCO's JSON file",
    )
    parser.add_argument("--score-output", metavar="NAME", help="the output to score (default: the first)")
    parser.add_argument("--samples", type=int, metavar="N", help="use at most N labels, evenly spread (default: all)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads per run (default: all processors)")
    _add_data_options(parser)
    _add_detector(parser)
    parser.set_defaults(run=commands.run_eval)


def _add_reduce(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s MODEL -o FILE [options] [-- COMMAND]"
    parser.epilog = (
        "COMMAND is a command of ptqc, or another program. Write {model} for the file and {data} for samples of its "
        "inputs. Default: compile {model} --calibration {data} -o out --cache cache. It runs in a folder of its own."
    )
    parser.add_argument("model", help="the ONNX file; it is not changed")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the .onnx file to write; an .npz is written beside it"
    )
    parser.add_argument("--message", metavar="REGEX", help="count only failures whose message matches this")
    parser.add_argument("--data", metavar="DATA", help="samples, given as for compile (default: random ones)")
    parser.add_argument(
        "--time-limit", type=parse_seconds, metavar="T", help="90s, 5m or 1h: then keep the smallest so far"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_reduce)


def _add_common(parser: argparse.ArgumentParser, defaults: str = "") -> None:
    """Add what `compile` and `resolve` share. defaults: what to say of those of options that `resolve` takes."""
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--budget",
        action=Each,
        metavar="B",
        help="what the file may cost. Size: 13%% of the model's, 4.5MB, 900KiB or 4.2bit (per weight). Latency of one "
        "sample on one thread: 2ms or 800us in ONNX Runtime on this machine; 2ms@cpu in the library of --target cpu; "
        "50us@cuda in the library of --target cuda, predicted for the chips of --gpu. Memory, loaded and running: "
        "60MBram or 900KiBram; with --target c, what the network takes of a microcontroller: 64KBflash, 20KBram. "
        "Caches of a decoder (compile only): 25%%cache of their bytes in float32, or 4MBcache. Loss, for the smallest "
        "file that loses no more: 99%%same (predictions that keep their top class), 1%%drop (percentage points of the "
        "score, with --labels), or 0.02nat (or relative, cosine, nat/detection: the unit in which the outputs are "
        "compared). You may give one of each kind",
    )
    for option in fields(CompileOptions):
        if option.metadata["phase"] >= Phase.FIT:
            _add_option(parser, option, "" if option.name == "time_limit" else defaults)
    parser.add_argument(
        "--labels",
        metavar="DATA",
        help="labelled samples, to report a score and for a drop budget: for top-1 accuracy an .npz with the inputs "
        "and `labels`, or a CSV with lines image,class-number (paths relative to the CSV); for a detector's mAP a "
        "folder of images with YOLO's text files, or COCO's JSON file with the images below its folder",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="write nothing and end with exit code 2 if the file misses its latency or memory budget, is not shown to "
        "keep its loss budget, or is not fit for use because the time limit left out too much",
    )
    parser.add_argument("--force", action="store_true", help="replace the artifact that is in the output folder")
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="where measurements are kept: a folder (default ~/.cache/ptqc), or a URL such as s3://BUCKET/FOLDER",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    _add_targets(parser)


def _add_option(parser: argparse.ArgumentParser, option: Field[Any], default_text: str = "") -> None:
    """Add an option of `ptqc.compile` as it is declared. default_text: what to say of its default instead."""
    about, default = option.metadata, option.default
    words: dict[str, Any] = {"dest": option.name, "help": about["help"].replace("%", "%%")}
    if default_text or default:
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        words["help"] += f" (default: {default_text or shown})"
    if isinstance(default, bool):
        words["action"] = argparse.BooleanOptionalAction
    else:
        words["metavar"] = about["metavar"]
        if about["per"] or (about["flag"] and isinstance(default, tuple)):
            words["action"] = Each
        else:
            words["type"] = _typed(about["parse"]) if about["parse"] else type(default)
    parser.add_argument(flag(about["flag"] or option.name), **words)


def _typed(parse: Callable[[str], object]) -> Callable[[str], object]:
    """The same for argparse, which says what is wrong only of errors of its own."""

    def typed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return typed


def _add_targets(parser: argparse.ArgumentParser) -> None:
    from ptqc.codegen.targets import names, title_of

    message = "; ".join(f"{name}: {title_of(name)}" for name in names())
    group = parser.add_argument_group("targets", "libraries to build beside the ONNX file")
    group.add_argument("--target", metavar="T", help=message)
    group.add_argument(
        "--allow-missing-target", action="store_true", help="if the target cannot be built, deliver the rest"
    )
    for option in target_options().values():
        group.add_argument(flag(option.name), **option.metadata)


def _add_texts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("texts", "samples from a text file, or from a folder of .txt files")
    group.add_argument("--tokenizer", metavar="FILE", help="the tokenizer.json of the model (needs ptqc[text])")
    meanings = {
        "unit": "what one sample is: lines (default for a file), paragraphs, or files (default for a folder)",
        "length": "the most tokens in a sample (default: as the model or the tokenizer states, else 128)",
        "overlong": "what to do with longer texts: cut (default), or split into several samples",
        "padding": "none: keep different lengths, or full: pad to --length (default: full if the model's is fixed)",
        "padding_side": "right or left (default: as the tokenizer states)",
        "padding_token": "the token to pad with, if the tokenizer states none",
    }
    for name in TEXTS:
        option = flag(name)
        if name == "special_tokens":
            message = "whether to add the tokens that begin and end a text (default: yes)"
            group.add_argument(option, action=argparse.BooleanOptionalAction, help=message)
        else:
            group.add_argument(option, metavar="V", type=int if name == "length" else str, help=meanings[name])


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    _add_texts(parser)
    group = parser.add_argument_group("images", "pixel p becomes (p / scale - mean) / std")
    group.add_argument("--preprocessing", metavar="FILE", help="a TOML file with the keys below")
    meanings = {
        "resize": "size before --crop, for example 256 (the short side) or 224x192 (height and width)",
        "crop": "what is cut from the centre, for example 224 (default: the model's size)",
        "fit": "crop (default), stretch, letterbox (the whole image inside --resize, centred) or letterbox-corner (at "
        "the top left, as YOLOX has it)",
        "scale": "default 255, which makes pixels 0 to 1; 1 leaves them 0 to 255",
        "mean": "after --scale, for example 0.485,0.456,0.406 (default 0)",
        "std": "after --scale, for example 0.229,0.224,0.225 (default 1)",
        "layout": "NCHW or NHWC (default: where the model's input has 1 or 3 channels)",
        "channel_order": "RGB (default) or BGR",
        "resample": "bilinear (default), bicubic or nearest",
        "fill": "the pixel values around a letterboxed image, for example 0 or 124,116,104 (default 114)",
    }
    for name in PREPROCESSING:
        group.add_argument(flag(name), metavar="V", help=meanings[name])


def _add_detector(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "detectors", "how a detector writes the boxes that it finds, if its output names do not say so"
    )
    meanings = {
        "boxes": "xyxy (left, top, right, bottom), yxyx, cxcywh (centre, width, height), xywh; cells (YOLOX) or "
        "distances (FCOS), relative to a grid; offsets or offsets-yx (SSD), relative to --anchors",
        "box_unit": "pixels (of the model's input) or shares (of its height and width)",
        "columns": "if one output holds everything, what it has for each box: box,classes or box,objectness,classes "
        "or box,score,class or image,box,class,score",
        "scores": "what turns scores into probabilities: none (default), sigmoid or softmax",
        "classes": "how the model numbers classes: from-0 (default, as the labels do), from-1 (0 is the background), "
        "or ids (as in a COCO file)",
        "anchors": "an .npy of shape (n, 4): centre x, centre y, width and height of each anchor",
        "variances": "what offsets are multiplied by (default 0.1,0.1,0.2,0.2)",
        "overlap": "of boxes of a class that overlap by more than this, only the surest counts (default 0.65)",
        "outputs": "which output holds what, if the names do not say so: boxes, scores, classes, count or selected",
    }
    for name in DETECTOR:
        metavar = {"outputs": "ROLE=NAME", "anchors": "FILE"}.get(name, "V")
        group.add_argument(
            "--detector-outputs" if name == "outputs" else flag(name),
            dest=name,
            action=Each if name == "outputs" else "store",
            metavar=metavar,
            help=meanings[name],
        )


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `ptqc compile` wrote")


def _add_expand(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument("--force", action="store_true", help="replace what an earlier expand wrote there")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=commands.run_expand)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.set_defaults(run=commands.run_explain)


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the ONNX file; it is not changed")
    parser.set_defaults(run=commands.run_inspect)


def _add_passes(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=commands.run_passes)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", metavar="DIR", help="the store of measurements, if it is not the usual one")
    parser.set_defaults(run=commands.run_doctor)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="a folder that `ptqc compile` wrote: the kernels of its native library are timed, if it has one; or an "
        "ONNX file: its operators are timed in ONNX Runtime",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads per run of the library (default 1)")
    parser.add_argument(
        "--cpu", metavar="ISA", help="time the library for this instruction set (default: the best one)"
    )
    parser.set_defaults(run=commands.run_bench)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="an ONNX file, or a folder that `ptqc compile` wrote")
    parser.add_argument("data", metavar="DATA", help="samples, given as for --calibration of compile; all are run")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="an .npz file for all outputs, samples along axis 0; or a folder, for one .npz file per sample",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads per run (default: all processors)")
    parser.add_argument("--onnx-only", action="store_true", help="use only the ONNX file, not the native library")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_run)


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="your shell")
    parser.set_defaults(run=commands.run_completion, parsers=parsers)


# What each command does, as `ptqc --help` says it, and what adds its options.
COMMANDS: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "inspect": ("describe a model and estimate what compiling it takes, without data", _add_inspect),
    "compile": ("compile an ONNX model to a budget of bytes, time, memory or loss", _add_compile),
    "resolve": ("compile to another budget, from the measurements of an earlier compile", _add_resolve),
    "sweep": ("measure loss and time at several sizes, from the measurements of a compile", _add_sweep),
    "expand": ("unpack the compiled file once, on the device, so that it loads faster", _add_expand),
    "explain": ("show what was decided for each layer, and why", _add_explain),
    "compare": ("compare models: bytes, time and outputs", _add_compare),
    "eval": ("score models on labelled data, with standard errors", _add_eval),
    "run": ("run a model or an artifact on samples and write the outputs", _add_run),
    "bench": ("time each kernel of a library, or each operator of an ONNX file", _add_bench),
    "verify": ("check an artifact again, on this machine", _add_verify),
    "bisect": ("compare the native library with the ONNX file, kernel by kernel", _add_bisect),
    "reduce": ("shrink a model on which a command fails", _add_reduce),
    "doctor": ("check whether ptqc can work here: packages, processor, targets, store", _add_doctor),
    "passes": ("list the passes in order, with their options", _add_passes),
    "cache": ("report the size of the store of measurements, or clear it", _add_cache),
    "completion": ("print a script that lets a shell complete commands, options and files", _add_completion),
}
