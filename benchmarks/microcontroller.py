"""The 8-bit layers of networks on emulated microcontrollers, by the kernels of CMSIS-NN: instructions and bytes.

python benchmarks/microcontroller.py --cmsis-nn CHECKOUT [--tasks a,b] [--boards cortex-m4,cortex-m55]
                                     [--optimization=-O2,-O3] [--out results.json] [--record]

CHECKOUT: a checkout of github.com/ARM-software/CMSIS-NN. Each layer runs by the function that TFLite Micro calls for
it, without the interpreter of TFLite Micro, on weights and activations of random numbers; of a model only the geometry
is read. All boards have to compute the same outputs. Instructions are no cycles: see `ptqc.codegen.c.emulation`.
--record puts the rows into figures/cmsis_nn.json.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cmsis_nn import FUNCTIONS, Layer, Measured, layers_of, measure
from harness import (
    FIGURES,
    RESULTS,
    Column,
    command_line,
    in_child,
    machine,
    number,
    print_results,
    record,
    write_results,
)
from tasks import chosen

from ptqc.codegen.c.emulation import BOARDS, versions

TASKS = "mlperftiny_kws_dscnn,mlperftiny_vww_mbv1_025_96,mlperftiny_ad_autoencoder,mlperftiny_ic_resnet8"
WHOLE = "all"
COLUMNS = (
    Column("task", "task"),
    Column("layer", "layer"),
    Column("board", "board"),
    Column("built with", "optimization"),
    Column("products", "products", number(0)),
    Column("instructions", "instructions", number(0)),
    Column("per product", "per_product", number(2)),
    Column("weights, bytes", "weight_bytes", number(0)),
    Column("activations, bytes", "activation_bytes", number(0)),
    Column("scratch, bytes", "scratch_bytes", number(0)),
    Column("stack, bytes", "stack_bytes", number(0)),
    Column("code, bytes", "code_bytes", number(0)),
    Column("note", "note"),
)


def rows_of(path: Path, task: str, boards: Sequence[str], optimization: str, checkout: Path) -> list[dict[str, Any]]:
    """One row for each layer and board, and one for the network; runs in a child."""
    layers = layers_of(path)
    measured = {name: measure(layers, BOARDS[name], checkout, [optimization]) for name in boards}
    if len({tuple(each.outputs) for each in measured.values()}) > 1:
        raise AssertionError(f"the kernels compute something else on {' and '.join(boards)}")
    versioned = {**versions(), "CMSIS-NN": _version(checkout)}
    same = {"task": task, "budget": "8 bits", "optimization": optimization, "versions": versioned}
    return [
        {**same, "board": name, **row}
        for name, each in measured.items()
        for row in (*_layers(layers, each), _whole(layers, each))
    ]


def _layers(layers: Sequence[Layer], measured: Measured) -> list[dict[str, Any]]:
    return [
        {
            "layer": f"{index} {layer}",
            "kernel": FUNCTIONS[layer.kind],
            "products": layer.products,
            "instructions": instructions,
            **_per_product(instructions, layer.products),
            "weight_bytes": layer.weight_bytes,
            "activation_bytes": layer.live,
            "scratch_bytes": scratch,
        }
        for index, (layer, instructions, scratch) in enumerate(
            zip(layers, measured.instructions, measured.scratch, strict=True)
        )
    ]


def _whole(layers: Sequence[Layer], measured: Measured) -> dict[str, Any]:
    """Sums, and the most that is in memory at once: sums of weights stay, other scratch memory goes with its layer."""
    instructions, products = sum(measured.instructions), sum(layer.products for layer in layers)
    sized = list(zip(layers, measured.scratch, strict=True))
    passing = [0 if layer.kind == "dense" else scratch for layer, scratch in sized]
    lasting = sum(scratch for layer, scratch in sized if layer.kind == "dense")
    channels = sum(layer.result[2] for layer in layers if layer.kind in ("conv", "depthwise"))
    run = measured.run
    return {
        "layer": WHOLE,
        "products": products,
        "instructions": instructions,
        **_per_product(instructions, products),
        "weight_bytes": sum(layer.weight_bytes for layer in layers),
        "scale_bytes": 8 * channels,
        "activation_bytes": max(layer.live for layer in layers),
        "scratch_bytes": max(passing) + lasting,
        "peak_bytes": max(layer.live + scratch for layer, scratch in zip(layers, passing, strict=True)) + lasting,
        "stack_bytes": run.stack_bytes,
        "code_bytes": run.archives.flash + run.libraries.flash,
        "calling_code_bytes": run.network.text,
    }


def _per_product(instructions: int, products: int) -> dict[str, float]:
    return {"per_product": instructions / products} if products else {}


def _version(checkout: Path) -> str:
    """The commit of a checkout, or what its folder is called where it has no history."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    inside = (checkout / ".git").exists()
    return (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() if inside else checkout.name
    )


def main() -> None:
    parser = command_line(__doc__)
    parser.set_defaults(out=RESULTS / "microcontroller.json")
    parser.add_argument("--cmsis-nn", type=Path, required=True, help="a checkout of CMSIS-NN")
    parser.add_argument("--tasks", default=TASKS, help="comma-separated")
    parser.add_argument("--boards", default="cortex-m4,cortex-m55", help=f"comma-separated; known: {', '.join(BOARDS)}")
    parser.add_argument("--optimization", default="-O2,-O3", help="options of the compiler, comma-separated")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    facts, rows = machine(), list[dict[str, Any]]()
    for task in chosen(arguments.tasks):
        for optimization in arguments.optimization.split(","):
            settings = (task.path, task.name, arguments.boards.split(","), optimization, arguments.cmsis_nn)
            outcome = in_child(rows_of, *settings)
            rows += outcome.value or [{"task": task.name, "optimization": optimization, "note": outcome.error}]
            write_results(arguments.out, rows, facts)
    if arguments.record:
        record(
            FIGURES / "cmsis_nn.json",
            [row for row in rows if "layer" in row],
            facts,
            "layer",
            "board",
            "optimization",
        )
    print_results([row for row in rows if row.get("layer", WHOLE) == WHOLE], COLUMNS, facts)


if __name__ == "__main__":
    main()
