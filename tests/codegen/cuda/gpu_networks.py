"""Networks for the emulator; imports TVM, see `emulated_networks.py`."""

from pathlib import Path

import numpy as np
import test_more_operators
import test_operators
import test_random_networks
import test_real_stages
from fours import two_of_four
from graphs import noise, parse
from lowering import Quantized, quantized, samples
from together import program_of

from ptqc.codegen.cuda import building
from ptqc.codegen.cuda.isa import BY_ELEMENT
from ptqc.codegen.cuda.toolkit import Toolkit
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program.program import Program
from ptqc.codegen.program.verify import Runnable
from ptqc.formats import FLOAT8, FLOAT8_ACTIVATION

# Networks of random layers; random networks in a library.
LAYERS, TOGETHER = 12, 25
# Of all operators those whose kernels differ the most from each other.
FEW = (
    "softmax of channels between codes",
    "mean of planes",
    "gathered codes",
    "attention",
)


def layers(seed: int) -> tuple[str, dict[str, np.ndarray]]:
    """A network with layers for tensor cores, dense and sparse, and inner products of bytes, of random sizes, strides
    and dilations."""
    random = np.random.default_rng(seed)
    wide, outputs = (int(n) for n in (16 * random.integers(1, 6), random.integers(1, 100)))
    rows, columns, stride, dilation = (int(n) for n in random.integers(1, 4, 4))
    pads = [int(n) for n in random.integers(0, 3, 4)]
    graph = f"""g (float[N, 3, 13, 11] x) => (float y) {{
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        r = Relu(a)
        d = Conv <group = {wide}, pads = [2, 0, 2, 4], strides = [1, {stride}]> (r, v)
        t = Mish(d)
        e = Conv <pads = {pads}, strides = [{stride}, 1], dilations = [{dilation}, 1]> (t, u)
        f = Conv <pads = {pads}, strides = [{stride}, 1], dilations = [{dilation}, 1]> (d, q)
        s = Add(f, e)
        m = GlobalAveragePool(s)
        y = Conv(m, h)
    }}"""
    return graph, {
        "w": noise(wide, 3, 3, 3, seed=seed, scale=0.4),
        "v": noise(wide, 1, 5, 5, seed=seed + 1, scale=0.2),
        "u": two_of_four(noise(outputs, wide, rows, columns, seed=seed + 2, scale=0.2), seed),
        "q": noise(outputs, wide, rows, columns, seed=seed + 3, scale=0.2),
        "h": noise(7, outputs, 1, 1, seed=seed + 4, scale=0.2),
    }


def float8_layers(seed: int) -> tuple[str, dict[str, np.ndarray]]:
    """A network with layers of FP8, of random sizes, strides and dilations: behind each other, behind what moves
    values, in sums and in groups; and ones that have no kernel of their own."""
    random = np.random.default_rng(seed)
    wide, beside = (16 * int(random.integers(first, 4)) for first in (1, 0))
    outputs = 2 * int(random.integers(1, 70))
    rows, columns, stride, dilation = (int(n) for n in random.integers(1, 4, 4))
    pads = [int(n) for n in random.integers(0, 3, 4)]
    other = "k = Conv <pads = [1, 1, 1, 1]> (x, s) j = Concat <axis = 1> (r, k)" if beside else "j = Tanh(r)"
    graph = f"""g (float[N, 3, 13, 11] x) => (float y) {{
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        r = Relu(a)
        {other}
        e = Conv <pads = {pads}, strides = [{stride}, 1], dilations = [{dilation}, 1]> (j, u, b)
        f = Conv <pads = {pads}, strides = [{stride}, 1], dilations = [{dilation}, 1]> (j, q)
        d = Add(f, e)
        h = Relu(d)
        p = MaxPool <kernel_shape = [2, 2]> (h)
        o = Conv <group = 2> (p, g)
        m = GlobalAveragePool(o)
        t = Flatten(m)
        z = Gemm <transB = {seed % 2}, alpha = 0.5, beta = 2.0> (t, i, c)
        y = MatMul(z, l)
    }}"""
    head = (48, 2 * outputs) if seed % 2 else (2 * outputs, 48)
    return graph, {
        "w": noise(wide, 3, 3, 3, seed=seed, scale=0.4),
        "s": noise(max(beside, 1), 3, 3, 3, seed=seed + 1, scale=0.4),
        "u": noise(outputs, wide + beside, rows, columns, seed=seed + 2, scale=0.1),
        "b": noise(outputs, seed=seed + 3),
        "q": noise(outputs, wide + beside, rows, columns, seed=seed + 4, scale=0.1),
        "g": noise(2 * outputs, outputs // 2, 1, 1, seed=seed + 5, scale=0.3),
        "i": noise(*head, seed=seed + 6, scale=0.3),
        "c": noise(48, seed=seed + 7),
        "l": noise(48, 9, seed=seed + 8, scale=0.3),
    }


def float8_network(seed: int) -> Quantized:
    """One of these, with all weights in FP8 and most of the values that layers read rounded to it."""
    graph, constants = float8_layers(seed)
    random = np.random.default_rng(seed)
    return quantized(
        parse(graph, **constants),
        samples(3, 3, 13, 11),
        forms=FLOAT8,
        keep_float=lambda _site: True,
        is_rounded=lambda _site: bool(random.random() < 0.9),
        to=FLOAT8_ACTIVATION,
    )


def programs_of(kind: str, folder: Path) -> dict[str, Program]:
    """The kernels of networks of a kind. kind: of random ones, "random" and the first seed."""
    if kind == "more":
        return test_more_operators.programs_of(BY_ELEMENT, folder)
    if kind == "stages":
        return test_real_stages.programs_of(BY_ELEMENT, folder)
    if kind == "layers":
        feeds = samples(3, 3, 13, 11)
        drawn = {str(seed): layers(seed) for seed in range(LAYERS)}
        networks = {name: quantized(parse(graph, **constants), feeds) for name, (graph, constants) in drawn.items()}
        return {name: program_of(made, feeds, BY_ELEMENT, folder / name) for name, made in networks.items()}
    if kind == "float8":
        feeds = samples(3, 3, 13, 11)
        made = {str(seed): float8_network(seed) for seed in range(LAYERS)}
        return {name: program_of(network, feeds, BY_ELEMENT, folder / name) for name, network in made.items()}
    if kind.startswith("random"):
        first = int(kind.removeprefix("random"))
        seeds = range(first, first + TOGETHER)
        return {str(seed): test_random_networks.network(seed, BY_ELEMENT, folder / str(seed)) for seed in seeds}
    names = FEW if kind == "few" else None
    return test_operators.programs_of(BY_ELEMENT, folder, floating=kind == "float", names=names)


def built(program: Program, _chosen: Isa, folder: Path) -> Runnable:
    """Their library, on the emulator."""
    return building.write(program, Toolkit.require(), ["sm_80"], folder).emulated().library
