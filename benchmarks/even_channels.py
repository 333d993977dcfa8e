"""What scaling and rotating channels recovers of what 8 bits lose: `python benchmarks/even_channels.py [MODEL DATA]`.

Without a model, the small decoder of models/tiny_llama.py, without and with planted outliers. DATA: a folder or an .npz
file of calibration samples. Every tensor that can be is rounded to 8 bits by ranges of tuning samples, the weights of
layers to 8 bits by their largest values; losses are of held-back samples. Nothing is accepted or undone here: each row
is what one rewrite does to all channels that it can, however uneven they are. --record puts the rows into
figures/even_channels.json.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from harness import FIGURES, ROOT, Column, command_line, machine, print_results, record, write_results

from ptqc.execution.shapes import observed_shapes
from ptqc.frontend import read_model
from ptqc.ir.channels import find_ties
from ptqc.ir.layers import Layer
from ptqc.ir.nodes import initial
from ptqc.ir.rotation_rules import ROTATIONS
from ptqc.ir.scale_rules import SCALES
from ptqc.ir.sites import source_params
from ptqc.passes.equalize.equalize_channels import OBSERVED, RoundedLosses, coarse, ranges, reach_of, weights_of
from ptqc.passes.equalize.rotate import Rotate, rotatable, unit_gains
from ptqc.passes.equalize.scale_channels import ScaleChannels, smoothing, unevenness
from ptqc.passes.quantize.phases import AnalysisInput
from ptqc.passes.quantize.prepare import CanonicalModel, gather, prepare
from ptqc.passes.runner import run_rewrites
from ptqc.utils.progress import SILENT

DECODERS = ("tiny_llama", "tiny_llama, outliers")
COUNT, LENGTH = 256, 32
BITS = 8
COLUMNS = [
    Column("network", "task"),
    Column("channels", "rewrite"),
    Column("most uneven", "uneven", "{:.1f}".format),
    Column("8-bit activations", "activations", "{:.5f}".format),
    Column("and 8-bit weights", "both", "{:.5f}".format),
    Column("4-bit weights", "weights", "{:.4f}".format),
]


def folded(model: ir.Model, prepared: CanonicalModel) -> None:
    """Gains of norms become one."""
    ties = find_ties(model, observed_shapes(model, prepared.samples[0]), SCALES)
    run_rewrites(model, (ScaleChannels(ties, unit_gains(model, ties)),), [prepared.samples[0]])


def scaled(model: ir.Model, prepared: CanonicalModel) -> None:
    """Every group of tied channels."""
    ties = find_ties(model, observed_shapes(model, prepared.samples[0]), SCALES)
    reach, weights = reach_of(model, ties, prepared.tuning[:OBSERVED]), weights_of(model, ties)
    factors = np.ones(len(ties.classes))
    for group in ties.groups():
        factors[group] = smoothing(reach[group], weights[group])
    run_rewrites(model, (ScaleChannels(ties, factors),), [prepared.samples[0]])


def rotated(model: ir.Model, prepared: CanonicalModel) -> None:
    """Every class of channels, behind folded norms."""
    folded(model, prepared)
    ties = find_ties(model, observed_shapes(model, prepared.samples[0]), ROTATIONS)
    run_rewrites(model, (Rotate(ties, rotatable(ties)),), [prepared.samples[0]])


def both(model: ir.Model, prepared: CanonicalModel) -> None:
    """Scaled, then rotated."""
    scaled(model, prepared)
    rotated(model, prepared)


REWRITES: dict[str, Callable[[ir.Model, CanonicalModel], None]] = {
    "as they are": lambda model, prepared: None,  # noqa: ARG005
    "gains of norms folded": folded,
    "scaled": scaled,
    "rotated": rotated,
    "scaled and rotated": both,
}


def rounded_weights(model: ir.Model, layers: Sequence[Layer]) -> dict[str, np.ndarray]:
    """Those of layers in 8 bits, by name."""
    return {layer.weight: coarse(layer, initial(model, layer.weight), BITS) for layer in layers}


def rows(prepared: CanonicalModel) -> Iterator[dict[str, object]]:
    losses = RoundedLosses(prepared.model, prepared.tuning[:OBSERVED], prepared.held_back, "auto")
    for name, rewrite in REWRITES.items():
        model = prepared.model.clone()
        rewrite(model, prepared)
        ties = find_ties(model, observed_shapes(model, prepared.samples[0]), SCALES)
        reach = reach_of(model, ties, losses.tuning)
        setting = AnalysisInput.of(model, losses.tuning, losses.held_back)
        by_kind = losses.of(model)
        params = source_params(setting.sites, ranges(setting))
        whole = losses.rounded(model, params, rounded_weights(model, setting.layers))
        yield {
            "rewrite": name,
            "uneven": max((unevenness(reach[group]) for group in ties.groups()), default=1.0),
            "activations": by_kind.activations.mean(),
            "both": whole.mean(),
            "weights": by_kind.weights.mean(),
        }


def decoder(outliers: bool, folder: Path, count: int = COUNT, length: int = LENGTH) -> CanonicalModel:
    """The small decoder with so many samples of random tokens."""
    sys.path.append(str(ROOT / "models"))
    import tiny_llama

    folder.mkdir(exist_ok=True)
    onnx.save(tiny_llama.build(outliers, cache=False), folder / "model.onnx")
    feeds = [tiny_llama.sample(length, cache=False, seed=seed) for seed in range(count)]
    return prepared(folder / "model.onnx", feeds, folder)


def prepared(model: Path, data: object, folder: Path) -> CanonicalModel:
    source = read_model(model)
    return prepare(source, gather(source, data, folder / "samples", COUNT, None, SILENT), SILENT)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--record", action="store_true", help="put the rows into figures/even_channels.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.model is not None:
            networks = {options.model.stem: prepared(options.model, options.data, Path(temporary))}
        else:
            networks = {name: decoder("outliers" in name, Path(temporary) / name) for name in DECODERS}
        measured = [{"task": name, "budget": "", **row} for name, model in networks.items() for row in rows(model)]
    facts = machine()
    write_results(options.out, measured, facts)
    if options.record:
        record(FIGURES / "even_channels.json", measured, facts, "rewrite")
    print_results(measured, COLUMNS, facts)


if __name__ == "__main__":
    main()
