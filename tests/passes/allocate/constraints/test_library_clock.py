"""Times of operators in a library, from the times of its kernels: which kernel is charged to what."""

from collections.abc import Hashable, Sequence

from compiling import Measured

from ptqc.codegen.program.listing import Call, Listing
from ptqc.codegen.program.timing import TimedCall, TimedProgram
from ptqc.execution.speed import Profile
from ptqc.ir.plan import Plan
from ptqc.passes.allocate.constraints.clocks import LoweredPlan, any_plan, charges, network_of, times_of, turns
from ptqc.passes.allocate.cost_model import Edge, Network, OpLatencies, TimedOperator
from ptqc.passes.allocate.problem import packed, table_parameters

LAYERS = ("a", "b", "c", "y")


def charged(
    measured: Measured, plan: Plan, calls: Sequence[tuple[tuple[str, ...], str, str, int]]
) -> dict[Hashable, float]:
    """Charges of calls: what each reads, makes, and what the lowered graph calls that; nanoseconds."""
    context = measured.context
    graph = LoweredPlan(plan, *packed(context, plan, table_parameters(context, plan.formats)))
    program = TimedProgram(0.0, tuple(TimedCall(*call) for call in calls))
    operators = {operator.node for operator in network_of(context).operators}
    return charges(program, graph, operators, context.macs)


def test_a_fused_kernel_is_charged_to_its_layer_and_a_copy_to_what_reads_it(measured: Measured) -> None:
    everything = any_plan(measured.context, measured.options, measured.context.ranges)
    result = charged(
        measured,
        everything,
        [
            (("x",), "x/codes", "x/codes", 1),
            (("x/codes",), "x/codes@border", "x/codes@border", 2),
            (("x/codes@border",), "ar/codes", "ar/codes", 4),
            (("ar/codes",), "br/codes", "br/codes", 8),
            (("br/codes", "br/codes"), "cr/codes", "cr/codes", 16),  # with the sum and what follows it
            (("cr/codes",), "p/codes", "p/codes", 32),
            (("p/codes",), "f/codes", "f/codes", 64),
            (("f/codes",), "y", "y", 128),
            (("y",), "y@outside", "y", 256),
        ],
    )
    assert result == {("quantize", "x"): 1, "a": 6, "b": 8, "c": 16, "p": 32, "f": 64, "y": 384}


def test_conversions_are_told_apart_from_operators(measured: Measured) -> None:
    """One tensor on codes, between operators in float; its real values are written with a border around them."""
    context = measured.context
    plan = any_plan(context, measured.options, {"br": context.ranges["br"]})
    result = charged(
        measured,
        plan,
        [
            (("x",), "x@inside", "x@inside", 1),
            (("x@inside",), "ar", "ar", 2),
            (("ar",), "br", "br", 4),
            (("br",), "br/codes", "br/codes", 8),
            (("br/codes",), "br/real", "br/real", 16),
            (("br/real",), "br/real@border", "br/real@border", 32),
            (("br/real@border",), "c", "c", 64),
            (("c", "br/real"), "cr", "cr", 128),
        ],
    )
    expected: dict[Hashable, float] = {("quantize", "br"): 8, ("dequantize", "br"): 16}
    assert result == expected | {"a": 3, "b": 4, "c": 96, "cs": 128}


def test_sites_take_turns_so_that_all_are_converted(measured: Measured) -> None:
    sites, network = measured.context.sites, network_of(measured.context)
    groups = turns(sites, network)
    assert sorted(name for group in groups for name in group) == sorted(site.name for site in sites)
    assert 2 <= len(groups) <= 3
    of = {tensor: site.name for site in sites for tensor in site.tensors}
    several = {o.node for o in network.operators if len({of[tensor] for tensor in o.tensors}) > 1}
    assert {"a", "b", "c", "cs"} <= several
    for group in groups:
        assert several.isdisjoint(network.on_codes({tensor for tensor in of if of[tensor] in group}))


def test_times_are_taken_from_the_library_that_has_them() -> None:
    operators = (TimedOperator("a", "Conv", ("x", "y")), TimedOperator("m", "Mul", ()))
    network = Network(operators, (Edge("x", None, ("a",), False), Edge("y", "a", (), True)))
    columns: list[dict[Hashable, float]] = [
        {"a": 10.0, "m": 3.0},
        {"a": 4.0, "m": 5.0, ("quantize", "x"): 1.0, ("dequantize", "y"): 2.0},
        {"a": 9.0, ("quantize", "x"): 7.0, ("dequantize", "x"): 6.0},
    ]
    result = times_of(network, [Profile(0.0, column, {}, False) for column in columns], "a library", "cpu")
    assert result == OpLatencies(
        "a library", {"a": 10.0, "m": 3.0}, {"a": 4.0}, {"x": 1.0}, {"x": 6.0, "y": 2.0}, target="cpu"
    )
    assert OpLatencies.from_json(result.to_json()) == result == result.scaled(2.0).scaled(0.5)


def test_times_of_earlier_artifacts_are_of_onnx_runtime() -> None:
    document = OpLatencies("ONNX Runtime", {}, {}, {}, {}).to_json()
    del document["target"]
    assert OpLatencies.from_json(document).target == ""


def test_the_calls_of_a_library_add_up_to_a_run() -> None:
    """Observing adds the same to each call, and what is between calls is the same, too."""
    calls = tuple(Call("dense", "f", ("x",), name, name, 0) for name in ("a", "b"))
    result = TimedProgram.of(Listing(calls, {}, ("x",), ("b",)), 100.0, [20.0, 50.0])
    assert [(call.output, call.nanoseconds) for call in result.calls] == [("a", 35.0), ("b", 65.0)]
    assert TimedProgram.from_json(result.to_json()) == result
