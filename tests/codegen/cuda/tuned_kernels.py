"""Times two variants of a layer as on a GPU, with the emulator in its place; prints the table, as JSON.

`python tuned_kernels.py FOLDER [budget]`: with the second argument, prints microseconds of the layer instead. A process
of its own, which loads stand-ins before it imports TVM.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.cuda.trials import TimingEffort
from ptqc.runtime.cuda import CudaDevice


def main(folder: Path, what: str) -> None:
    from ptqc.codegen.cuda.emulator.opening import load_stand_ins

    load_stand_ins()

    from ptqc.codegen.cuda.backend import CUDA
    from ptqc.codegen.cuda.measuring import Measuring
    from ptqc.codegen.cuda.times import DeviceTimer, KernelTimer
    from ptqc.codegen.cuda.toolkit import Toolkit
    from ptqc.codegen.kernels.backend import LayerSpec
    from ptqc.codegen.kernels.epilogue import Requantization
    from ptqc.codegen.program.layout import Layout
    from ptqc.codegen.program.program import Alternatives, Program, ProgramStep, Window
    from ptqc.utils.store import Store

    device = CudaDevice("no GPU: the emulator of ptqc", (8, 0), "none", is_emulator=True)
    window, weights = Window(16, (4, 4)), np.random.default_rng(0).integers(-127, 128, (8, 16, 1, 1)).astype(np.int8)
    x, y = Layout((16, 4, 4), "uint8"), Layout((8, 4, 4), "uint8")
    numbers = Requantization(np.zeros(8, np.int32), np.full(8, 1e-3, np.float32), 7)
    layer: Any = CUDA.layer(LayerSpec(x, y, window, weights, numbers))
    ways = layer.alternatives
    kernel = replace(layer, alternatives=Alternatives(ways.cuts[:2], ways.write)).compile(CUDA.loops)
    program = Program((ProgramStep(kernel, ("x",), "y", "y"),), {"x": x, "y": y}, ("x",), ("y",))
    timer = DeviceTimer(device, Toolkit.require(), ["sm_80"], TimingEffort((1,), 5))
    store = Store(folder / "store")
    result = KernelTimer(timer, store)(program) if what else Measuring(timer, store)(program).to_json()
    print(json.dumps(result))


if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would load it, for seconds and without need
    main(Path(sys.argv[1]), "".join(sys.argv[2:]))
