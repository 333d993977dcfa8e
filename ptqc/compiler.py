"""The story of a compile: read, normal form, measure, fit to the budget, verify, judge, publish."""

import platform
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from ptqc import __version__, artifact
from ptqc.allocation import frontier, price, smallest_choice
from ptqc.artifact import Artifact, check_output
from ptqc.budget import Budget
from ptqc.calibration.images import Preprocessing
from ptqc.codegen.onnxruntime.verify import Verified, verify
from ptqc.errors import UsageError
from ptqc.memory import peak_memory_mb
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions
from ptqc.passes.context import Context
from ptqc.plan import Plan, write_json
from ptqc.progress import SILENT, Progress
from ptqc.reading import read_model
from ptqc.report import render
from ptqc.stages.fit import Fitted, fit
from ptqc.stages.judge import Evaluate, Judged, judge, to_json
from ptqc.stages.labels import read_labels
from ptqc.stages.measure import measure, recall
from ptqc.stages.prepare import Prepared, gather, prepare
from ptqc.stages.remarks import float_operators, unquantized_weights
from ptqc.store import Store, default_folder

VERIFIED_SAMPLES = 4
FRONTIER_POINTS = 12


def compile(  # noqa: A001
    model: str | Path,
    *,
    calibration: object,
    output: str | Path,
    budget: str | None = None,
    preprocessing: Preprocessing | None = None,
    labels: str | Path | None = None,
    evaluate: Evaluate | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    dump_passes: str | Path | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> Artifact:
    """Compile an ONNX file to a packed, verified artifact in the folder `output`.

    calibration: a folder of images, an .npz/.npy file, "module:function", an ONNX Runtime CalibrationDataReader, an
    array or any iterable of feeds. budget: "13%", "4.5MB", "4.2bit"; None: every layer on integer kernels at the best
    accuracy. labels: an .npz with inputs and `labels`, or a CSV of image,class; evaluate: called with run(feeds) ->
    outputs by name, gives a score. Both are for the report only. options: fields of `ptqc.options.CompileOptions`.
    Raises the errors of `ptqc.errors`.
    """
    started = time.monotonic()
    chosen = CompileOptions.of(options)
    limit = Budget.parse(budget) if budget is not None else None
    check_output(Path(output), force)
    source = read_model(model)
    if calibration is None:
        raise UsageError("no calibration data: give a few hundred samples with --calibration")
    with tempfile.TemporaryDirectory(prefix="ptqc-") as folder:
        samples = gather(source, calibration, Path(folder) / "samples", chosen.samples, preprocessing, progress)
        dump = Path(dump_passes) if dump_passes is not None else None
        score = evaluate or _scorer(source.model, labels, Path(folder), preprocessing)
        prepared = prepare(source, samples, progress, dump)
        store = Store(Path(cache) if cache is not None else default_folder())
        context, notes, entry = measure(prepared, chosen, store, progress)
        job = _Job(prepared, context, chosen, [*prepared.notes, *notes], entry, limit, started)
        return job.finish(Path(output), score, force, progress)


def resolve(
    folder: str | Path,
    *,
    output: str | Path,
    budget: str | None = None,
    plan: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    labels: str | Path | None = None,
    evaluate: Evaluate | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    progress: Progress = SILENT,
) -> Artifact:
    """Another artifact from what an earlier compile measured: for another budget, or with a plan given as JSON.

    Raises UsageError when the measurements are not in the store any more.
    """
    started = time.monotonic()
    limit = Budget.parse(budget) if budget is not None else None
    check_output(Path(output), force)
    entry = artifact.load(folder).manifest["measurements"]
    store = Store(Path(cache) if cache is not None else default_folder())
    prepared, context, options, notes = recall(store, entry, progress)
    job = _Job(prepared, context, options, [*prepared.notes, *notes], entry, limit, started)
    with tempfile.TemporaryDirectory(prefix="ptqc-") as temporary:
        score = evaluate or _scorer(prepared.model, labels, Path(temporary), preprocessing)
        return job.finish(Path(output), score, force, progress, plan)


def _scorer(
    model: ir.Model, labels: str | Path | None, folder: Path, preprocessing: Preprocessing | None
) -> Evaluate | None:
    if labels is None:
        return None
    return read_labels(model, Path(labels), folder / "labelled", preprocessing).top1


class _Job:
    """One compile after its measurements."""

    def __init__(
        self,
        prepared: Prepared,
        context: Context,
        options: CompileOptions,
        notes: list[Note],
        entry: str,
        budget: Budget | None,
        started: float,
    ) -> None:
        self.prepared, self.context, self.options, self.notes = prepared, context, options, notes
        self.entry, self.budget, self.started = entry, budget, started
        origin = prepared.origin
        self.limit = None if budget is None else budget.limit(origin.size, origin.weights)

    def finish(
        self,
        output: Path,
        evaluate: Evaluate | None,
        force: bool,
        progress: Progress,
        given: Mapping[str, Any] | None = None,
    ) -> Artifact:
        """Fit, verify, judge, publish."""
        model, context = self.prepared.model, self.context
        fitted = fit(model, context, self.options, self.limit, self._plan(given))
        with progress.stage("verify"):
            probes = [context.held_back[i] for i in range(min(VERIFIED_SAMPLES, len(context.held_back)))]
            verified = verify(fitted.exported, fitted.lowered, fitted.plan, model, probes, self.limit)
        judged = judge(model, fitted.exported.data, context.held_back, self.options.loss, evaluate, progress)
        manifest = self._manifest(fitted, verified, judged)
        sensitivity = self._sensitivity(fitted)
        plan = fitted.plan.to_json()
        run = self._run(verified, judged)
        files = {
            artifact.MODEL: fitted.exported.data,
            artifact.PLAN: write_json(plan).encode(),
            artifact.SENSITIVITY: write_json(sensitivity).encode(),
            artifact.REPORT: render(manifest, plan, sensitivity).encode(),
        }
        return artifact.publish(output, files, manifest, run, force)

    def _plan(self, given: Mapping[str, Any] | None) -> Plan | None:
        if given is None:
            return None
        context = self.context
        roles = Plan(
            tuple(context.layers), tuple(context.weights), tuple(context.kernels), tuple(context.sites), {}, {}
        )
        return Plan.from_json(given, roles)

    def _manifest(self, fitted: Fitted, verified: Verified, judged: Judged) -> dict[str, Any]:
        origin, proto = self.prepared.origin, fitted.exported.proto
        remarks = float_operators(self.prepared.model, fitted.plan)
        notes = [*self.notes, *unquantized_weights(fitted.plan), *remarks, *self._warnings(judged)]
        operators = Counter(note.message.split()[0] for note in remarks)
        weights: Counter[str] = Counter()
        for weight in fitted.plan.weights:
            weights[str(fitted.plan.formats[weight.name])] += weight.size
        return {
            "ptqc": __version__,
            "libraries": {"onnxruntime": ort.__version__, "onnx_ir": ir.__version__, "numpy": np.__version__},
            "source": {"name": origin.name, "bytes": origin.size, "sha256": origin.digest, "weights": origin.weights},
            "calibration": {"samples": len(self.prepared.samples), "sha256": self.prepared.samples.digest},
            "options": self.options.to_json(),
            "budget": str(self.budget) if self.budget else None,
            "file": {
                "bytes": len(fitted.exported.data),
                "bytes_told_to_solver": fitted.told,
                "opset": proto.opset_import[0].version,
                "ir_version": proto.ir_version,
                "oldest_onnxruntime": oldest_runtime(proto.opset_import[0].version, proto.ir_version),
            },
            "allocation": self._allocation(fitted),
            "weights_by_format": dict(weights),
            "float_operators": dict(operators),
            "activation_loss": self.context.activation_loss,
            "verification": verified.to_json(),
            "results": to_json(judged)[0],
            "measurements": self.entry,
            "cpu": self._cpu(fitted.plan),
            "notes": [
                {"step": n.step, "subject": n.subject, "message": n.message, "level": str(n.level)} for n in notes
            ],
        }

    def _allocation(self, fitted: Fitted) -> dict[str, Any]:
        allocation, problem = fitted.allocation, fitted.problem
        percent = max(1, self.prepared.origin.size // 100)
        given = allocation.status == "given"
        return {
            "status": allocation.status,
            "loss": allocation.loss,
            "unit": self.context.loss_unit,
            "bound": allocation.bound,
            "gap": 0.0 if given else allocation.gap,
            "limit": self.limit or len(fitted.exported.data),
            "price_of_one_percent": 0.0 if given else price(problem, allocation, percent),
            "smallest_bytes": problem.size(smallest_choice(problem)),
        }

    def _cpu(self, plan: Plan) -> dict[str, Any]:
        wide = any(plan.formats[layer.weight].bits == 8 for layer in plan.layers if layer.name in plan.integer)
        return {
            "saturates_without_vnni": wide,
            "session_option_without_vnni": {"session.x64quantprecision": "1"} if wide else {},
        }

    def _sensitivity(self, fitted: Fitted) -> dict[str, Any]:
        context, problem = self.context, fitted.problem
        smallest = problem.size(smallest_choice(problem))
        largest = max(len(fitted.exported.data), int(smallest * 1.02))
        steps = np.geomspace(smallest, max(largest, 2 * smallest), FRONTIER_POINTS).astype(int)
        weights = []
        for weight, group in problem.by_weight().items():
            found = next(w for w in context.weights if w.name == weight)
            candidates = [
                {
                    "format": str(c.form),
                    "bytes": c.bytes,
                    "loss": c.loss,
                    "error": context.errors[weight, c.form],
                    "needs": list(c.needs),
                }
                for c in group
            ]
            layers = {layer.name: context.macs.get(layer.name, 0) for layer in found.layers}
            weights.append({"weight": weight, "elements": found.size, "layers": layers, "candidates": candidates})
        sites = [
            {"site": s.name, "loss": context.site_losses.get(s.name, 0.0), "quantized": s.name in context.quantized}
            for s in context.sites
        ]
        return {
            "loss_unit": context.loss_unit,
            "weights": weights,
            "activations": sites,
            "fixed_bytes": problem.fixed,
            "shared_bytes": dict(problem.once),
            "frontier": [{"bytes": b, "loss": loss} for b, loss in frontier(problem, [int(s) for s in steps])],
        }

    def _warnings(self, judged: Judged) -> list[Note]:
        if not judged.is_low:
            return []
        found = (
            f"{judged.agreement:.0%} of top classes" if judged.agreement is not None else f"{judged.sqnr:.1f} dB SQNR"
        )
        return [
            Note(
                "judge",
                "",
                f"the compiled model agrees poorly with the float model ({found}): give it more bytes",
                Level.WARNING,
            )
        ]

    def _run(self, verified: Verified, judged: Judged) -> dict[str, Any]:
        return {
            **to_json(judged)[1],
            "load_seconds": verified.load_seconds,
            "seconds": time.monotonic() - self.started,
            "peak_memory_mb": peak_memory_mb(),
            "host": {"machine": platform.machine(), "system": platform.system(), "python": platform.python_version()},
        }


def oldest_runtime(opset: int, ir_version: int) -> str:
    """The first ONNX Runtime release that loads a file of this opset and IR version."""
    releases = {18: "1.16", 19: "1.16", 20: "1.18", 21: "1.18", 22: "1.20", 23: "1.23", 24: "1.24"}
    by_ir = {8: "1.16", 9: "1.16", 10: "1.18", 11: "1.22", 12: "1.23", 13: "1.24"}
    found = (releases.get(opset, "1.31"), by_ir.get(ir_version, "1.31"))
    return max(found, key=lambda version: [int(part) for part in version.split(".")])
