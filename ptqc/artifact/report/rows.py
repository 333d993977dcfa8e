"""What the report tells, read once from the artifact's documents."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ptqc.artifact.report.energy import Energy
from ptqc.formats import Format, mean_bits

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """One way to store a weight. loss: predicted, of the outputs; error: relative squared, of the layer's output."""

    form: Format
    bytes: int
    loss: float
    error: float


@dataclass(frozen=True)
class Row:
    """One weight with the layers that read it. layers: name -> "integer" or "float"; empty for a table.

    labels: by which people know layers, where exporters name these otherwise.
    """

    weight: str
    elements: int
    layers: Mapping[str, str]
    macs: int
    chosen: Choice
    candidates: tuple[Choice, ...]
    labels: Document = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The layers as people know them, or the weight itself where no layer reads it."""
        return tuple(self.labels.get(name, name) for name in self.layers or (self.weight,))

    @property
    def compute(self) -> str:
        """integer, float, or "integer + float" for layers that share a weight; "table" where no layer reads it."""
        return " + ".join(sorted(set(self.layers.values()), reverse=True)) or "table"

    @property
    def in_float(self) -> bool:
        """Whether some layer computes in float."""
        return "float" in self.layers.values()

    @property
    def packed_bytes(self) -> int:
        """Bytes of the codes alone, without scales, biases and calls."""
        return min(self.chosen.bytes, math.ceil(self.elements * self.chosen.form.bits_per_weight / 8))

    @property
    def upgrade(self) -> Choice | None:
        """The next larger candidate that loses less."""
        better = [c for c in self.candidates if c.bytes > self.chosen.bytes and c.loss < self.chosen.loss]
        return min(better, key=lambda c: c.bytes, default=None)


@dataclass(frozen=True)
class Part:
    """One part of the written file. kind: its colour in plots."""

    label: str
    kind: str
    bytes: int


@dataclass(frozen=True)
class ReportFacts:
    """The documents, and what follows from them.

    times: what differs from run to run. changed: the samples that changed most, where they were looked for.
    sweep: the measured frontier, where there is one.
    """

    manifest: Document
    plan: Document
    sensitivity: Document
    times: Document
    changed: Document | None = None
    sweep: Document | None = None

    @property
    def size(self) -> int:
        """Bytes of the written file."""
        return int(self.manifest["file"]["bytes"])

    @property
    def original(self) -> int:
        """Bytes of the float file."""
        return int(self.manifest["source"]["bytes"])

    @property
    def unit(self) -> str:
        """Unit of losses."""
        return str(self.sensitivity["loss_unit"])

    @property
    def loss(self) -> float:
        """Predicted loss of the plan's weights."""
        return float(self.manifest["allocation"]["loss"])

    @cached_property
    def energy(self) -> Energy:
        """Bit flips of the layers."""
        return Energy.of(self.plan, self.sensitivity)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Weights in execution order."""
        analysis = {entry["weight"]: entry for entry in self.plan["weights"]}
        return tuple(_row(entry, analysis[entry["weight"]], self.labels) for entry in self.sensitivity["weights"])

    @property
    def labels(self) -> Document:
        """Names by which people know layers; of artifacts of earlier versions there are none."""
        return labels_in(self.manifest)

    @property
    def bits_per_weight(self) -> float:
        """Mean over all elements, codes alone."""
        return mean_bits((row.chosen.form, row.elements) for row in self.rows)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Where the bytes of the written file are; they add up to it."""
        codes = [Part(f"weights in {form}", form.colour, total) for form, total in self._codes().items()]
        packed, stored = sum(part.bytes for part in codes), sum(row.chosen.bytes for row in self.rows)
        fixed, result = self.sensitivity["fixed_bytes"], self.manifest["file"]["bytes_told_to_solver"]
        functions = max(0, result - fixed - stored)
        overhead = [
            Part("scales, biases, unpacking calls", "scales", stored - packed),
            Part("unpacking functions", "functions", functions),
            Part("graph and everything else", "graph", max(0, self.size - stored - functions)),
        ]
        return tuple(part for part in (*codes, *overhead) if part.bytes)

    def _codes(self) -> dict[Format, int]:
        totals: dict[Format, int] = {}
        for row in sorted(self.rows, key=lambda row: (row.chosen.form.bits_per_weight, str(row.chosen.form))):
            totals[row.chosen.form] = totals.get(row.chosen.form, 0) + row.packed_bytes
        return totals

    @cached_property
    def largest_share(self) -> float:
        """The most bytes that one weight has in the file."""
        return max((row.chosen.bytes for row in self.rows), default=1) / self.size

    @cached_property
    def largest_loss(self) -> float:
        """The largest loss that is predicted for one weight."""
        return max((row.chosen.loss for row in self.rows), default=0.0)

    @property
    def worst(self) -> list[Row]:
        """The five weights that cost most predicted loss."""
        return sorted((row for row in self.rows if row.chosen.loss > 0), key=lambda row: -row.chosen.loss)[:5]

    @property
    def float_notes(self) -> list[Document]:
        """Notes on operators that compute in float."""
        return [note for note in labelled_notes(self.manifest) if _is_on_float(note)]

    @property
    def warnings(self) -> list[Document]:
        """Notes that the user should look at."""
        return [note for note in labelled_notes(self.manifest) if note["level"] == "warning"]

    @property
    def other_notes(self) -> list[Document]:
        """All other notes."""
        notes = labelled_notes(self.manifest)
        return [note for note in notes if not _is_on_float(note) and note["level"] != "warning"]


def _is_on_float(note: Document) -> bool:
    return " computes in float" in note["message"] and note["level"] != "warning"


def labels_in(manifest: Document) -> Document:
    """Names by which people know layers, by those of the model's values."""
    result: Document = manifest.get("labels", {})
    return result


def labelled_notes(manifest: Document) -> list[Document]:
    """All notes, each with the name by which people know what it is about."""
    labels = labels_in(manifest)
    return [{**note, "subject": labels.get(note["subject"], note["subject"])} for note in manifest["notes"]]


def _row(measured: Document, analysis: Document, labels: Document) -> Row:
    candidates = tuple(
        Choice(Format.parse(c["format"]), c["bytes"], c["loss"], c["error"]) for c in measured["candidates"]
    )
    chosen = next(c for c in candidates if str(c.form) == analysis["format"])
    macs = sum(measured["layers"].values())
    return Row(measured["weight"], measured["elements"], analysis["layers"], macs, chosen, candidates, labels)
