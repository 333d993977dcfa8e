"""`ptqc explain`: what was decided for each layer and constant, and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ptqc.artifact.folder import legible
from ptqc.artifact.report.budgets import loss_in_words, memory_in_words
from ptqc.artifact.report.energy import Energy
from ptqc.artifact.report.rows import labelled_notes, labels_in
from ptqc.artifact.report.summary import NAME_LENGTH, NAMED, NoteGroup, agreement, groups, judged_as
from ptqc.utils.text import magnitude, number, shorten, visible

Document = Mapping[str, Any]

HEAD = ("layer or weight", "weights", "format", "compute", "bytes", "predicted divergence", "bit flips")
TIMES = ("predicted µs", "measured µs")


@dataclass(frozen=True)
class ExplainedLayer:
    """What was decided for a layer, or for a constant that several share: those share its bytes and its loss.

    label: by which people know it. bit_flips: None where none are counted. predicted_us, measured_us: None where no
    time was asked for.
    """

    layer: str
    label: str
    weight: str
    elements: int
    format: str
    compute: str
    bytes: int
    predicted_loss: float
    bit_flips: float | None
    predicted_us: float | None
    measured_us: float | None

    def cells(self, with_times: bool) -> tuple[str, ...]:
        """As the table tells it."""
        result = (
            shorten(visible(self.label), NAME_LENGTH),
            f"{self.elements:,}",
            self.format,
            self.compute,
            f"{self.bytes:,}",
            f"{self.predicted_loss:.2e}",
            "–" if self.bit_flips is None else magnitude(self.bit_flips).strip(),
        )
        times = ("" if us is None else number(us) for us in (self.predicted_us, self.measured_us))
        return (*result, *times) if with_times else result


@dataclass(frozen=True)
class Explanation:
    """Documents of an artifact, as `ptqc explain` tells them."""

    manifest: Document
    plan: Document
    sensitivity: Document

    @property
    def layers(self) -> Iterator[ExplainedLayer]:
        """One entry per layer and constant, in the order of the plan."""
        energy, latency, labels = self._energy, self.manifest.get("latency"), labels_in(self.manifest)
        times = {} if latency is None else {entry["node"]: entry for entry in latency["operators"]}
        measured = {entry["weight"]: entry for entry in self.sensitivity["weights"]}
        for entry in self.plan["weights"]:
            result = measured[entry["weight"]]
            chosen = next(c for c in result["candidates"] if c["format"] == entry["format"])
            for layer, compute in (entry["layers"] or {entry["weight"]: "table"}).items():
                timed = times.get(layer, {"predicted_us": None, "measured_us": None})
                yield ExplainedLayer(
                    layer,
                    labels.get(layer, layer),
                    entry["weight"],
                    result["elements"],
                    entry["format"],
                    compute,
                    chosen["bytes"],
                    chosen["loss"],
                    energy.layers[layer].flips() if layer in energy.layers else None,
                    timed["predicted_us"],
                    timed["measured_us"],
                )

    @property
    def _energy(self) -> Energy:
        return Energy.of(self.plan, self.sensitivity)

    @legible("the artifact")
    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {
            "layers": [asdict(layer) for layer in self.layers],
            "outputs": self.manifest["results"].get("outputs", []),
            "memory": self.manifest.get("memory"),
            "loss_budget": self.manifest.get("loss_budget"),
            "notes": self.manifest["notes"],
        }

    @legible("the artifact")
    def __str__(self) -> str:
        with_times = self.manifest.get("latency") is not None
        rows = [(*HEAD, *TIMES) if with_times else HEAD, *(layer.cells(with_times) for layer in self.layers)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
        totals = [self._energy.in_words(), memory_in_words(self.manifest)]
        for part in (totals, list(self._outputs()), [_note(group) for group in groups(labelled_notes(self.manifest))]):
            lines += ["", *part] if part else []
        return "\n".join(lines)

    def _outputs(self) -> Iterator[str]:
        """How each output was judged, the losses of its groups, and how a budget of loss is kept."""
        outputs: Sequence[Document] = self.manifest["results"].get("outputs", [])
        for result in outputs:
            yield f"{judged_as(result)}: {agreement(result)}"
            if len(result["losses"]) > 1:
                for group, loss in result["losses"].items():
                    yield f"  {group}: divergence {loss:.3g} {result['units'][group]}"
        if (budget := self.manifest.get("loss_budget")) is not None:
            yield loss_in_words(budget)


def _note(group: NoteGroup) -> str:
    """The message behind the first of its subjects."""
    named = [visible(subject) for subject in group.subjects[:NAMED]]
    if len(group.subjects) > NAMED:
        named.append(f"and {len(group.subjects) - NAMED:,} more")
    about = f" {', '.join(named)}:" if named else ""
    return f"[{group.step}]{about} {visible(group.message)}"
