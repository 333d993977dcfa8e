"""The command line: compile, resolve, explain, verify, bisect, bench, reduce, cache."""

import argparse
import dataclasses
import errno
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ptqc.errors import Interrupted, PtqcError, UsageError, VerificationError
from ptqc.version import __version__
from ptqc.work import interrupts
from ptqc.work.deadline import parse_seconds
from ptqc.work.interrupts import MESSAGE, Stopped

PREPROCESSING = ("resize", "crop", "fit", "scale", "mean", "std", "layout", "channel_order", "resample", "fill")
INTERRUPTED = 130
# What disks and other limits of a machine give; any other error of the system that gets here is a fault of ptqc.
ENVIRONMENT = {
    getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EFBIG", "EMFILE", "ENFILE", "ENOMEM")
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is that of `ptqc.errors`."""
    words, command = _split(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(_joined(words), argparse.Namespace(command=command))
        run: Callable[[argparse.Namespace], None] = options.run
        run(options)
    except PtqcError as error:
        print(f"ptqc: {_one_line(error)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as error:
        print(MESSAGE, file=sys.stderr)
        return error.exit_code if isinstance(error, Stopped) else INTERRUPTED
    except MemoryError:
        print("ptqc: out of memory; give it more, or fewer --samples, and run the same command again", file=sys.stderr)
        return Interrupted.exit_code
    except Exception as error:
        if isinstance(error, OSError) and error.errno in ENVIRONMENT:
            print(f"ptqc: {_one_line(error)}: mend that, and run the same command again", file=sys.stderr)
            return Interrupted.exit_code
        return _internal_fault(error, words)
    return 0


def run() -> NoReturn:
    """The process `ptqc`. An interrupt does not wait for what other threads are in the middle of."""
    interrupts.listen()
    code = main()
    interrupts.ignore()
    sys.stdout.flush()
    if code > 128:  # a signal
        os._exit(code)
    sys.exit(code)


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The arguments of ptqc, and the command behind `--` that `ptqc reduce` runs."""
    if arguments[:1] != ["reduce"] or "--" not in arguments:
        return arguments, ()
    end = list(arguments).index("--")
    return arguments[:end], arguments[end + 1 :]


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--mean -1,2` as `--mean=-1,2`: argparse would take a value that begins with a minus sign for an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.fullmatch("--[a-z-]+", joined[-1]) and re.match(r"-\.?\d", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is told."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` lists the options")


def _one_line(error: Exception) -> str:
    """The message without the line breaks that libraries put into theirs."""
    return " ".join(str(error).split())


def _internal_fault(error: Exception, words: Sequence[str]) -> int:
    """An unexpected exception: its trace goes to a file that can be sent in."""
    path = Path.cwd() / "ptqc-fault.txt"
    trace = "".join(traceback.format_exception(error))
    try:
        path.write_text(f"ptqc {__version__}\n{_reproduction(words)}\n\n{trace}", encoding="utf-8")
        where = f"details are in {path}"
    except OSError:
        where = trace
    print(f"ptqc: internal fault: {type(error).__name__}: {_one_line(error)}; {where}", file=sys.stderr)
    return 70


def _reproduction(words: Sequence[str]) -> str:
    """The command that failed, and of a compile the one that shrinks its model."""
    told = shlex.join(["ptqc", *words])
    if words[:1] != ["compile"]:
        return told
    options = _parser().parse_args(_joined(words))
    stand_ins = {options.model: "{model}", options.calibration: "{data}"}
    samples = [] if options.calibration == "synthetic" else ["--calibration", options.calibration]
    trial = [stand_ins.get(word, word) for word in words]
    reduction = shlex.join(["ptqc", "reduce", options.model, "-o", "small.onnx", *samples, "--", *trial])
    return f"{told}\n\nTo shrink the model to what matters:\n{reduction}"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ptqc", description="Post-training quantization compiler for ONNX models.")
    parser.add_argument("--version", action="version", version=f"ptqc {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_compile(commands.add_parser("compile", help="compile an ONNX model to a byte budget"))
    _add_resolve(commands.add_parser("resolve", help="another budget from what a compile measured"))
    listed = commands.add_parser("passes", help="the passes in their order, what each does, and its options")
    listed.set_defaults(run=_passes)
    inspected = commands.add_parser("inspect", help="what a model is and what compiling it would take, without data")
    inspected.add_argument("model", help="the ONNX file; it is not changed")
    inspected.add_argument("--json", action="store_true", help="print everything as JSON")
    inspected.set_defaults(run=_inspect)
    explain = commands.add_parser("explain", help="what was decided for each layer, and why")
    explain.add_argument("folder", help="a folder that `ptqc compile` wrote")
    explain.set_defaults(run=_explain)
    _add_cache(commands.add_parser("cache", help="the store of measurements: its size, or clear it"))
    _add_verify(commands.add_parser("verify", help="check an artifact anew, on this machine"))
    _add_bisect(commands.add_parser("bisect", help="compare the native library with the ONNX file, kernel by kernel"))
    _add_reduce(
        commands.add_parser(
            "reduce",
            help="shrink a model on which a command fails",
            usage="%(prog)s MODEL -o FILE [options] [-- COMMAND]",
            epilog="COMMAND: one of ptqc, or another program, with {model} where the file goes and {data} where "
            "samples for its inputs go; default: compile {model} --calibration {data} -o out --cache cache. It runs in "
            "a folder of its own.",
        )
    )
    bench = commands.add_parser("bench", help="how long each kernel of the native library takes")
    bench.add_argument("folder", help="a folder that `ptqc compile --target T` wrote")
    bench.add_argument("--threads", type=int, metavar="N", help="threads of a run (default 1)")
    bench.add_argument("--isa", metavar="ISA", help="the library for this instruction set (default: the best one)")
    bench.set_defaults(run=_bench)
    return parser


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the ONNX file; it is not changed")
    parser.add_argument(
        "--calibration",
        metavar="DATA",
        help="a few hundred unlabelled samples: a folder of images, an .npz (one array per input) or .npy file, "
        "a folder of those, module:function, or the word synthetic: samples drawn by ptqc, at a loss of accuracy",
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
        action="append",
        metavar="[OUTPUT=]KIND",
        help="how outputs are compared: auto (default), logits, embedding, detection, …; once per output",
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
        action="append",
        dest="rewrites",
        metavar="NAME",
        help="a rewrite that an installed package adds, run on the normal form; once for each (see `ptqc passes`)",
    )
    parser.add_argument(
        "--dump-passes", metavar="DIR", help="write what every pass made: the model as text, what was found out as JSON"
    )
    _add_preprocessing(parser)
    parser.set_defaults(run=_compile)


def _add_resolve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `ptqc compile` wrote")
    _add_common(parser)
    parser.add_argument("--plan", metavar="FILE", help="take the decisions of this plan.json instead of solving")
    _add_preprocessing(parser)
    parser.set_defaults(run=_resolve)


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("size", "clear"), help="say how large it is, or remove what nobody is using")
    parser.add_argument("--cache", metavar="DIR", help="the store (default ~/.cache/ptqc, or $PTQC_CACHE)")
    parser.set_defaults(run=_cache)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `ptqc compile` wrote")
    parser.add_argument("--model", metavar="FILE", help="the float model, to check that it is the one compiled")
    parser.add_argument("--onnx-only", action="store_true", help="leave the native library out")
    parser.set_defaults(run=_verify)


def _add_bisect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder that `ptqc compile --target T` wrote")
    parser.add_argument(
        "--calibration",
        metavar="DATA",
        help="samples to run on, given as for compile, beside inputs at the ends of what was seen, zero and random",
    )
    parser.add_argument("--samples", type=int, metavar="N", help="samples used at most (default 8)")
    _add_preprocessing(parser)
    parser.set_defaults(run=_bisect)


def _add_reduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the ONNX file; it is not changed")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the .onnx file to write; .npz beside it")
    parser.add_argument("--message", metavar="REGEX", help="what the message of the failure that is meant matches")
    parser.add_argument("--calibration", metavar="DATA", help="samples, as for compile (default: drawn)")
    parser.add_argument("--time-limit", type=parse_seconds, metavar="T", help="90s, 5m or 1h: take the smallest so far")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    _add_preprocessing(parser)
    parser.set_defaults(run=_reduce)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--budget",
        action="append",
        metavar="B",
        help="13%% of the model's size, 4.5MB, 900KiB or 4.2bit (per weight); 2ms or 800us for one sample on one "
        "thread of this machine; a size and a latency may be given together",
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
        "--labels",
        metavar="DATA",
        help="labelled samples to report top-1 accuracy on: an .npz with the inputs and `labels`, or a CSV of "
        "image,class-number lines (paths relative to it)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end with 2, and write nothing, where the file takes longer than the latency budget",
    )
    parser.add_argument("--force", action="store_true", help="replace the output folder")
    parser.add_argument("--cache", metavar="DIR", help="where measurements are kept (default ~/.cache/ptqc)")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    _add_targets(parser)


def _add_targets(parser: argparse.ArgumentParser) -> None:
    from ptqc.codegen.targets import names, options_of

    told = "; ".join(f"{name}: {options_of(name).title}" for name in names())
    group = parser.add_argument_group("targets", "what is built beside the ONNX file")
    group.add_argument("--target", metavar="T", help=told)
    group.add_argument(
        "--allow-missing-target", action="store_true", help="deliver the rest where the target cannot be built"
    )
    for option in _target_options().values():
        group.add_argument(f"--{option.name.replace('_', '-')}", **option.metadata)


def _target_options() -> dict[str, dataclasses.Field[Any]]:
    """The options of all targets by name; one that several have is told as the first tells it."""
    from ptqc.codegen.targets import names, options_of

    found: dict[str, dataclasses.Field[Any]] = {}
    for option in (option for name in names() for option in dataclasses.fields(options_of(name))):
        found.setdefault(option.name, option)
    return found


def _add_preprocessing(parser: argparse.ArgumentParser) -> None:
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
        group.add_argument(f"--{name.replace('_', '-')}", metavar="V", help=example)


def _bits(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of widths such as 2,3,4")
    return tuple(int(part) for part in text.split(","))


def _loss(given: Sequence[str]) -> str | dict[str, str]:
    """One kind for all outputs, or a kind for each that is named."""
    named = [text.rpartition("=") for text in given]
    if len(given) == 1 and not named[0][1]:
        return given[0]
    if plain := [text for text, (_, equals, _) in zip(given, named, strict=True) if not equals]:
        raise UsageError(f"--loss {plain[0]} is for all outputs; beside another --loss, give OUTPUT=KIND")
    return {output: kind for output, _, kind in named}


def _compile(options: argparse.Namespace) -> None:
    from ptqc.compiler import compile
    from ptqc.work.progress import for_terminal

    names = ("samples", "observer", "activations", "activation_limit", "loss", "bits", "allow_8bit", "seed", "pipeline")
    given = _given(options, *names, "time_limit", "cast_double", "float_layers", "inline", "rewrites")
    if options.loss:
        given["loss"] = _loss(options.loss)
    artifact = compile(
        options.model,
        calibration=options.calibration,
        output=options.output,
        budget=options.budget,
        preprocessing=_preprocessing(options),
        labels=options.labels,
        force=options.force,
        strict=options.strict,
        cache=options.cache,
        dump_passes=options.dump_passes,
        times=options.times,
        progress=for_terminal(options.quiet),
        **given,
        **_given(options, "target", "allow_missing_target", *_target_options()),
    )
    _done(artifact, options)


def _resolve(options: argparse.Namespace) -> None:
    from ptqc.compiler import resolve
    from ptqc.work.progress import for_terminal

    artifact = resolve(
        options.folder,
        output=options.output,
        budget=options.budget,
        plan=_plan(options.plan),
        preprocessing=_preprocessing(options),
        labels=options.labels,
        force=options.force,
        strict=options.strict,
        cache=options.cache,
        pipeline=options.pipeline,
        progress=for_terminal(options.quiet),
        **_given(options, "time_limit", "float_layers", "inline", "target", "allow_missing_target", *_target_options()),
    )
    _done(artifact, options)


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Options that the command line states; others keep their defaults."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _plan(path: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        document: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the plan {path}: {error}") from error
    return document


def _done(artifact: Any, options: argparse.Namespace) -> None:
    if not options.quiet:
        print(artifact.summary())
        print(f"\nwritten to  {options.output}  (ship {options.output.rstrip('/')}/model.onnx; see report.html)")


def _preprocessing(options: argparse.Namespace) -> Any:
    """The stated preprocessing; its defaults when nothing is stated."""
    from ptqc.calibration.images import Preprocessing

    base = Preprocessing.from_file(Path(options.preprocessing)) if options.preprocessing else None
    return Preprocessing.parse(_given(options, *PREPROCESSING), base)


def _explain(options: argparse.Namespace) -> None:
    from ptqc.artifact.folder import load
    from ptqc.report.summary import explain

    artifact = load(options.folder)
    print(explain(artifact.manifest, artifact.plan, artifact.sensitivity))


def _cache(options: argparse.Namespace) -> None:
    from ptqc.store.entries import Store, default_folder
    from ptqc.store.housekeeping import clear, contents

    store = Store(Path(options.cache) if options.cache is not None else default_folder())
    print(clear(store) if options.action == "clear" else contents(store), f"in {store.folder}")


def _verify(options: argparse.Namespace) -> None:
    from ptqc.artifact.verify import verify

    print(verify(options.folder, model=options.model, onnx_only=options.onnx_only))


def _bisect(options: argparse.Namespace) -> None:
    from ptqc.artifact.bisect import bisect

    given = _given(options, "calibration", "samples")
    found = bisect(options.folder, preprocessing=_preprocessing(options), **given)
    if found.first is not None:
        raise VerificationError(str(found))
    print(found)


def _reduce(options: argparse.Namespace) -> None:
    from ptqc.reducing import reduce
    from ptqc.work.progress import for_terminal

    given = _given(options, "calibration", "message", "time_limit")
    if options.command:
        given["command"] = options.command
    found = reduce(
        options.model,
        output=options.output,
        preprocessing=_preprocessing(options),
        progress=for_terminal(options.quiet),
        **given,
    )
    if not options.quiet:
        print(found)


def _inspect(options: argparse.Namespace) -> None:
    from ptqc.stages.inspecting import inspect

    found = inspect(options.model)
    print(json.dumps(found.to_json(), indent=1) if options.json else found)


def _passes(options: argparse.Namespace) -> None:  # noqa: ARG001
    from ptqc.passes.registry import listing

    print(listing())


def _bench(options: argparse.Namespace) -> None:
    from ptqc.artifact.bench import bench

    print(bench(options.folder, **_given(options, "threads", "isa")))


if __name__ == "__main__":
    run()
