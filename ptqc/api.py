"""`ptqc.compile` and `ptqc.resolve`: what users give, checked, as a request to the compiler."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from inspect import Parameter, signature
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_type_hints

from ptqc import options
from ptqc.artifact import folder as artifact
from ptqc.artifact.build_target import check_samples, check_target
from ptqc.artifact.folder import Artifact, check_output, reserved
from ptqc.artifact.recorded_times import times_of
from ptqc.budget import AnyBudget, parse_budgets
from ptqc.calibration.images import AnyPreprocessing, Preprocessing
from ptqc.calibration.module_example import exported, is_module
from ptqc.calibration.texts import Texts, is_table, with_tokenizer
from ptqc.codegen.targets import Chosen, TargetKeywords, built_in_options, choose, choose_as_compiled
from ptqc.compiler import CompileRequest, compile_model, resolve_job
from ptqc.errors import UsageError
from ptqc.evaluation.detection.detector import AnyDetector, Detector
from ptqc.evaluation.labels import AnyLabels, labels_of
from ptqc.evaluation.scoring import Evaluate, OwnScore
from ptqc.frontend.in_memory import Model
from ptqc.ir.plan import Plan
from ptqc.ir.runtimes import RULES as RUNTIMES
from ptqc.options import CompileOptions, Phase
from ptqc.passes.allocate.constraints.latency import LatencyBudget, fitting_times
from ptqc.passes.allocate.state import Budgets, CompileState
from ptqc.passes.dump import NO_DUMP, Dump
from ptqc.passes.quantize.measure import recall
from ptqc.passes.registry import added_rewrites, check_extensions
from ptqc.utils.arguments import path_of, shown
from ptqc.utils.executors.registry import DEFAULT, executor_of
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.progress import SILENT, Progress, check_progress
from ptqc.utils.signatures import lists_keywords
from ptqc.utils.store import store_at

if TYPE_CHECKING:
    import torch


class CompileKeywords(options.Keywords, TargetKeywords, total=False):
    """All options of `compile` by name, for type checkers."""


class ResolveKeywords(options.FitKeywords, TargetKeywords, total=False):
    """All options of `resolve` by name, for type checkers."""


class _ByTarget:
    def __repr__(self) -> str:
        return "<by target>"


def _keywords(first: Phase) -> tuple[list[Parameter], dict[str, str]]:
    """The options of a phase and the later ones, then those of ptqc's own targets; and the help of each."""
    hints, result, texts = get_type_hints(CompileOptions), list[Parameter](), dict[str, str]()
    is_compile = first is Phase.SOLVE  # a default of None: as in the earlier compile
    for option in fields(CompileOptions):
        if option.metadata["phase"] >= first:
            default = option.default if is_compile else None
            kind = hints[option.name]
            result.append(Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
            texts[option.name] = f"{option.metadata['help']}."
    hints = get_type_hints(TargetKeywords)
    for name, declared in built_in_options().items():
        defaults = {option.default for option in declared}
        default = None if not is_compile else defaults.pop() if len(defaults) == 1 else _ByTarget()
        result.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name]))
        texts[name] = f"with a target: {declared[0].metadata['help']}."
    return result, texts


@lists_keywords(*_keywords(Phase.SOLVE))
@quiet_libraries()
def compile(  # noqa: A001
    model: "Model | torch.nn.Module",
    *,
    calibration: object = None,
    output: str | Path,
    budget: AnyBudget = None,
    preprocessing: AnyPreprocessing | None = None,
    detector: AnyDetector | None = None,
    labels: AnyLabels | None = None,
    evaluate: Evaluate | None = None,
    perfect_score: float | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    dump_passes: str | Path | None = None,
    target: str | None = None,
    allow_missing_target: bool = False,
    times: str | PathLike[str] | None = None,
    progress: Progress = SILENT,
    strict: bool = False,
    executor: str = DEFAULT,
    workers: int = 0,
    **keywords: Unpack[CompileKeywords],
) -> Artifact:
    """Compile an ONNX model to a smaller, verified ONNX file.

    Args:
        model: The float model: a path, the bytes of an ONNX file, an
            `onnx.ModelProto`, an `onnx_ir.Model`, a PyTorch module (exported
            with the shapes of the calibration samples), or the result of
            `ptqc.from_torch`.
        calibration: Required: a few hundred samples of what the model will
            read: a folder of images, an .npz or .npy file,
            "module:function", an ONNX Runtime `CalibrationDataReader`,
            `ptqc.Texts`, an array (axis 0 is the batch), or an iterable of
            arrays or of dicts from input names to arrays, one sample or one
            batch each. Arrays have the dtype and rank of the model's input.
            "synthetic" generates samples, at a loss of accuracy.
        output: The folder to write; it must not exist without `force`.
        budget: What the file may cost, or a list of several such limits:
            size ("13%" of the float file, "4.5MB", "4.2bit" per weight, or
            a number of bytes as an int), latency of one sample ("2ms" in
            ONNX Runtime, `"2ms@cpu"` in the library of target "cpu",
            `"50us@cuda"` predicted for target "cuda"), memory ("60MBram";
            "64KBflash" with target "c"), caches of a decoder ("25%cache"),
            or accuracy ("0.02nat", "99%same" top classes, "1%drop" of the
            score). Accuracy alone gives the smallest file. None: the best
            accuracy with integer kernels.
        preprocessing: How image files become inputs, or the name of a preset
            such as "imagenet".
        detector: How a detector writes its boxes, or the name of a preset
            such as "yolov8"; for the report, `labels` and later evaluations.
        labels: Labelled samples for the score in the report and for
            "1%drop". For top-1 accuracy in percent: an .npz with inputs and
            `labels`, a dict of such arrays, a CSV of image,class, a .tsv of
            text and class (read as `calibration`, or a `ptqc.Texts`), or an
            iterable of (array, class), such as a data loader. For the mean
            IoU: masks in place of the classes, in arrays or an iterable, or
            a folder with the folders `images` and `masks`. For the mean
            average precision of a detector: YOLO label files or a COCO file.
        evaluate: Your own score in place of `labels`: called with
            `run(feeds) -> dict of outputs`, returns one number, the higher
            the better.
        perfect_score: What `evaluate` returns for a perfect model, such as
            1, if its score is not in percent.
        force: Replace an artifact in `output`. Other folders are never
            replaced.
        cache: Folder for measurements that later compiles reuse; default:
            ~/.cache/ptqc.
        dump_passes: Folder for the model after each pass, for debugging.
        target: What to build beside the ONNX file: "cpu" or "cuda" (native
            libraries), "c" (source for microcontrollers), "qdq", "litert".
        allow_missing_target: Deliver the ONNX file even if the target
            cannot be built.
        times: An artifact whose operator times are reused for a latency
            budget; None measures them.
        progress: Shows progress, such as `ptqc.Lines()`.
        strict: Raise `Missed` and write nothing if the file misses its
            latency, memory or accuracy budget.
        executor: Where weights are quantized: "threads" or "processes" of
            this machine, "ray", or "ray://host:port". The file is the same.
        workers: Layers quantized at a time; 0: one for each core.
        **keywords: The options below.

    Returns:
        The artifact in `output`: the packed ONNX file, a report, and what
        was measured.

    Raises:
        UsageError: An option, a budget or a folder is not acceptable.
        ModelError: The model cannot be read or is not supported.
        CalibrationError: The samples do not fit the model.
        Infeasible: No file is as small as the budget.
        Missed: With `strict`, a budget was missed.
        TargetError: The target cannot be built for this model, or here.
        PtqcError: The base of these and of the rarer ones: `ptqc.errors`.

    Example:
        >>> artifact = ptqc.compile(
        ...     "model.onnx",
        ...     budget="13%",
        ...     calibration="images/",
        ...     preprocessing="imagenet",
        ...     output="out",
        ... )
        >>> artifact.size, artifact.outputs[0].top1_agreement
    """
    started = time.monotonic()
    check_extensions()
    check_progress(progress)
    stated, of_target = _apart(keywords, CompileOptions.names())
    implied = {"runtime": target} if target in RUNTIMES else {}  # a target for one runtime
    chosen = CompileOptions.of({**implied, **stated})
    built = choose(target, of_target, _known(compile), may_be_missing=allow_missing_target)
    budgets, built = _together(parse_budgets(budget, strict=strict), built)
    own_score = _own_score(evaluate, perfect_score)
    place = path_of("output", output)
    check_output(place, force)
    check_target(built)
    store = store_at(cache)
    budgets.check_request(built, store, is_scored=labels is not None or evaluate is not None)
    solving = executor_of(executor, workers, store)
    preprocessing, detector = Preprocessing.of(preprocessing), Detector.of(detector)
    operator_times = times_of(times) if times is not None else None
    if calibration is None:
        raise UsageError(
            "no calibration data: give a few hundred samples with --calibration DATA (in Python, calibration=DATA); "
            "if you have none, --calibration synthetic generates some, at a loss of accuracy"
        )
    if is_module(model):
        model, calibration = exported(model, calibration)
    request = CompileRequest(
        options=chosen,
        budgets=budgets,
        output=place,
        force=force,
        target=built,
        labels=None if labels is None else labels_of(labels, _texts(calibration)),
        own_score=own_score,
        preprocessing=preprocessing,
        detector=detector,
        dump=_dump(dump_passes),
        rewrites=added_rewrites(chosen.rewrites),
        tokenizer=_tokenizer(calibration),
        store=store,
        executor=solving,
        progress=progress,
        started=started,
        times=operator_times,
    )
    with reserved(place):
        return compile_model(model, calibration, request)


@lists_keywords(*_keywords(Phase.FIT))
@quiet_libraries()
def resolve(
    folder: str | PathLike[str],
    *,
    output: str | Path,
    budget: AnyBudget = None,
    plan: Mapping[str, Any] | None = None,
    data: object = None,
    preprocessing: AnyPreprocessing | None = None,
    labels: AnyLabels | None = None,
    evaluate: Evaluate | None = None,
    perfect_score: float | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    target: str | None = None,
    allow_missing_target: bool = False,
    progress: Progress = SILENT,
    strict: bool = False,
    **keywords: Unpack[ResolveKeywords],
) -> Artifact:
    """Compile again from the measurements of an earlier compile.

    Nothing is measured again: this takes a third to two thirds of the time
    of a compile. Weights are reconstructed once, in the way that was best
    before; give `pipeline` to try all ways of a compile, which takes longer
    and may lose less.

    Args:
        folder: The artifact of the earlier compile. Its measurements must
            still be in the store (`cache`).
        output: The folder to write; it must not exist without `force`.
        budget: As for `compile`, except budgets of caches.
        plan: A plan in the form of the artifact's plan.json, instead of one
            that is computed for the budget.
        data: Samples that an accuracy budget is judged on; None: those that
            the earlier compile held back. Text is read with the tokenizer of
            the compile.
        preprocessing: How image files become inputs, or the name of a
            preset; None: as before.
        labels: Labelled samples, as for `compile`.
        evaluate: Your own score, as for `compile`.
        perfect_score: What `evaluate` returns for a perfect model.
        force: Replace an artifact in `output`.
        cache: Folder of the measurements; default: ~/.cache/ptqc.
        target: What to build beside the ONNX file; None: as in the earlier
            compile, with its options; "none": nothing. Native libraries,
            which take minutes, are built again only if a budget or an option
            asks for them.
        allow_missing_target: Deliver the ONNX file even if the target
            cannot be built.
        progress: Shows progress, such as `ptqc.Lines()`.
        strict: Raise `Missed` and write nothing if the file misses its
            latency, memory or accuracy budget.
        **keywords: The options below; None: as in the earlier compile,
            except for the time limit.

    Returns:
        The artifact in `output`.

    Raises:
        UsageError: The measurements are not in the store any more, or an
            option, a budget or a folder is not acceptable.
        Infeasible: No file is as small as the budget.
        Missed: With `strict`, a budget was missed.

    Example:
        >>> smaller = ptqc.resolve("out", budget="10%", output="smaller")
    """
    started = time.monotonic()
    check_extensions()
    check_progress(progress)
    budgets = parse_budgets(budget, strict=strict)
    for constraint in budgets:
        if constraint.is_measured:
            raise UsageError(f"the budget {constraint} changes what is measured: give it to `ptqc compile`")
    own_score = _own_score(evaluate, perfect_score)
    fitting = CompileOptions.names(Phase.FIT)
    if fixed := sorted(keywords.keys() & (set(CompileOptions.names()) - set(fitting))):
        raise UsageError(f"give {', '.join(fixed)} to `ptqc compile`: `ptqc resolve` keeps what was compiled")
    stated, of_target = _apart(keywords, fitting)
    place = path_of("output", output)
    check_output(place, force)
    opened = artifact.load(folder)
    earlier = opened.manifest
    of_target = {name: value for name, value in of_target.items() if value is not None}
    needed = {constraint.target for constraint in budgets}
    built = choose_as_compiled(target, of_target, _known(resolve), earlier, needed, may_be_missing=allow_missing_target)
    budgets, built = _together(budgets, built)
    check_target(built)
    store = store_at(cache)
    budgets.check_request(built, store, is_scored=labels is not None or evaluate is not None)
    preprocessing = Preprocessing.of(preprocessing) or opened.preprocessing
    data = with_tokenizer(data, opened.texts)
    texts = _texts(data) or (_texts(with_tokenizer(labels, opened.texts)) if is_table(labels) else None)
    entry, before = earlier["measurements"], earlier["options"]
    prepared, analysis, measured, notes = recall(store, entry, progress)
    samples = replace(prepared.samples, preprocessing=preprocessing, texts=opened.texts)
    prepared = replace(prepared, samples=samples)
    check_samples(built, prepared.samples, prepared.model)
    fit_options = {name: before[name] for name in fitting if name in before and name != "time_limit"}
    fit_options |= {name: value for name, value in stated.items() if value is not None}
    best = earlier["allocation"].get("draw")
    if best is not None and stated.get("pipeline") is None:
        analysis = replace(analysis, draws=(best,))
    job = CompileState(
        prepared,
        analysis,
        CompileOptions.of({**vars(measured), "time_limit": 0.0, **fit_options}),
        (*prepared.notes, *notes),
        entry,
        budgets,
        started,
    )
    request = CompileRequest(
        options=job.options,
        budgets=budgets,
        output=place,
        force=force,
        target=built,
        labels=None if labels is None else labels_of(labels, texts),
        own_score=own_score,
        preprocessing=preprocessing,
        detector=opened.detector,
        store=store,
        progress=progress,
        started=started,
        times=fitting_times(earlier, budgets.get(LatencyBudget), job.options),
        tokenizer=_tokenizer(data) or (opened.texts.path if opened.texts is not None else None),
        plan=None if plan is None else Plan.from_json(plan, analysis.roles),
    )
    with reserved(place):
        return resolve_job(job, request, data)


def _apart(values: Mapping[str, Any], known: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of ptqc's own, and those of a target."""
    stated = {name: value for name, value in values.items() if name in known}
    return stated, {name: value for name, value in values.items() if name not in known}


def _together(budgets: Budgets, built: Chosen | None) -> tuple[Budgets, Chosen | None]:
    """The budgets as they are meant where a target is built, and the target, which knows whether some are of it."""
    budgets = budgets.for_target(built)
    has_budgets = built is not None and any(one.target == built.name for one in budgets)
    return budgets, None if built is None else replace(built, has_budgets=has_budgets)


def _known(function: Callable[..., object]) -> list[str]:
    """Parameters by name, those that are options first, without options of targets."""
    options, of_targets = CompileOptions.names(), built_in_options()
    parameters = [name for name in signature(function).parameters if name not in of_targets]
    return sorted(parameters, key=lambda name: options.index(name) if name in options else len(options))


def _own_score(evaluate: object, perfect: object) -> OwnScore | None:
    """Raises UsageError for what is no function, and for a scale that is no number above 0."""
    if evaluate is not None and not callable(evaluate):
        raise UsageError(
            f"evaluate is {shown(evaluate)}; give a function of run, where run(feeds) gives outputs by name"
        )
    if perfect is None:
        return None if evaluate is None else OwnScore(evaluate)
    if evaluate is None:
        raise UsageError(f"perfect_score is {shown(perfect)}, which is of evaluate: give evaluate, too")
    if isinstance(perfect, bool) or not isinstance(perfect, Real) or not 0 < float(perfect) < math.inf:
        raise UsageError(
            f"perfect_score is {shown(perfect)}; give what evaluate gives a perfect model, such as 1 or 100"
        )
    return OwnScore(evaluate, float(perfect))


def _texts(data: object) -> Texts | None:
    return data if isinstance(data, Texts) else None


def _tokenizer(data: object) -> Path | None:
    return Path(data.tokenizer) if isinstance(data, Texts) else None


def _dump(folder: str | Path | None) -> Dump:
    if folder is None:
        return NO_DUMP
    place = path_of("dump_passes", folder)
    try:
        return Dump(place)
    except OSError as error:
        raise UsageError(f"cannot make the folder {place} for --dump-passes: {error}") from error
