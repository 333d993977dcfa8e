"""The files of an artifact: model, manifest, plan, sensitivities, report, times."""

import json
import platform
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from ptqc.artifact import folder as artifact
from ptqc.artifact.build_target import BuiltTargets
from ptqc.artifact.fit_for_use import drifts, lower_score, worse_than_predicted
from ptqc.artifact.golden import Golden
from ptqc.artifact.report import render
from ptqc.artifact.report.energy import Energy
from ptqc.artifact.unquantized import float_operators, rounded_for_float, unquantized_weights
from ptqc.budget import sections_of
from ptqc.calibration.inputs import input_specs
from ptqc.codegen.onnxruntime import verify
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.onnxruntime.verify import Verified
from ptqc.errors import VerificationError
from ptqc.evaluation.detection.detector import Detector
from ptqc.evaluation.judge import Judged, Measured, to_json
from ptqc.execution.onnxruntime import release
from ptqc.formats import coded
from ptqc.frontend.operators import FUSED
from ptqc.ir import zipmaps
from ptqc.ir.plan import Plan, write_json
from ptqc.notes import Level, Note, is_cut_short, reasons_unfit
from ptqc.passes.allocate.allocation import frontier, price, smallest_choice
from ptqc.passes.allocate.choose_activations import ActivationLoss
from ptqc.passes.allocate.constraints.size import SizeBudget
from ptqc.passes.allocate.state import BudgetReport, CompileState, QuantizedModel
from ptqc.passes.equalize.split import used_remedies
from ptqc.passes.quantize.phases import Analysis
from ptqc.passes.registry import used
from ptqc.utils.arguments import command_line
from ptqc.utils.version import __version__

# Checks at the end that what was said earlier still holds: the loss of the activations, plan and manifest.

# Codes flip where sums are ordered differently, as on another processor than the one that measured.
FACTOR, ALLOWANCE = 2.0, 1e-6


def check_activations(analysis: Analysis, plan: Plan) -> float:
    """What the plan's activations lose with float weights: as was measured, where they are those that were chosen.

    Raises VerificationError where they, or fewer real numbers of few digits, now lose clearly more.
    """
    if not plan.activations:
        return 0.0
    loss = ActivationLoss(analysis).loss_of(plan.rounded)
    promised = analysis.activation_loss
    given, chosen = plan.activations, analysis.activations
    is_measured = coded(given) == coded(chosen) and given.items() <= chosen.items()
    if is_measured and not loss <= FACTOR * promised + ALLOWANCE:  # NaN included
        raise VerificationError(
            f"the plan's activations lose {loss:.3g} {analysis.loss_unit}; {promised:.3g} were measured"
        )
    return promised if given == chosen else loss


def check_documents(manifest: Mapping[str, Any], plan: Mapping[str, Any], fitted: QuantizedModel) -> None:
    """Read the plan back, and compare what the manifest says of the file. Raises VerificationError."""
    read = Plan.from_json(json.loads(write_json(plan)), fitted.plan)
    if read != fitted.plan:
        raise VerificationError("the plan as written is not the plan of the file")
    weights: Counter[str] = Counter()
    for weight in fitted.plan.weights:
        weights[str(fitted.plan.formats[weight.name])] += weight.size
    said = manifest["weights_by_format"], manifest["file"]["bytes"]
    if said != (weights, fitted.exported.size):
        raise VerificationError("the manifest does not describe the file")


FRONTIER_POINTS = 12


@dataclass(frozen=True)
class CompileOutcome:
    """Everything that came out of a compile.

    activation_loss: of the plan's activations with float weights. reports: by kind of budget. distances: of the golden
    outputs from the float model's, relative, by name.
    """

    fitted: QuantizedModel
    verified: Verified
    activation_loss: float
    built: BuiltTargets
    reports: Mapping[str, BudgetReport]
    judged: Judged
    changed: Mapping[str, Any]
    detector: Detector | None
    speed: Measured
    golden: Golden
    distances: Mapping[str, float]


@dataclass(frozen=True)
class Documents:
    """What is told of an artifact, in JSON. costs: every candidate's bytes and predicted loss."""

    manifest: dict[str, Any]
    plan: dict[str, Any]
    costs: dict[str, Any]


def documents_of(job: CompileState, outcome: CompileOutcome) -> Documents:
    """What is told of an artifact. Raises VerificationError where it contradicts the file."""
    said = Documents(manifest(job, outcome), outcome.fitted.plan.to_json(), sensitivity(job, outcome.fitted))
    said.manifest["energy"] = Energy.of(said.plan, said.costs).to_json()
    check_documents(said.manifest, said.plan, outcome.fitted)
    return said


def files(outcome: CompileOutcome, said: Documents, folder: Path) -> dict[str, bytes | Path]:
    """The files of an artifact by name. folder: for those that are too large for memory."""
    return {
        **outcome.fitted.exported.files(folder),
        artifact.PLAN: write_json(said.plan).encode(),
        artifact.SENSITIVITY: write_json(said.costs).encode(),
        artifact.GOLDEN: outcome.golden.to_bytes(),
        artifact.CHANGED: write_json(outcome.changed).encode(),
        **outcome.built.files,
    }


def manifest(job: CompileState, outcome: CompileOutcome) -> dict[str, Any]:
    """Everything reproducible about an artifact."""
    fitted, judged, size = outcome.fitted, outcome.judged, job.budgets.get(SizeBudget)
    origin, proto = job.prepared.origin, fitted.exported.proto
    own = sorted({node.op_type for node in proto.graph.node if node.domain == FUSED})
    needed = {*own, *(product.operator for product in fitted.exported.blocks.values())}
    remedies, unused = used_remedies(job.prepared.remedies, fitted.plan)
    split = {remedy.tensor: len(remedy.channels) for remedy in remedies if remedy.channels}
    in_float = float_operators(job.model, fitted.plan, remedies)
    notes = [*job.notes, *unused, *fitted.notes, *unquantized_weights(fitted.plan), *rounded_for_float(fitted.plan)]
    notes += [*(operator.note for operator in in_float), *_warnings(job, outcome)]
    for report in outcome.reports.values():
        notes += report.notes
    notes += [*worse_than_predicted(job, fitted, judged, notes), *lower_score(judged), *drifts(judged)]
    notes += size.notes(origin) if size is not None else ()
    plugins = used(job.options.to_json(), list(outcome.built.documents))
    images, texts = job.prepared.samples.preprocessing, job.prepared.samples.texts
    weights: Counter[str] = Counter()
    for weight in fitted.plan.weights:
        weights[str(fitted.plan.formats[weight.name])] += weight.size
    return {
        "ptqc": __version__,
        "libraries": {"onnxruntime": ort.__version__, "onnx_ir": ir.__version__, "numpy": np.__version__},
        "source": {
            "name": origin.name,
            "given": origin.given,
            "bytes": origin.size,
            "sha256": origin.digest,
            "weights": origin.weights,
        },
        "calibration": {"samples": len(job.prepared.samples), "sha256": job.prepared.samples.digest},
        "options": job.options.to_json(),
        **({"plugins": plugins} if plugins else {}),
        "preprocessing": None if images is None else asdict(images.resolved(input_specs(job.model))),
        **({} if texts is None else {"texts": asdict(texts)}),
        **({} if outcome.detector is None else {"detector": outcome.detector.to_json()}),
        "budget": None if size is None else str(size.smallest(origin)),
        "file": {
            "bytes": fitted.exported.size,
            "bytes_told_to_solver": fitted.predicted_size,
            "opset": proto.opset_import[0].version,
            "ir_version": proto.ir_version,
            "oldest_onnxruntime": oldest_runtime(proto.opset_import[0].version, proto.ir_version, needed),
            "runtime_operators": own,
        },
        "maps": zipmaps.remembered(job.model),
        **({"recorded": dict(values)} if (values := fitted.exported.recorded_values) else {}),
        "names": dict(fitted.exported.own),
        "labels": fitted.plan.labels,
        "allocation": _allocation(job, fitted),
        **sections_of(outcome.reports),
        "caches": None if job.prepared.caches is None else dict(job.prepared.caches),
        "cut_short": is_cut_short(notes),
        "unfit": reasons_unfit(notes),
        "weights_by_format": dict(weights),
        "float_operators": dict(Counter(operator.op_type for operator in in_float)),
        "split_channels": split,
        "scaled_rows": [remedy.tensor for remedy in remedies if remedy.by_row],
        "rounded_activations": dict(Counter(map(str, fitted.plan.cast_sites.values()))),
        "verification": outcome.verified.to_json(),
        "results": to_json(judged),
        "measurements": job.entry,
        "cpu": _cpu(fitted.exported),
        "notes": [{"step": n.step, "subject": n.subject, "message": n.message, "level": str(n.level)} for n in notes],
        "activation_loss": outcome.activation_loss,
        "golden": {"samples": len(outcome.golden.inputs), "distances": dict(outcome.distances)},
        "target": None if outcome.built.chosen is None else outcome.built.chosen.to_json(),
        "targets": dict(outcome.built.documents),
    }


def _allocation(job: CompileState, fitted: QuantizedModel) -> dict[str, Any]:
    allocation, problem = fitted.allocation, fitted.problem
    percent = max(1, job.prepared.origin.size // 100)
    is_given = allocation.status == "given"
    is_elsewhere = job.limit is None and bool(problem.limits)  # of flash or memory, which bytes of the file do not ease
    return {
        "status": allocation.status,
        "loss": allocation.loss,
        "unit": job.analysis.loss_unit,
        "bound": allocation.bound,
        "gap": 0.0 if is_given else allocation.gap,
        "limit": job.limit or fitted.exported.size,
        "price_of_one_percent": None if is_elsewhere else 0.0 if is_given else price(problem, allocation, percent),
        "smallest_bytes": problem.size(smallest_choice(problem)),
        "draw": fitted.packed.tuned.draw,
        "with_activations": None if job.analysis.proof is None else job.analysis.proof.to_json(),
    }


def _cpu(exported: Exported) -> dict[str, Any]:
    needed = verify.settings(exported)
    return {"saturates_without_vnni": bool(needed), "session_option_without_vnni": needed}


def sensitivity(job: CompileState, fitted: QuantizedModel) -> dict[str, Any]:
    """Every candidate's bytes and predicted loss, and the least loss at other sizes."""
    analysis, problem = job.analysis, fitted.problem
    largest = max(fitted.exported.size, 2 * problem.size(smallest_choice(problem)))
    weights = []
    for weight, group in problem.by_weight().items():
        role = next(w for w in analysis.weights if w.name == weight)
        candidates = [
            {
                "format": str(c.form),
                "bytes": c.bytes,
                "loss": c.loss,
                "error": analysis.errors[weight, c.form],
                "needs": list(c.needs),
            }
            for c in group
        ]
        layers = {layer.name: analysis.macs.get(layer.name, 0) for layer in role.layers}
        weights.append({"weight": weight, "elements": role.size, "layers": layers, "candidates": candidates})
    quantized = coded(analysis.activations)
    sites = [
        {"site": s.name, "loss": analysis.site_losses.get(s.name, 0.0), "quantized": s.name in quantized}
        for s in analysis.sites
    ]
    return {
        "loss_unit": analysis.loss_unit,
        "weights": weights,
        "activations": sites,
        "fixed_bytes": problem.fixed,
        "shared_bytes": dict(problem.once),
        "frontier": [{"bytes": b, "loss": loss} for b, loss in frontier(problem, largest, FRONTIER_POINTS)],
    }


def _warnings(job: CompileState, outcome: CompileOutcome) -> list[Note]:
    """One for each output that is kept poorly."""
    warnings = []
    for output in outcome.judged.outputs:
        if output.low:
            text = ", ".join(figure.text for figure in output.low)
            message = f"the compiled model agrees poorly with the float model ({text}): {_advice(job, outcome)}"
            warnings.append(Note("judge", output.name, message, Level.WARNING))
    return warnings


def _advice(job: CompileState, outcome: CompileOutcome) -> str:
    """What helps against the part that loses most: activations, or weights."""
    weights, activations = outcome.fitted.allocation.loss, outcome.activation_loss
    if activations <= weights:
        return "give it more bytes"
    costs = f"8-bit activations lose most of it ({activations:.2g} {job.analysis.loss_unit}, weights {weights:.2g})"
    if job.options.activations == "integer":
        return f"{costs}, which more bytes do not change: let --activations be auto or float"
    return f"{costs}, which more bytes do not change: give a smaller --activation-limit, or --activations float"


def apart(job: CompileState, outcome: CompileOutcome, said: Documents) -> dict[str, bytes]:
    """The files of an artifact that differ from run to run."""
    taken = times(job, outcome)
    report = render(said.manifest, said.plan, said.costs, taken, outcome.changed)
    return {artifact.RUN: write_json(taken).encode(), artifact.REPORT: report.encode()}


def times(job: CompileState, outcome: CompileOutcome) -> dict[str, Any]:
    """What differs from run to run: times, date, command, memory, host."""
    return {
        **outcome.speed.to_json(),
        "load_seconds": outcome.verified.load_seconds,
        "seconds": time.monotonic() - job.started,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "peak_memory_mb": job.memory.mb,
        "host": {"machine": platform.machine(), "system": platform.system(), "python": platform.python_version()},
    }


def oldest_runtime(opset: int, ir_version: int, needed: Collection[str] = ()) -> str:
    """The first ONNX Runtime release known to load a file of this opset and IR version and to fold its unpacking.

    needed: operators of ONNX Runtime's own in the file, and those that read weights in blocks. 1.16 loads files of
    opset 18 and gives the same outputs, but unpacks some weights at every run.
    """
    by_opset = {22: "1.20", 23: "1.23", 24: "1.24", 25: "1.31", 26: "1.31"}
    by_ir_version = {11: "1.22", 12: "1.23", 13: "1.24"}
    by_operator = {"GatherBlockQuantized": "1.23", "DequantizeLinear": "1.19"}  # of bytes of 4 or 8 bits; in blocks
    versions = ["1.18", by_opset.get(opset, "1.18"), by_ir_version.get(ir_version, "1.18")]
    versions += [by_operator.get(name, "1.18") for name in needed]
    return max(versions, key=release)
