"""Which axes of a value belong to one sample of a kernel: all but the batch; where a run is one sample, all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from ptqc.codegen.program.built import Declined
from ptqc.runtime.lengths import Shape


@dataclass(frozen=True)
class Axes:
    """shapes: of every value in one run of the model. batch: size of the axis that is first everywhere; see `lead`.

    batch None: a sample is a whole run, whatever its axes mean.
    """

    shapes: Mapping[str, Shape]
    batch: int | None

    def lead(self, name: str) -> int:
        """How many axes in front a sample lacks: the batch, or of a whole run one of size 1, which holds nothing.

        Raises Declined where the first axis is not the batch.
        """
        shape = self.shapes.get(name)
        if shape is None:
            raise Declined(f"{name} is no tensor")
        if 0 in shape:
            raise Declined(f"{name} has no elements")
        if self.batch is None:
            return int(shape[:1] == (1,))
        if shape[:1] != (self.batch,):
            raise Declined(f"the first axis of {name} is not the batch")
        return 1

    def sample(self, name: str) -> Shape:
        """The shape of one sample of a value. Raises Declined where its first axis is not the batch."""
        return self.shapes[name][self.lead(name) :]

    def outer(self, *names: str, touched: bool = False) -> int:
        """How many axes in front of these values an operator may leave out of account: 1, or 0 where some have none.

        touched: the operator does something along the first axis. Raises Declined where that is the batch.
        """
        leads = {self.lead(name) for name in names}
        if not touched and leads == {1}:
            return 1
        if self.batch is not None:
            raise Declined("it mixes the samples of a batch")
        return 0
