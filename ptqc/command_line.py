"""The options of every command: what each means, in the words of `--help`."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ptqc import commands
from ptqc.arguments import meant, unknown
from ptqc.commands import PREPROCESSING, TEXTS, flag, target_options
from ptqc.configuration import Commands, Configuration, Each
from ptqc.errors import UsageError
from ptqc.version import __version__
from ptqc.work.deadline import parse_seconds

EPILOG = (
    "For example: ptqc compile model.onnx --budget 13% --calibration images/ -o out. `ptqc COMMAND --help` lists the "
    "options of a command; a project keeps them in ptqc.toml, or in [tool.ptqc] of pyproject.toml."
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is told."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{message}; `{self.prog} --help` lists the options")


def parse(words: Sequence[str], namespace: argparse.Namespace | None = None) -> argparse.Namespace:
    """The command and its options; what the words leave out is taken from the nearest configuration file.

    Of what it returns, `run` is the function that runs the command, `used` tells what the file said, and `configured`
    has the names of those options. Raises UsageError for words and files that are wrong.
    """
    made, known = parsers()
    command = words[0] if words else ""
    if command and not command.startswith("-") and command not in known:
        raise unknown("command", [command], known)
    used, configured = "", frozenset[str]()
    if command in known:
        _check_options(words[1:], known[command])
        used, configured = _configure(command, known)
    options = made.parse_args(words, namespace)
    options.used = "" if getattr(options, "quiet", False) else used
    options.configured = configured
    return options


def _configure(command: str, known: Commands) -> tuple[str, frozenset[str]]:
    """Defaults of the command from the nearest configuration file; what to tell of them, and their names."""
    found = Configuration.find(Path.cwd(), known)
    used = found.apply(command, known[command]) if found else ()
    told = f"from {found.path}: {', '.join(used)}" if found and used else ""
    return told, frozenset(name.replace("-", "_") for name in used)


def _check_options(words: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raises UsageError for options that the command lacks, before others are missed."""
    options = list(parser._option_string_actions)  # argparse has no public list of them
    given = [word.partition("=")[0] for word in words if re.match("--[a-z]", word)]
    if missing := [name for name in given if name not in options]:
        told = f"unknown option {', '.join(missing)}{meant(missing, options)}"
        raise UsageError(f"{told}; `{parser.prog} --help` lists the options")


def parsers() -> tuple[argparse.ArgumentParser, Commands]:
    """The parser of all commands, and that of each."""
    made = Parser(
        prog="ptqc",
        allow_abbrev=False,
        description="Post-training quantization compiler for ONNX models.",
        epilog=EPILOG,
    )
    made.add_argument("--version", action="version", version=f"ptqc {__version__}")
    added = made.add_subparsers(required=True, metavar="COMMAND", dest="name")
    for name, (told, add) in COMMANDS.items():
        one = added.add_parser(name, allow_abbrev=False, help=told, description=f"{told[0].upper()}{told[1:]}.")
        add(one)
        if name != "completion":
            one.add_argument("--json", action="store_true", help="print one JSON document, of errors too, for programs")
    return made, added.choices


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the ONNX file; it is not changed")
    parser.add_argument(
        "--calibration",
        metavar="DATA",
        help="a few hundred unlabelled samples: a folder of images, an .npz (one array per input) or .npy file, "
        "a folder of those, texts with their --tokenizer, module:function, or the word synthetic: samples drawn by "
        "ptqc, at a loss of accuracy",
    )
    _add_common(parser)
    parser.add_argument("--samples", type=int, metavar="N", help="calibration samples used at most (default 256)")
    parser.add_argument(
        "--observer",
        metavar="METHOD",
        help="how activation ranges are chosen, such as minmax or mse (default auto); an unknown one lists all",
    )
    parser.add_argument(
        "--activations", help="auto (8-bit where the loss allows it; default), integer (everywhere) or float (nowhere)"
    )
    parser.add_argument("--activation-limit", type=float, metavar="LOSS", help="loss that 8-bit activations may cost")
    parser.add_argument(
        "--loss",
        action=Each,
        metavar="[OUTPUT=]KIND",
        help="how outputs are compared: auto (default), logits, embedding, detection, …; once per output",
    )
    parser.add_argument(
        "--kv-cache",
        action=Each,
        metavar="[INPUT=]KIND",
        help="how a decoder keeps keys and values of earlier tokens: float (default, as it does), int8 or int4, which "
        "changes its inputs and outputs; for all caches, or once per input",
    )
    parser.add_argument("--bits", type=_bits, metavar="2,3,…", help="widths tried for weights (default 2 to 8)")
    parser.add_argument(
        "--allow-8bit",
        action="store_true",
        default=None,
        help="8-bit weights on integer kernels too: on CPUs without VNNI sessions then need an option, or saturate",
    )
    parser.add_argument(
        "--cast-double",
        action="store_true",
        default=None,
        help="take a float64 model: it computes in float32 inside, its inputs and outputs stay float64",
    )
    parser.add_argument("--seed", type=int, help="seed of all draws (default 0)")
    parser.add_argument(
        "--times",
        metavar="DIR",
        help="an artifact whose recorded times of operators a latency budget is met with, instead of measuring them",
    )
    parser.add_argument(
        "--rewrite",
        action=Each,
        dest="rewrites",
        metavar="NAME",
        help="a rewrite that an installed package adds, run on the normal form; once for each (see `ptqc passes`)",
    )
    parser.add_argument(
        "--dump-passes", metavar="DIR", help="write what every pass made: the model as text, what was found out as JSON"
    )
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_compile)


def _add_resolve(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    _add_common(parser)
    parser.add_argument("--plan", metavar="FILE", help="take the decisions of this plan.json instead of solving")
    parser.add_argument(
        "--calibration",
        metavar="DATA",
        help="samples to judge a budget of loss on, where the compile kept none aside: given as for compile; those "
        "that were measured on are left out",
    )
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_resolve)


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `ptqc compile` wrote; sweep.json and the plot are added to it")
    parser.add_argument("--points", type=int, metavar="N", help="sizes from the smallest to the best file (default 10)")
    parser.add_argument("--budgets", metavar="B,B,…", help="these sizes instead, as 25%%,13%%,9%%")
    parser.add_argument("--cache", metavar="DIR", help="where measurements are kept (default ~/.cache/ptqc)")
    parser.add_argument(
        "--time-limit", type=parse_seconds, metavar="T", help="90s, 5m or 1h: after it no further points are begun"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=commands.run_sweep)


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("size", "clear"), help="say how large it is, or remove what nobody is using")
    parser.add_argument("--cache", metavar="DIR", help="the store (default ~/.cache/ptqc, or $PTQC_CACHE)")
    parser.set_defaults(run=commands.run_cache)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.add_argument("--model", metavar="FILE", help="the float model, to check that it is the one compiled")
    parser.add_argument("--onnx-only", action="store_true", help="leave the native library out")
    parser.set_defaults(run=commands.run_verify)


def _add_bisect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `ptqc compile --target T` wrote")
    parser.add_argument(
        "--calibration",
        metavar="DATA",
        help="samples to run on, given as for compile, beside inputs at the ends of what was seen, zero and random",
    )
    parser.add_argument("--samples", type=int, metavar="N", help="samples used at most (default 8)")
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
        "--calibration",
        metavar="DATA",
        help="samples to run on, given as for compile (default: an artifact's golden samples, or drawn ones)",
    )
    parser.add_argument("--samples", type=int, metavar="N", help="samples used at most (default 16)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a run (default 1)")
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
        help="top-1 or top-5 (classes), cross-entropy or perplexity (next tokens), similarity (Spearman, of pairs), "
        "cosine, psnr (both to the first model without labels), word-errors, or module:function of outputs and label",
    )
    parser.add_argument(
        "--data",
        required=True,
        dest="calibration",
        metavar="DATA",
        help="samples as for compile, with labels: an .npz with `labels`, a folder of those, a folder of images for "
        "each class, a CSV of image,class-number lines, or with --tokenizer a .tsv of texts and label; a text file "
        "is enough for perplexity",
    )
    parser.add_argument("--labels", metavar="FILE", help="labels apart: an .npz with `labels`, or an .npy")
    parser.add_argument("--output", metavar="NAME", help="the output that is judged (default: the first)")
    parser.add_argument("--samples", type=int, metavar="N", help="labels used at most, evenly spread (default: all)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a run (default: all processors)")
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_eval)


def _add_reduce(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s MODEL -o FILE [options] [-- COMMAND]"
    parser.epilog = (
        "COMMAND: one of ptqc, or another program, with {model} where the file goes and {data} where samples for its "
        "inputs go; default: compile {model} --calibration {data} -o out --cache cache. It runs in a folder of its own."
    )
    parser.add_argument("model", help="the ONNX file; it is not changed")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the .onnx file to write; .npz beside it")
    parser.add_argument("--message", metavar="REGEX", help="what the message of the failure that is meant matches")
    parser.add_argument("--calibration", metavar="DATA", help="samples, as for compile (default: drawn)")
    parser.add_argument("--time-limit", type=parse_seconds, metavar="T", help="90s, 5m or 1h: take the smallest so far")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_reduce)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--budget",
        action=Each,
        metavar="B",
        help="13%% of the model's size, 4.5MB, 900KiB or 4.2bit (per weight); 2ms or 800us for one sample on one "
        "thread of this machine, in ONNX Runtime or, as 2ms@cpu, in the library of --target cpu; 50us@cuda in the "
        "library of --target cuda, as predicted for the chips of --gpu; 60MBram or 900KiBram when it is loaded and "
        "run; 0.02nat (or relative, cosine, nat/detection: what the outputs are judged in), 99%%same (top classes as "
        "the float model's) or 1%%drop (points of the score, with --labels): the smallest file that loses no more; "
        "one of each kind may be given together",
    )
    parser.add_argument(
        "--pipeline",
        help="light (default), or advanced: gradient steps too, kept where they lower the held-back loss (needs torch)",
    )
    parser.add_argument(
        "--time-limit",
        type=parse_seconds,
        metavar="T",
        help="90s, 5m or 1h: after it nothing more is begun that only improves the result",
    )
    parser.add_argument(
        "--float-layers",
        metavar="F",
        help="what convolutions in float read: bfloat16 as far as that loses little, float32, or auto: bfloat16 where "
        "the cpu target is built for processors that multiply it faster (default: auto, of resolve as before)",
    )
    parser.add_argument(
        "--inline",
        action=argparse.BooleanOptionalAction,
        help="a file without model-local functions, a little larger, for runtimes that do not inline them",
    )
    parser.add_argument(
        "--operators",
        metavar="O",
        help="standard, or onnxruntime: products in float may be ONNX Runtime's MatMulNBits, whose weights of 4 or 8 "
        "bits stay packed in memory; such a file runs nowhere else (default: standard, of resolve as before)",
    )
    parser.add_argument(
        "--labels",
        metavar="DATA",
        help="labelled samples to report top-1 accuracy on, and for a budget of drop: an .npz with the inputs and "
        "`labels`, or a CSV of image,class-number lines (paths relative to it)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end with 2, and write nothing, where the file takes longer or more memory than its budgets, or is not "
        "shown to lose as little as the budget of loss",
    )
    parser.add_argument("--force", action="store_true", help="replace the output folder")
    parser.add_argument("--cache", metavar="DIR", help="where measurements are kept (default ~/.cache/ptqc)")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    _add_targets(parser)


def _add_targets(parser: argparse.ArgumentParser) -> None:
    from ptqc.codegen.targets import names, title_of

    told = "; ".join(f"{name}: {title_of(name)}" for name in names())
    group = parser.add_argument_group("targets", "what is built beside the ONNX file")
    group.add_argument("--target", metavar="T", help=told)
    group.add_argument(
        "--allow-missing-target", action="store_true", help="deliver the rest where the target cannot be built"
    )
    for option in target_options().values():
        group.add_argument(flag(option.name), **option.metadata)


def _add_texts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("texts", "samples from a text file, or from a folder of .txt files")
    group.add_argument("--tokenizer", metavar="FILE", help="the tokenizer.json of the model (needs ptqc[text])")
    meanings = {
        "unit": "what a sample is: lines (default for a file), paragraphs, or files (default for a folder)",
        "length": "tokens of a sample at most (default: what the model or the tokenizer says, else 128)",
        "overlong": "longer texts: cut (default), or split into several samples",
        "padding": "none: samples of different lengths, or full: up to --length (default: where the model's is fixed)",
        "padding_side": "right or left (default: as the tokenizer says)",
        "padding_token": "where the tokenizer names none",
    }
    for name in TEXTS:
        option = flag(name)
        if name == "special_tokens":
            told = "tokens that begin and end a text, as the tokenizer adds them (default: with them)"
            group.add_argument(option, action=argparse.BooleanOptionalAction, help=told)
        else:
            group.add_argument(option, metavar="V", type=int if name == "length" else str, help=meanings[name])


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    _add_texts(parser)
    group = parser.add_argument_group("images", "pixel p becomes (p / scale - mean) / std")
    group.add_argument("--preprocessing", metavar="FILE", help="a TOML file with the keys below")
    examples = {
        "resize": "256",
        "crop": "224 or 224x192",
        "fit": "letterbox, the whole image inside --resize, or stretch (default crop)",
        "fill": "0 or 124,116,104: pixels that a letterbox leaves free (default 114)",
        "mean": "0.485,0.456,0.406",
        "scale": "255",
        "layout": "NCHW",
    }
    for name in PREPROCESSING:
        example = f"for example {examples[name]}" if name in examples else None
        group.add_argument(flag(name), metavar="V", help=example)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `ptqc compile` wrote")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.set_defaults(run=commands.run_explain)


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the ONNX file; it is not changed")
    parser.set_defaults(run=commands.run_inspect)


def _add_passes(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=commands.run_passes)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", metavar="DIR", help="the store of measurements, where it is not the usual one")
    parser.set_defaults(run=commands.run_doctor)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="a folder that `ptqc compile` wrote, of which the kernels of the native library are timed where it has "
        "one; or an ONNX file, of which the operators are timed in ONNX Runtime",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the library's runs (default 1)")
    parser.add_argument("--isa", metavar="ISA", help="the library for this instruction set (default: the best one)")
    parser.set_defaults(run=commands.run_bench)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="an ONNX file, or a folder that `ptqc compile` wrote")
    parser.add_argument("calibration", metavar="DATA", help="samples, given as --calibration of compile; all are run")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="an .npz file for all outputs, samples along axis 0; or a folder, for an .npz file per sample",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a run (default: all processors)")
    parser.add_argument("--onnx-only", action="store_true", help="leave the native library out")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    _add_data_options(parser)
    parser.set_defaults(run=commands.run_run)


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that is to complete")
    parser.set_defaults(run=commands.run_completion, parsers=parsers)


def _bits(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of widths such as 2,3,4")
    return tuple(int(part) for part in text.split(","))


# What each command is, as `ptqc --help` says it, and what adds its options.
COMMANDS: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "inspect": ("what a model is and what compiling it would take, without data", _add_inspect),
    "compile": ("compile an ONNX model to a budget of bytes, time, memory or loss", _add_compile),
    "resolve": ("another budget from what a compile measured", _add_resolve),
    "sweep": ("measure size against loss and time, from what a compile measured", _add_sweep),
    "explain": ("what was decided for each layer, and why", _add_explain),
    "compare": ("models beside each other: bytes, time, and what they answer", _add_compare),
    "eval": ("the score of models on labelled data, with its standard error", _add_eval),
    "run": ("what a model or an artifact makes of samples, into files", _add_run),
    "bench": ("how long each kernel of a library takes, or each operator of an ONNX file", _add_bench),
    "verify": ("check an artifact anew, on this machine", _add_verify),
    "bisect": ("compare the native library with the ONNX file, kernel by kernel", _add_bisect),
    "reduce": ("shrink a model on which a command fails", _add_reduce),
    "doctor": ("whether ptqc can work here: packages, processor, targets, store", _add_doctor),
    "passes": ("the passes in their order, what each does, and its options", _add_passes),
    "cache": ("the store of measurements: its size, or clear it", _add_cache),
    "completion": ("a script that lets a shell complete commands, options and files", _add_completion),
}
