from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.errors import PassError
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.passes.base import Effect, Result
from ptqc.passes.effects import applied, check_tuned
from ptqc.passes.quantize.phases import PlanWithParameters

LINEAR = "g (float[N, 4] x) => (float[N, 3] y) { y = MatMul(x, w) }"


@dataclass(frozen=True)
class Deciding:
    """A pass that gives numbers with these losses before and after, and may touch the model."""

    losses: tuple[float, float] = (1.0, 1.0)
    touches: str = ""
    name: ClassVar[str] = "deciding"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, value: PlanWithParameters) -> Result[QuantizedParameters]:
        node = value.model.graph[0]
        if self.touches == "attribute":
            node.attributes["mine"] = ir.AttrInt64("mine", 1)
        elif self.touches == "weight":
            value.model.graph.initializers["w"].const_value = ir.tensor(noise(4, 3, seed=1), name="w")
        elif self.touches == "node":
            node.op_type = "Gemm"
        return Result(QuantizedParameters({}, {}, losses=self.losses), True)


def numbered() -> PlanWithParameters:
    return PlanWithParameters(parse(LINEAR, w=noise(4, 3)), Plan((), (), (), (), {}, {}), QuantizedParameters({}, {}))


@pytest.mark.parametrize("touches", ["attribute", "weight", "node"])
def test_a_pass_that_must_not_change_the_model_is_held_to_it(touches: str) -> None:
    with pytest.raises(PassError, match="deciding changed the model"):
        applied(Deciding(touches=touches), numbered())


def test_what_a_pass_makes_is_handed_on() -> None:
    assert applied(Deciding(), numbered()).output.losses == (1.0, 1.0)


@pytest.mark.parametrize(("before", "after", "is_worse"), [(1.0, 1.1, True), (1.0, 0.9, False), (0.0, 0.0, False)])
def test_numbers_that_are_worse_by_their_own_measure_are_refused(before: float, after: float, is_worse: bool) -> None:
    if is_worse:
        with pytest.raises(PassError, match=r"raised its own held-back loss from 1 to 1\.1"):
            applied(Deciding((before, after)), numbered())
    else:
        check_tuned("deciding", QuantizedParameters({}, {}, losses=(before, after)))
