"""Random networks, and formats for their weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from drawing import draw

from ptqc.execution.onnxruntime import Feeds
from ptqc.formats import Codebook, Entropy, Format, Integer, Sparse, SparseCodebook, Trellis, TwoOfFour, VectorCodebook
from ptqc.ir.layers import Weight, find_layers, find_weights
from ptqc.ir.nodes import constant
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.quantize.solve_weights import possible
from ptqc.passes.runner import run_rewrites


def prune(weight: ir.Value, random: np.random.Generator) -> None:
    """Make zeros of some of the numbers, of few or of all but a few."""
    values = constant(weight)
    assert values is not None
    kept = random.random(values.shape) >= random.random()
    weight.const_value = ir.tensor(np.asarray(values * kept, np.float32), name=weight.name)


def format_of(weight: Weight, random: np.random.Generator) -> Format:
    """A format that the weight can have: pairs are neighbours in a channel, fours are inputs."""
    forms: list[Format] = [Integer(int(random.integers(2, 9))), Codebook(int(random.integers(2, 5))), Entropy(8)]
    forms += [Sparse(int(random.integers(1, 7))), SparseCodebook(int(random.integers(2, 5)))]
    if weight.layers and weight.channel_axis == 0 and weight.size // weight.shape[0] % 2 == 0:
        forms.append(VectorCodebook(int(random.integers(3, 9))))
    if weight.layers and weight.channel_axis == 0 and weight.shape[1] % 4 == 0:
        forms.append(TwoOfFour(int(random.integers(1, 7))))
    if trellis := possible(weight, [*Trellis.members()]):
        forms.append(trellis[int(random.integers(len(trellis)))])
    return forms[int(random.integers(len(forms)))]


@dataclass(frozen=True)
class RandomNetwork:
    """A network to be quantized. forms: of its weights. floating: share of the sites to stay float. random: goes on."""

    model: ir.Model
    feeds: Sequence[Feeds]
    forms: Mapping[str, Format]
    floating: float
    random: np.random.Generator

    @classmethod
    def drawn(cls, seed: int, mixed: float) -> "RandomNetwork":
        """The network of a seed, in normal form. mixed: how often some of its sites stay float."""
        proto, feeds = draw(seed)
        random = np.random.default_rng(seed)
        model = ir.from_proto(proto)
        run_rewrites(model, default_rewrites(), feeds[:1])
        floating = random.random() if random.random() < mixed else 0.0
        forms = {w.name: format_of(w, random) for w in find_weights(model, find_layers(model))}
        divisors = {value.name for node in model.graph if node.op_type == "Div" for value in node.inputs[1:] if value}
        for name in (name for name, form in forms.items() if form.keeps_zeros and name not in divisors):
            prune(model.graph.initializers[name], random)
        return cls(model, feeds, forms, floating, random)

    def keeps_float(self, _site: str) -> bool:
        """Whether the next site stays float."""
        return bool(self.random.random() < self.floating)
