"""The commands of ptqc: each takes what the command line says and calls the Python API."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptqc.errors import Interrupted, UsageError, VerificationError

TEXTS = ("unit", "length", "overlong", "padding", "padding_side", "padding_token", "special_tokens")
PREPROCESSING = ("resize", "crop", "fit", "scale", "mean", "std", "layout", "channel_order", "resample", "fill")


def run_compile(options: argparse.Namespace) -> None:
    """`ptqc compile`."""
    from ptqc.api import compile
    from ptqc.work.progress import for_terminal

    names = ("samples", "observer", "activations", "activation_limit", "loss", "bits", "allow_8bit", "seed", "pipeline")
    given = _given(options, *names, "time_limit", "cast_double", "float_layers", "inline", "rewrites")
    if options.loss:
        given["loss"] = kinds_of(options.loss)
    artifact = compile(
        options.model,
        calibration=_data(options),
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
        **_given(options, "target", "allow_missing_target", *target_options()),
    )
    _done(artifact, options)


def run_resolve(options: argparse.Namespace) -> None:
    """`ptqc resolve`."""
    from ptqc.api import resolve
    from ptqc.work.progress import for_terminal

    artifact = resolve(
        options.folder,
        output=options.output,
        budget=options.budget,
        plan=_plan(options.plan),
        calibration=_data(options),
        preprocessing=_preprocessing(options),
        labels=options.labels,
        force=options.force,
        strict=options.strict,
        cache=options.cache,
        pipeline=options.pipeline,
        progress=for_terminal(options.quiet),
        **_given(options, "time_limit", "float_layers", "inline", "target", "allow_missing_target", *target_options()),
    )
    _done(artifact, options)


def run_sweep(options: argparse.Namespace) -> None:
    """`ptqc sweep`."""
    from ptqc.stages.sweep import sweep
    from ptqc.work.progress import for_terminal

    given = _given(options, "points", "cache", "time_limit")
    if options.budgets is not None:
        given["budgets"] = options.budgets.split(",")
    found = sweep(options.folder, progress=for_terminal(options.quiet), **given)
    if not options.quiet:
        print(found)
        print(f"\nadded to  {options.folder}  (sweep.json, and a plot in report.html)")


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


def _data(options: argparse.Namespace) -> Any:
    """The stated samples: of texts, where a tokenizer is given."""
    from ptqc.calibration.texts import Texts

    stated = _given(options, *TEXTS)
    if options.tokenizer is None:
        if stated:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in stated)
            raise UsageError(f"{names} is of texts: give their --tokenizer too")
        return options.calibration
    if options.calibration is None:
        raise UsageError("a --tokenizer was given, and no texts: give them with --calibration FILE")
    return Texts(options.calibration, options.tokenizer, **stated)


def _judged(options: argparse.Namespace) -> Any:
    """The data of `ptqc eval`: with arrays, a tokenizer is there for what the model answers."""
    from ptqc.calibration.texts import holds_texts

    return _data(options) if holds_texts(options.calibration) else options.calibration


def run_explain(options: argparse.Namespace) -> None:
    """`ptqc explain`."""
    from ptqc.artifact.folder import load
    from ptqc.report.summary import explain

    artifact = load(options.folder)
    print(explain(artifact.manifest, artifact.plan, artifact.sensitivity))


def run_cache(options: argparse.Namespace) -> None:
    """`ptqc cache`."""
    from ptqc.store.entries import Store
    from ptqc.store.housekeeping import clear, contents

    store = Store.at(options.cache)
    print(clear(store) if options.action == "clear" else contents(store), f"in {store.folder}")


def run_doctor(options: argparse.Namespace) -> None:
    """`ptqc doctor`; what is lacking is of the environment."""
    from ptqc.stages.doctor import examine

    found = examine(options.cache)
    print(json.dumps(found.to_json(), indent=1) if options.json else found)
    if not found.is_well:
        raise Interrupted("something that a compile needs is lacking: mend it, and run the same command again")


def run_verify(options: argparse.Namespace) -> None:
    """`ptqc verify`."""
    from ptqc.artifact.verify import verify

    print(verify(options.folder, model=options.model, onnx_only=options.onnx_only))


def run_bisect(options: argparse.Namespace) -> None:
    """`ptqc bisect`; what differs is a VerificationError."""
    from ptqc.artifact.bisect import bisect

    given = _given(options, "samples")
    found = bisect(options.folder, calibration=_data(options), preprocessing=_preprocessing(options), **given)
    if found.first is not None:
        raise VerificationError(str(found))
    print(found)


def run_reduce(options: argparse.Namespace) -> None:
    """`ptqc reduce`."""
    from ptqc.reducing import reduce
    from ptqc.work.progress import for_terminal

    given = _given(options, "message", "time_limit")
    if options.command:
        given["command"] = options.command
    found = reduce(
        options.model,
        output=options.output,
        calibration=_data(options),
        preprocessing=_preprocessing(options),
        progress=for_terminal(options.quiet),
        **given,
    )
    if not options.quiet:
        print(found)


def run_inspect(options: argparse.Namespace) -> None:
    """`ptqc inspect`."""
    from ptqc.stages.inspecting import inspect

    found = inspect(options.model)
    print(json.dumps(found.to_json(), indent=1) if options.json else found)


def run_passes(options: argparse.Namespace) -> None:  # noqa: ARG001
    """`ptqc passes`."""
    from ptqc.passes.registry import listing

    print(listing())


def run_bench(options: argparse.Namespace) -> None:
    """`ptqc bench`."""
    from ptqc.artifact.bench import bench

    print(bench(options.folder, **_given(options, "threads", "isa")))


def run_compare(options: argparse.Namespace) -> None:
    """`ptqc compare`."""
    from ptqc.stages.comparing import compare
    from ptqc.work.progress import for_terminal

    found = compare(
        *options.models,
        calibration=_data(options),
        preprocessing=_preprocessing(options),
        progress=for_terminal(options.json),
        **_given(options, "samples", "threads"),
    )
    print(json.dumps(found.to_json(), indent=1) if options.json else found)


def run_eval(options: argparse.Namespace) -> None:
    """`ptqc eval`."""
    from ptqc.stages.evaluating import evaluate
    from ptqc.work.progress import for_terminal

    found = evaluate(
        *options.models,
        metric=options.metric,
        data=_judged(options),
        preprocessing=_preprocessing(options),
        progress=for_terminal(options.json),
        **_given(options, "labels", "output", "samples", "threads", "tokenizer"),
    )
    print(json.dumps(found.to_json(), indent=1) if options.json else found)


def kinds_of(given: Sequence[str]) -> str | dict[str, str]:
    """One kind for all outputs, or a kind for each that is named."""
    named = [text.rpartition("=") for text in given]
    if len(given) == 1 and not named[0][1]:
        return given[0]
    if plain := [text for text, (_, equals, _) in zip(given, named, strict=True) if not equals]:
        raise UsageError(f"--loss {plain[0]} is for all outputs; beside another --loss, give OUTPUT=KIND")
    return {output: kind for output, _, kind in named}


def target_options() -> dict[str, dataclasses.Field[Any]]:
    """The options of all targets by name; one that several have is told as the first tells it."""
    from ptqc.codegen.targets import names, options_of

    found: dict[str, dataclasses.Field[Any]] = {}
    for option in (option for name in names() for option in dataclasses.fields(options_of(name))):
        found.setdefault(option.name, option)
    return found
