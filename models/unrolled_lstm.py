"""Train an LSTM a little and write it unrolled: every step has products of its own, which share the weights.

    python models/unrolled_lstm.py FOLDER

That is what tf2onnx makes of Keras' `LSTM(unroll=True, implementation=1)`: each of four gates multiplies the input and
the state, and a dense layer reads the state, so 21 steps are 189 products with 9 weights. The task is to remember: each
of three channels gives the sign of the last pulse that it saw. FOLDER gets `model.onnx`, `calibration.npz` and
`evaluation.npz`.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

CHANNELS, HIDDEN, STEPS = 3, 192, 21
GATES = ("input", "forget", "cell", "output")
BATCH, BATCHES, RATE = 64, 400, 5e-3
CALIBRATION, EVALUATION = 128, 128


def sequences(count: int, rng: np.random.Generator, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pulses (n, steps, 3), and the sign of the last pulse of each channel."""
    pulses = rng.choice([-1.0, 0.0, 1.0], (count, steps, CHANNELS), p=[0.15, 0.7, 0.15])
    state, states = np.zeros((count, CHANNELS)), []
    for step in range(steps):
        state = np.where(pulses[:, step] != 0, pulses[:, step], state)
        states.append(state)
    noisy = pulses + 0.1 * rng.standard_normal(pulses.shape)
    return noisy.astype(np.float32), np.stack(states, 1).astype(np.float32)


class Network(nn.Module):
    """Input (n, t, 3), output (n, t, 3)."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.lstm = nn.LSTM(CHANNELS, hidden, batch_first=True)
        self.dense = nn.Linear(hidden, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, t, 3) -> (n, t, 3)."""
        states, _ = self.lstm(x)
        found: torch.Tensor = self.dense(states)
        return found


def train(hidden: int = HIDDEN, batches: int = BATCHES) -> Network:
    """Train on sequences that are generated anew for every batch."""
    torch.manual_seed(0)
    rng, network = np.random.default_rng(0), Network(hidden)
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    for _ in range(batches):
        x, y = (torch.from_numpy(array) for array in sequences(BATCH, rng))
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()
    return network


def unrolled(network: Network, steps: int = STEPS) -> onnx.ModelProto:
    """The network with a product for each gate and step."""
    hidden = network.lstm.hidden_size
    weights = {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}
    biases = weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
    constants = {"zeros": np.zeros((1, hidden), np.float32), "one": np.array([1], np.int64)}
    constants |= {"dense/kernel": weights["dense.weight"].T, "dense/bias": weights["dense.bias"]}
    for place, gate in enumerate(GATES):
        rows = slice(place * hidden, (place + 1) * hidden)
        constants[f"{gate}/kernel"] = weights["lstm.weight_ih_l0"][rows].T
        constants[f"{gate}/recurrent"] = weights["lstm.weight_hh_l0"][rows].T
        constants[f"{gate}/bias"] = biases[rows]
    nodes = [helper.make_node("Split", ["x", "lengths"], [f"x{t}" for t in range(steps)], axis=1)]
    constants["lengths"] = np.ones(steps, np.int64)
    nodes += [helper.make_node("Squeeze", [f"x{t}", "one"], [f"in{t}"]) for t in range(steps)]
    nodes += [helper.make_node("ReduceSum", ["in0", "one"], ["sum"], keepdims=1)]
    nodes += [helper.make_node("Mul", ["sum", "zeros"], ["h"]), helper.make_node("Identity", ["h"], ["c"])]
    h, c = "h", "c"
    for t in range(steps):
        for gate in GATES:
            name = f"{gate}{t}"
            nodes += [
                helper.make_node("Gemm", [f"in{t}", f"{gate}/kernel", f"{gate}/bias"], [f"{name}/x"]),
                helper.make_node("MatMul", [h, f"{gate}/recurrent"], [f"{name}/h"]),
                helper.make_node("Add", [f"{name}/x", f"{name}/h"], [f"{name}/sum"]),
                helper.make_node("Tanh" if gate == "cell" else "Sigmoid", [f"{name}/sum"], [name]),
            ]
        nodes += [
            helper.make_node("Mul", [f"forget{t}", c], [f"old{t}"]),
            helper.make_node("Mul", [f"input{t}", f"cell{t}"], [f"new{t}"]),
            helper.make_node("Add", [f"old{t}", f"new{t}"], [f"c{t}"]),
            helper.make_node("Tanh", [f"c{t}"], [f"c{t}/tanh"]),
            helper.make_node("Mul", [f"output{t}", f"c{t}/tanh"], [f"h{t}"]),
            helper.make_node("Gemm", [f"h{t}", "dense/kernel", "dense/bias"], [f"out{t}"]),
            helper.make_node("Unsqueeze", [f"out{t}", "one"], [f"row{t}"]),
        ]
        h, c = f"h{t}", f"c{t}"
    nodes.append(helper.make_node("Concat", [f"row{t}" for t in range(steps)], ["y"], axis=1))
    graph = helper.make_graph(
        nodes,
        "unrolled_lstm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", steps, CHANNELS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", steps, CHANNELS])],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Write the model and its samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    onnx.save(unrolled(train()), folder / "model.onnx")
    rng = np.random.default_rng(1)
    for name, count in (("calibration", CALIBRATION), ("evaluation", EVALUATION)):
        np.savez(folder / f"{name}.npz", x=sequences(count, rng)[0])


if __name__ == "__main__":
    main()
