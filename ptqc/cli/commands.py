"""The commands of ptqc: each takes what the command line says and calls the Python API."""

import argparse
import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ptqc import presets
from ptqc.errors import UNREADABLE, Interrupted, Missed, ModelError, PtqcError, UsageError, VerificationError
from ptqc.options import CompileOptions, Phase
from ptqc.utils.text import printable

if TYPE_CHECKING:
    from ptqc.artifact.folder import Artifact

# Of every document that --json prints; fields that are added do not raise it.
SCHEMA = 1
TEXTS = ("unit", "length", "overlong", "padding", "padding_side", "padding_token", "special_tokens")
PREPROCESSING = ("resize", "crop", "fit", "scale", "mean", "std", "layout", "channel_order", "resample", "fill")

DETECTOR = ("boxes", "box_unit", "columns", "scores", "classes", "anchors", "variances", "overlap", "outputs")


class Printable(Protocol):
    """What a command found: its text is for people, `to_json` for programs."""

    def to_json(self) -> dict[str, Any]:
        """The document without its head."""


def flag(name: str) -> str:
    """An option of the Python API as the command line calls it."""
    return f"--{name.replace('_', '-')}"


def document(command: str, values: dict[str, Any]) -> str:
    """What --json prints: the schema's version and the command, then what was found."""
    return json.dumps({"schema": SCHEMA, "command": command, **_finite(values)}, indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    """The value with null for numbers that JSON has none for."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tell(result: Printable, options: argparse.Namespace, more: str = "", *, is_answer: bool = False) -> None:
    """Print a result as it was asked for. more: what people are told beside it. is_answer: even where it is quiet."""
    if options.json:
        print(document(options.name, result.to_json()))
    elif is_answer or not getattr(options, "quiet", False):
        print(printable(f"{result}{more}"))


def _holding(result: Printable, error: PtqcError) -> PtqcError:
    """The error of a command that found what is wrong; one document of `--json` has both."""
    error.found = result.to_json()
    return error


def _progress(options: argparse.Namespace) -> Any:
    from ptqc.utils.progress import for_terminal

    return for_terminal(options.quiet)


def run_compile(options: argparse.Namespace) -> None:
    """`ptqc compile`."""
    from ptqc.api import compile

    artifact = compile(
        options.model,
        calibration=data_of(options),
        output=options.output,
        budget=options.budget,
        preprocessing=_preprocessing(options),
        detector=_detector(options),
        labels=_labels(options),
        force=options.force,
        strict=options.strict,
        cache=options.cache,
        dump_passes=options.dump_passes,
        times=options.times,
        progress=_progress(options),
        **_stated(options),
        **_passed(options, "executor", "workers", "target", "allow_missing_target", *target_options()),
    )
    _done(artifact, options)


def run_resolve(options: argparse.Namespace) -> None:
    """`ptqc resolve`."""
    from ptqc.api import resolve

    artifact = resolve(
        options.folder,
        output=options.output,
        budget=options.budget,
        plan=_plan(options.plan),
        data=data_of(options),
        preprocessing=_preprocessing(options, options.folder),
        labels=_labels(options),
        force=options.force,
        strict=options.strict,
        cache=options.cache,
        progress=_progress(options),
        **_stated(options, Phase.FIT),
        **_passed(options, "target", "allow_missing_target", *target_options()),
    )
    _done(artifact, options)


def run_sweep(options: argparse.Namespace) -> None:
    """`ptqc sweep`."""
    from ptqc.tools.sweep import sweep

    passed = _passed(options, "points", "cache", "time_limit")
    if options.budgets is not None:
        passed["budgets"] = options.budgets.split(",")
    result = sweep(options.folder, progress=_progress(options), **passed)
    _tell(result, options, f"\n\nadded to  {options.folder}  (sweep.json, and a plot in report.html)")


def _passed(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Options that the command line states; others keep their defaults."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _stated(options: argparse.Namespace, first: Phase = Phase.SOLVE) -> dict[str, Any]:
    """The fields of `CompileOptions` that the command line states, from those on that a phase reads first."""
    stated = _passed(options, *CompileOptions.names(first))
    for option in dataclasses.fields(CompileOptions):
        if (per := option.metadata["per"]) and option.name in stated:
            stated[option.name] = kinds_of(stated[option.name], flag(option.name), per)
    return stated


def _plan(path: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        document: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except UNREADABLE as error:
        raise UsageError(f"cannot read the plan {path}: {error}") from error
    return document


def _done(artifact: "Artifact", options: argparse.Namespace) -> None:
    from ptqc.artifact.results import c_sources

    ships = next((artifact.folder / name for name in c_sources(artifact.manifest)), artifact.path)
    _tell(artifact, options, f"\n\nwritten to  {options.output}  (ship {ships}; see report.html)")


def _preprocessing(options: argparse.Namespace, *models: str) -> Any:
    """Read the options of images; those that are not stated are as a preset, a file or an artifact has them.

    None where nothing is stated and a model is an artifact, which is asked later.
    """
    from ptqc.artifact.folder import artifact_of
    from ptqc.calibration.images import Preprocessing

    stated, named = _passed(options, *PREPROCESSING), options.preprocessing
    _check_for_images(options)
    if not (stated or named) and any(Path(model).is_dir() or artifact_of(Path(model)) for model in models):
        return None
    if named:
        is_file = named not in presets.PREPROCESSING and (Path(named).suffix or Path(named).exists())
        if not is_file:
            preset = presets.preset("preprocessing", named, presets.PREPROCESSING, ", or a TOML file")
            return Preprocessing.parse(stated, Preprocessing(**preset.fields))
        return Preprocessing.parse(stated, Preprocessing.from_file(Path(named)))
    return Preprocessing.parse(stated, _recorded(models, "preprocessing"))


def _check_for_images(options: argparse.Namespace) -> None:
    """Raises UsageError for options of images on the command line where nothing holds images."""
    from ptqc.calibration.sources import may_hold_images

    stated = _passed(options, *PREPROCESSING, "preprocessing").keys() - options.configured
    data = [one for one in (_source(options), getattr(options, "labels", None)) if one is not None]
    if stated and data and not any(map(may_hold_images, data)):
        words = ", ".join(sorted(flag(name) for name in stated))
        raise UsageError(f"{words} applies to images only, and {' and '.join(data)} holds none: leave it out")


def _detector(options: argparse.Namespace, *models: str) -> Any:
    """Read the options of detectors; those that are not stated are as a preset or an artifact has them.

    None if nothing is stated.
    """
    from ptqc.evaluation.detection.detector import Detector

    stated = _passed(options, *DETECTOR)
    if options.detector:
        return Detector.parse({**presets.preset("detector", options.detector, presets.DETECTORS).fields, **stated})
    return Detector.parse(stated, _recorded(models, "detector")) if stated else None


def _recorded(models: Sequence[str], what: str) -> Any:
    """What the first artifact keeps that keeps any. Raises the errors of `ptqc.load`."""
    from ptqc.artifact.folder import artifact_of, load

    artifacts = (load(model) if Path(model).is_dir() else artifact_of(Path(model)) for model in models)
    return next(filter(None, (getattr(artifact, what) for artifact in artifacts if artifact is not None)), None)


def data_of(options: argparse.Namespace) -> Any:
    """Read the options of samples; with a tokenizer, they are of text.

    A configuration file may have a tokenizer and options of text for other commands than this one.
    """
    from ptqc.calibration.texts import Texts, holds_texts, is_table

    stated, source = _passed(options, *TEXTS), _source(options)
    words = ", ".join(flag(name) for name in stated if name not in options.configured)
    if options.tokenizer is None:
        if words:
            raise UsageError(f"{words} applies to text only: give its --tokenizer, too")
        return source
    has_table = is_table(getattr(options, "labels", None))
    if ("tokenizer" in options.configured or has_table) and (source is None or not holds_texts(source)):
        if words and not has_table:
            raise UsageError(f"{words} applies to text only, and the data are none: give a text file or folder")
        return source
    if source is None:
        name = "--calibration" if "calibration" in options else "--data"
        raise UsageError(f"--tokenizer is given, but no text: give it with {name} FILE")
    return Texts(source, options.tokenizer, **stated)


def _labels(options: argparse.Namespace) -> Any:
    """Read the labelled samples; a .tsv is of texts, whatever the other samples are."""
    from ptqc.calibration.texts import SETTINGS, Texts, is_table

    if options.tokenizer is None or not is_table(options.labels):
        return options.labels
    return Texts(options.labels, options.tokenizer, **_passed(options, *SETTINGS))


def _source(options: argparse.Namespace) -> str | None:
    """The samples as the command line names them, whether they calibrate or not."""
    named: str | None = options.calibration if "calibration" in options else options.data
    return named


def _judged(options: argparse.Namespace) -> Any:
    """The data of `ptqc eval`: with arrays, a tokenizer is there for what the model answers."""
    from ptqc.calibration.texts import holds_texts

    return data_of(options) if holds_texts(options.data) else options.data


def run_expand(options: argparse.Namespace) -> None:
    """`ptqc expand`."""
    from ptqc.artifact.expand import expand

    result = expand(options.folder, output=options.output, force=options.force)
    _tell(result, options, f"\n\nwritten to  {options.output}  (for this device; go on shipping the packed file)")


def run_explain(options: argparse.Namespace) -> None:
    """`ptqc explain`."""
    from ptqc.artifact.folder import load
    from ptqc.artifact.report.explanation import Explanation

    artifact = load(options.folder)
    _tell(Explanation(artifact.manifest, artifact.plan, artifact.sensitivity), options)


def run_cache(options: argparse.Namespace) -> None:
    """`ptqc cache`."""
    from ptqc.utils.store import clear, contents, store_at

    store = store_at(options.cache)
    _tell(clear(store) if options.action == "clear" else contents(store), options, f" in {store.folder}")


def run_doctor(options: argparse.Namespace) -> None:
    """`ptqc doctor`; what is lacking is of the environment."""
    from ptqc.tools.doctor import examine

    result = examine(options.cache)
    if result.is_well or not options.json:
        _tell(result, options)
    if not result.is_well:
        lacking = "something that a compile needs is missing: fix it, and run the same command again"
        raise _holding(result, Interrupted(lacking))


def run_verify(options: argparse.Namespace) -> None:
    """`ptqc verify`."""
    from ptqc.artifact.verify import verify

    result = verify(options.folder, model=options.model, onnx_only=options.onnx_only, runtimes=options.runtime)
    _tell(result, options)


def run_bisect(options: argparse.Namespace) -> None:
    """`ptqc bisect`; what differs is a VerificationError."""
    from ptqc.artifact.bisect import bisect

    passed = _passed(options, "samples")
    result = bisect(
        options.folder, data=data_of(options), preprocessing=_preprocessing(options, options.folder), **passed
    )
    if result.first is not None:
        raise _holding(result, VerificationError(str(result)))
    _tell(result, options)


def run_reduce(options: argparse.Namespace) -> None:
    """`ptqc reduce`."""
    from ptqc.tools.reduce import reduce

    passed = _passed(options, "message", "time_limit")
    if options.command:
        passed["command"] = options.command
    result = reduce(
        options.model,
        output=options.output,
        data=data_of(options),
        preprocessing=_preprocessing(options),
        progress=_progress(options),
        **passed,
    )
    _tell(result, options)


def run_inspect(options: argparse.Namespace) -> None:
    """`ptqc inspect`; what is found of a refused model is told as well."""
    from ptqc.tools.inspecting import inspect

    result = inspect(options.model)
    if result.refusal is None:
        _tell(result, options)
        return
    if not options.json:
        print(printable(result))
    message = result.refusal if options.json else "`ptqc compile` would refuse this model, for the reason above"
    raise _holding(result, ModelError(message))


def run_passes(options: argparse.Namespace) -> None:
    """`ptqc passes`."""
    from ptqc.passes.registry import listing

    _tell(listing(), options)


def run_bench(options: argparse.Namespace) -> None:
    """`ptqc bench`."""
    from ptqc.tools.benching import bench

    _tell(bench(options.model, **_passed(options, "threads", "cpu")), options)


def run_completion(options: argparse.Namespace) -> None:
    """`ptqc completion`."""
    import shtab

    from ptqc.cli.help import possible_values_of

    kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "DATA": shtab.FILE, "FOLDER": shtab.DIRECTORY}
    parser, known = options.parsers()
    for action in (action for command in known.values() for action in command._actions):
        if wanted := kinds.get(str(action.metavar), shtab.FILE if action.metavar == "MODEL" else None):
            action.complete = wanted
        elif values := possible_values_of(action):
            action.choices = values
        vars(action).pop("described", None)
        action.help = re.split(r"[;:(]| …", action.help or "")[0].strip()
    print(shtab.complete(parser, options.shell))


def run_help(options: argparse.Namespace) -> None:
    """`ptqc help`."""
    from ptqc.cli.topics import TOPICS, listing

    if options.topic in TOPICS:
        print(TOPICS[options.topic].text())
    elif options.topic:
        print(options.parsers()[1][options.topic].format_help(), end="")
    else:
        print(listing())


def run_run(options: argparse.Namespace) -> None:
    """`ptqc run`."""
    from ptqc.tools.running import run

    result = run(
        options.model,
        data_of(options),
        output=options.output,
        preprocessing=_preprocessing(options, options.model),
        onnx_only=options.onnx_only,
        progress=_progress(options),
        **_passed(options, "threads"),
    )
    _tell(result, options)


def run_compare(options: argparse.Namespace) -> None:
    """`ptqc compare`."""
    from ptqc.tools.comparing import compare
    from ptqc.utils.progress import SILENT

    result = compare(
        *options.models,
        data=data_of(options),
        preprocessing=_preprocessing(options, *options.models),
        runtimes=options.runtime,
        progress=SILENT if options.json else _progress(options),
        **_passed(options, "samples", "threads"),
    )
    _tell(result, options, is_answer=True)


def run_eval(options: argparse.Namespace) -> None:
    """`ptqc eval`."""
    from ptqc.tools.evaluating import evaluate
    from ptqc.utils.progress import SILENT

    result = evaluate(
        *options.models,
        metric=options.metric,
        data=_judged(options),
        preprocessing=_preprocessing(options, *options.models),
        detector=_detector(options, *options.models),
        progress=SILENT if options.json else _progress(options),
        **_passed(options, "labels", "score_output", "samples", "threads", "tokenizer"),
    )
    try:
        if options.max_drop is not None:
            result.check_drop(options.max_drop)
    except Missed as missed:
        if not options.json:
            print(printable(result))
        raise _holding(result, missed) from None
    _tell(result, options, is_answer=True)


def kinds_of(texts: Sequence[str], option: str, what: str) -> str | dict[str, str]:
    """One kind for all outputs (or inputs), or a kind for each that is named."""
    named = [text.rpartition("=") for text in texts]
    if len(texts) == 1 and not named[0][1]:
        return texts[0]
    if plain := [text for text, (_, equals, _) in zip(texts, named, strict=True) if not equals]:
        raise UsageError(
            f"{option} {plain[0]} applies to all {what}s; to give several {option}, write {what.upper()}=KIND"
        )
    return {name: kind for name, _, kind in named}


def target_options() -> dict[str, dataclasses.Field[Any]]:
    """The options of all targets by name; one that several have is told as the first tells it."""
    from ptqc.codegen.targets import names, options_of

    result: dict[str, dataclasses.Field[Any]] = {}
    for option in (option for name in names() for option in dataclasses.fields(options_of(name))):
        result.setdefault(option.name, option)
    return result
