"""What was measured of a delivered file beside the float model: outputs, score and latency, as typed values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

# Where a manifest has the bytes that are limited, by kind of budget.
USED_BYTES = {"memory": "needed_bytes", "flash": "used_bytes", "ram": "used_bytes", "caches": "bytes"}


@dataclass(frozen=True)
class BudgetResult:
    """A budget of a compile, and what the delivered file needs of it."""

    #: What is limited: "size", "latency", "memory", "flash", "ram", "caches" or "loss".
    kind: str
    #: The budget as it was requested, such as "13%".
    budget: str
    #: The most that is allowed, in `unit`.
    limit: float
    #: What the file needs; of a loss the bound on it (None if a single sample bounds nothing);
    #: of a score by `evaluate` its drop, which has no bound.
    value: float | None
    #: Unit of both: "bytes", "ms", or that of the loss.
    unit: str
    #: Whether the file meets the budget.
    kept: bool


def budgets_of(manifest: Mapping[str, Any]) -> tuple[BudgetResult, ...]:
    """All budgets of a compile, from its manifest; earlier versions knew fewer kinds."""
    return tuple(_budgets(manifest))


def _budgets(manifest: Mapping[str, Any]) -> Iterator[BudgetResult]:
    if manifest["budget"]:
        size, limit = manifest["file"]["bytes"], manifest["allocation"]["limit"]
        yield BudgetResult("size", manifest["budget"], limit, size, "bytes", size <= limit)
    if (latency := manifest.get("latency")) is not None:
        taken = latency["predicted_ms" if latency["measured_ms"] is None else "measured_ms"]
        limit = latency["budget_ms"]
        yield BudgetResult("latency", latency["budget"], limit, taken, "ms", taken <= limit)
    for kind, used in USED_BYTES.items():
        part = manifest.get(kind)
        if part is not None and part["limit_bytes"] is not None:
            value, limit = part[used], part["limit_bytes"]
            yield BudgetResult(kind, part["budget"], limit, value, "bytes", value <= limit)
    if (loss := manifest.get("loss_budget")) is not None:
        judged = loss["judged"]
        value = judged["lost"] if judged.get("samples") == 0 else judged["bound"]
        yield BudgetResult("loss", loss["budget"], loss["limit"], value, loss["unit"], loss["kept"])


def c_sources(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What the manifest says of C source, by target: what is then shipped in place of the ONNX file."""
    return {name: document for name, document in manifest.get("targets", {}).items() if "arena" in document}


@dataclass(frozen=True)
class AgreementFigure:
    """One measured figure of an output."""

    #: Such as "same top class" or "SQNR".
    name: str
    value: float
    #: As the summary shows it.
    text: str
    #: Whether ptqc warns of it.
    low: bool


@dataclass(frozen=True)
class OutputAgreement:
    """How one output of the file agrees with the float model's, on held-back samples."""

    #: Name of the output.
    name: str
    #: What the output was compared as, such as "class scores, softmax over axis 1".
    judged_as: str
    #: Share of predictions with the float model's top class, 0 to 1; None for outputs without classes.
    top1_agreement: float | None
    #: Mean divergence from the float model's output, in `loss_unit`; 0 for equal outputs. Not a training loss.
    loss: float
    #: Unit of the loss: "nat" (Kullback-Leibler divergence of probabilities), "nat per detection",
    #: "relative squared error" or "cosine distance".
    loss_unit: str
    #: Signal to quantization noise in dB, of the worst group of channels; 300 for equal outputs.
    sqnr_db: float | None
    #: Every measured figure.
    figures: tuple[AgreementFigure, ...]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "OutputAgreement":
        """From an entry of a manifest."""
        figures = tuple(AgreementFigure(**figure) for figure in document["figures"])
        own = {field.name: document[field.name] for field in fields(cls) if field.name != "figures"}
        return cls(**own, figures=figures)


@dataclass(frozen=True)
class Score:
    """The score of the file and of the float model, on your labelled samples or by your own function."""

    #: What was scored, such as "top-1 accuracy, %"; "score" for a function of your own.
    title: str
    #: Score of the float model.
    float_score: float
    #: Score of the file.
    compiled_score: float

    @property
    def difference(self) -> float:
        """Score of the file less that of the float model: negative where the file is worse."""
        return self.compiled_score - self.float_score

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> "Score | None":
        """From the results of a manifest; None where nothing was scored."""
        before, after = results["float_score"], results["compiled_score"]
        if before is None or after is None:
            return None
        return cls(results.get("score_title") or "score", before, after)


@dataclass(frozen=True)
class Latency:
    """Time of a run in ONNX Runtime on one thread of the machine that compiled, both models measured in turns."""

    #: Milliseconds of the float model.
    float_ms: float
    #: Milliseconds of the file.
    compiled_ms: float
    #: How many times as fast the file is: below 1, it is slower.
    speedup: float
    #: The range of the speedup over repeated measurements.
    low: float
    high: float
    #: Measurements.
    rounds: int
    #: Samples in a run: 1, unless the model takes a fixed batch.
    batch: int

    @classmethod
    def of(cls, times: Mapping[str, Any]) -> "Latency | None":
        """From the times of a compile; None where none were measured."""
        latency = times.get("latency")
        return None if latency is None else cls(**latency)
