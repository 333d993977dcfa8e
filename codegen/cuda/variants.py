"""The ways to compute a layer on tensor cores: all give the same, and what is predicted to be fastest comes first.

Families of kernels give their `Variant`s; what chooses among those (predictions here, measurements in `tuning.py`)
knows nothing else of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ptqc.codegen.cuda import costs
from ptqc.codegen.cuda.packed_weights import Coding, PairCoding
from ptqc.codegen.cuda.tiles import Tiles
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.program import Alternatives


@dataclass(frozen=True)
class Variant:
    """One way. family: of its kernel. write: the kernel. gpu: the only chip that it is worth a trial on, if any."""

    family: str
    tiles: Tiles
    coding: Coding | PairCoding
    write: Callable[[], KernelSource]
    gpu: str = ""

    @property
    def label(self) -> str:
        """What tables of times call it; no other way to compute the layer has the same."""
        cut = self.tiles.cut
        return (
            f"{self.family} of {self.tiles.bits} bits, {cut.rows}x{cut.columns}, row tiles {cut.row_tiles}, "
            f"shares {cut.shares}, stages {cut.stages}"
        )

    @property
    def typical(self) -> float:
        """Predicted seconds over all chips, with one sample and with many."""
        return costs.typical(self.tiles, self.coding)

    def predicted(self, samples: int = 1) -> Mapping[str, float]:
        """Microseconds by chip."""
        return costs.predicted(self.tiles, self.coding, samples)

    def kernel(self) -> KernelSource:
        """The kernel with its predicted times."""
        return replace(self.write(), predicted=self.predicted())


def predicted_best(variants: Iterable[Variant], unproven: Iterable[Variant] = ()) -> KernelSource:
    """The kernel that is predicted to be fastest, of several such the first one; all variants are its alternatives.

    unproven: variants that only measurements may choose.
    """
    ordered = sorted(variants, key=lambda variant: variant.typical)
    return replace(ordered[0].kernel(), alternatives=Alternatives([*ordered, *unproven], Variant.kernel))
