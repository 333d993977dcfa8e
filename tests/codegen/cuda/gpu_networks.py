"""Networks for the emulator; imports TVM, see `emulated_networks.py`."""

from pathlib import Path

import numpy as np
import test_more_operators
import test_operators
import test_random_networks
import test_real_stages
from fours import two_of_four
from graphs import noise, parse
from lowering import quantized, samples
from together import program_of

from ptqc.codegen.cuda import building
from ptqc.codegen.cuda.layers import CUDA
from ptqc.codegen.cuda.toolkit import Toolkit
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program.program import Program
from ptqc.codegen.program.verify import Runnable

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


def programs_of(kind: str, folder: Path) -> dict[str, Program]:
    """The kernels of networks of a kind. kind: of random ones, "random" and the first seed."""
    if kind == "more":
        return test_more_operators.programs_of(CUDA, folder)
    if kind == "stages":
        return test_real_stages.programs_of(CUDA, folder)
    if kind == "layers":
        feeds = samples(3, 3, 13, 11)
        drawn = {str(seed): layers(seed) for seed in range(LAYERS)}
        networks = {name: quantized(parse(graph, **constants), feeds) for name, (graph, constants) in drawn.items()}
        return {name: program_of(made, feeds, CUDA, folder / name) for name, made in networks.items()}
    if kind.startswith("random"):
        first = int(kind.removeprefix("random"))
        seeds = range(first, first + TOGETHER)
        return {str(seed): test_random_networks.network(seed, CUDA, folder / str(seed)) for seed in seeds}
    names = FEW if kind == "few" else None
    return test_operators.programs_of(CUDA, folder, floating=kind == "float", names=names)


def built(program: Program, _chosen: Isa, folder: Path) -> Runnable:
    """Their library, on the emulator."""
    return building.write(program, Toolkit.require(), ["sm_80"], folder).emulated().library
