"""Small quantized networks for the cpu target."""

from graphs import parse
from lowering import CONSTANTS, RESIDUAL, Quantized, quantized, samples

from ptqc.codegen.onnxruntime.export import Exported, export

FEEDS = samples(2, 3, 8, 8)


def residual() -> tuple[Quantized, Exported]:
    """Convolutions, a depthwise one among them, an addition, pools and a product."""
    network = quantized(parse(RESIDUAL, **CONSTANTS), FEEDS)
    return network, export(network.lowered, network.model)
