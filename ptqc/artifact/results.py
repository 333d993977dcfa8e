"""What was measured of a delivered file beside the float model: outputs, score and latency, as typed values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OutputAgreement:
    """How one output of the file agrees with the float model's, on held-back samples."""

    #: Name of the output.
    name: str
    #: What the output was compared as, such as "class scores, softmax over axis 1".
    judged_as: str
    #: Share of predictions with the float model's top class, 0 to 1; None for outputs without classes.
    agreement: float | None
    #: Mean divergence from the float model's output, in `unit`; 0 for equal outputs. Not a training loss.
    divergence: float
    #: Unit of the divergence: "nat" (Kullback-Leibler divergence of probabilities), "nat per detection",
    #: "relative squared error" or "cosine distance".
    unit: str
    #: Signal to quantization noise in dB, of the worst group of channels; 300 for equal outputs.
    sqnr_db: float | None
    #: Every measured figure by name, such as {"same top class": 0.98, "SQNR": 31.2}.
    figures: Mapping[str, float]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "OutputAgreement":
        """From an entry of a manifest."""
        from ptqc.losses.classes import SAME_CLASS

        figures = {figure["name"]: float(figure["value"]) for figure in document["figures"]}
        return cls(
            document["output"],
            document["judged_as"],
            figures.get(SAME_CLASS),
            float(document["loss"]),
            document["loss_unit"],
            min(document.get("sqnr_db", {}).values(), default=None),
            figures,
        )


@dataclass(frozen=True)
class Score:
    """The score of the file and of the float model, on your labelled samples or by your own function."""

    #: What was scored, such as "top-1 accuracy, %"; "score" for a function of your own.
    metric: str
    #: Score of the float model.
    float_model: float
    #: Score of the file.
    compiled: float

    @property
    def difference(self) -> float:
        """Score of the file less that of the float model: negative where the file is worse."""
        return self.compiled - self.float_model

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
    #: The range of the speedup over repeated measurements: least, most.
    spread: tuple[float, float]
    #: Samples in a run: 1, unless the model takes a fixed batch.
    batch: int

    @classmethod
    def of(cls, times: Mapping[str, Any]) -> "Latency | None":
        """From the times of a compile; None where none were measured."""
        speed = times.get("speed")
        if speed is None:
            return None
        spread = speed["low"], speed["high"]
        return cls(times["float_ms"], times["compiled_ms"], speed["times_as_fast"], spread, speed["rows"])
