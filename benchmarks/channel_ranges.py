"""What each rewrite of channels does to their ranges: `python benchmarks/channel_ranges.py [--pictures FOLDER]`.

The network is the small decoder of models/tiny_llama.py with planted outliers. Prints the table of
docs/concepts/channels.md and draws its pictures. Each row is what one rewrite does to all channels that it can, as in
even_channels.py; what is split off is what the compiler chooses by itself, and computes in float.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from channel_plot import Bars, draw
from even_channels import decoder, rotated, rounded_weights, scaled
from harness import ROOT, Column, markdown

from ptqc.calibration.samples import Samples
from ptqc.execution.onnxruntime import Runner
from ptqc.execution.shapes import observed_shapes
from ptqc.ir.channel_rules import ORDERS
from ptqc.ir.channels import find_ties
from ptqc.ir.layers import find_layers
from ptqc.ir.sites import source_params
from ptqc.passes.equalize.equalize_channels import OBSERVED, RoundedLosses, ranges, reach_of
from ptqc.passes.equalize.outliers import Remedy, Split, rewrites
from ptqc.passes.equalize.reorder_channels import ReorderChannels, by_key
from ptqc.passes.equalize.scale_channels import unevenness
from ptqc.passes.quantize.choose_splits import ChooseSplits
from ptqc.passes.quantize.phases import AnalysisInput
from ptqc.passes.quantize.prepare import CanonicalModel
from ptqc.passes.runner import run_rewrites

COLUMNS = [
    Column("channels", "version"),
    Column("outputs differ by", "change", lambda share: f"{share:.0e}" if share else "0"),
    Column("after the norm, widest / median", "norm", "{:.1f}".format),
    Column("before the down projection, widest / median", "hidden", "{:.1f}".format),
    Column("8-bit activations", "activations", "{:.4f}".format),
    Column("and 8-bit weights", "both", "{:.4f}".format),
]


@dataclass(frozen=True, eq=False)
class Version:
    """The network after a rewrite. splits: what was split off."""

    title: str
    model: ir.Model
    splits: tuple[Remedy, ...] = ()

    def bars(self, tensor: str, samples: Samples) -> Bars:
        """How far each channel of a tensor with channels last reaches."""
        runner = Runner(self.model, [tensor])
        values = [runner.run(feeds, [tensor])[tensor] for feeds in samples]
        reach = np.max([np.abs(x).reshape(-1, x.shape[-1]).max(0) for x in values], 0)
        apart = np.zeros(len(reach), np.bool_)
        for off in self.splits:
            if off.tensor == tensor:
                apart[list(off.channels)] = True
        return Bars(self.title, reach, apart)


def reordered(model: ir.Model, prepared: CanonicalModel) -> None:
    """Every class of channels that can change places, the one that reaches farthest first."""
    ties = find_ties(model, observed_shapes(model, prepared.samples[0]), ORDERS)
    reach = reach_of(model, ties, prepared.tuning[:OBSERVED])
    run_rewrites(model, (ReorderChannels(ties, by_key(ties, reach)),), [prepared.samples[0]])


def split(prepared: CanonicalModel) -> Version:
    """The channels split off that the compiler chooses."""
    model = prepared.model.clone()
    chosen = ChooseSplits().apply(AnalysisInput.of(model, prepared.tuning, prepared.held_back)).output
    splits = tuple(replace(remedy, by_row=False) for remedy in chosen if remedy.channels)
    run_rewrites(model, rewrites(splits), [prepared.samples[0]])
    return Version("split", model, splits)


def versions(prepared: CanonicalModel) -> Iterator[Version]:
    """The network as it is, and after each rewrite alone."""
    yield Version("as they are", prepared.model)
    for title, rewrite in (("reordered", reordered), ("scaled", scaled), ("rotated", rotated)):
        model = prepared.model.clone()
        rewrite(model, prepared)
        yield Version(title, model)
        if title == "reordered":
            yield split(prepared)


def tensors(model: ir.Model) -> dict[str, str]:
    """What the pictures show, by column of the table: what the first gate and the first down projection read."""
    import tiny_llama

    gate, down = (tiny_llama.WIDTH, tiny_llama.INNER), (tiny_llama.INNER, tiny_llama.WIDTH)
    read = [(layer.shape, layer.input) for layer in find_layers(model)]
    return {name: next(x for of, x in read if of == shape) for name, shape in (("norm", gate), ("hidden", down))}


def lost(version: Version, whole: AnalysisInput, losses: RoundedLosses) -> tuple[float, float]:
    """Mean losses of 8-bit activations, and of these with 8-bit weights.

    Rounded is what is rounded of the whole network, but for what is split off and the products of it.
    """
    setting = AnalysisInput.of(version.model, losses.tuning, losses.held_back)
    known = {site.name for site in whole.sites} | {x.rest for x in version.splits}
    floats = {x.tensor for x in version.splits}
    sites = [site for site in setting.sites if site.name in known and not floats.intersection(site.tensors)]
    params = source_params(sites, ranges(setting))
    wide = {Split(x.tensor, x.channels).wide for x in version.splits}
    layers = [layer for layer in setting.layers if layer.input not in wide]
    activations = losses.rounded(version.model, params, {})
    both = losses.rounded(version.model, params, rounded_weights(version.model, layers))
    return float(activations.mean()), float(both.mean())


def change(version: Version, prepared: CanonicalModel, samples: Samples) -> float:
    """The largest difference of any output from those of the network as it is, as a share of the largest output."""
    before, after = (
        np.concatenate([value.ravel() for feeds in samples for value in runner.run(feeds).values()])
        for runner in (Runner(prepared.model), Runner(version.model))
    )
    return float(np.abs(after - before).max() / np.abs(before).max())


def measured(prepared: CanonicalModel, compared: Sequence[Version]) -> Iterator[dict[str, object]]:
    """A row for each version."""
    losses = RoundedLosses(prepared.model, prepared.tuning[:OBSERVED], prepared.held_back, "auto")
    whole = AnalysisInput.of(prepared.model, losses.tuning, losses.held_back)
    for version in compared:
        activations, both = lost(version, whole, losses)
        yield {
            "version": version.title,
            "change": change(version, prepared, prepared.held_back),
            "activations": activations,
            "both": both,
            **{name: uneven(version.bars(tensor, losses.tuning)) for name, tensor in tensors(prepared.model).items()},
        }


def uneven(bars: Bars) -> float:
    """The widest channel of those that are not split off over the median one."""
    return unevenness(bars.reach[~bars.apart])


def pictures(prepared: CanonicalModel, compared: Sequence[Version], folder: Path) -> None:
    """A file for each tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensor in tensors(prepared.model).items():
        bars = [version.bars(tensor, prepared.tuning[:OBSERVED]) for version in compared]
        (folder / f"channels_{name}.svg").write_text(draw(bars, f"ranges of channels, {name}"), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs" / "pictures", help="where they are put")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        even, prepared = (decoder(outliers, Path(temporary) / str(outliers)) for outliers in (False, True))
        compared = list(versions(prepared))
        pictures(prepared, compared, options.pictures)
        rows = [*measured(even, [Version("without planted outliers", even.model)]), *measured(prepared, compared)]
        print(markdown(rows, COLUMNS))


if __name__ == "__main__":
    main()
