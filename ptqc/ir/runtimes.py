"""What runtimes and processors demand of a plan: known before anything is measured, so that plans are solved for them.

"arm" is ONNX Runtime on Arm, whose sums of products of 8-bit weights are exact, as they are in "c", the C source for
microcontrollers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RuntimeRules:
    """What a runtime demands.

    symmetric: activations are int8 with zero point 0, which is uint8 with zero point 128. closed: layers give codes,
    since the runtime computes a layer that gives real values outside of its integer kernels. wide: activations that
    stay real in the plan are codes of 16 bits, which take twice the time. fused: what layers and sums read is rounded,
    and nothing else, as the runtime fuses what lies between. saturates: products of 8-bit weights may be added in 16
    bits. defaults: what options are where the user does not say.
    """

    symmetric: bool = False
    closed: bool = False
    wide: bool = False
    fused: bool = False
    saturates: bool = False
    defaults: Mapping[str, str | bool] = field(default_factory=dict)


INTEGERS: Mapping[str, str] = {"activations": "integer"}
RULES: Mapping[str, RuntimeRules] = {
    "onnxruntime": RuntimeRules(saturates=True),
    "arm": RuntimeRules(defaults={"allow_8bit": True}),
    "openvino": RuntimeRules(defaults=INTEGERS),
    "qnn": RuntimeRules(closed=True, wide=True),
    "litert": RuntimeRules(closed=True, defaults=INTEGERS),
    "c": RuntimeRules(defaults={**INTEGERS, "allow_8bit": True}),
    "tensorrt": RuntimeRules(symmetric=True, fused=True, defaults=INTEGERS),
    "xdna": RuntimeRules(symmetric=True, closed=True, defaults={**INTEGERS, "scales": "pow2"}),
}
