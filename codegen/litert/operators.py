"""How each ONNX operator is written in TFLite: a function each, in `RULES`.

An operator on codes gives codes with the parameters that the QDQ model wants, or with those that TFLite fixes; where
these differ, the walk appends a QUANTIZE.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptqc.codegen.litert.graph import IMAGE, Rule, RuleCall
from ptqc.codegen.litert.writer import SHIFT, Operand, Params, plain

ROW, IMAGE_OF_WEIGHTS = (0, 2, 1), (0, 1, 2, 3)
SAME, VALID = 0, 1  # ways of padding, as in the schema
STRIDES, DILATIONS = ("strideH", "strideW"), ("dilationHFactor", "dilationWFactor")
# Where pixels lie, by ONNX's names: TFLite's two options.
BILINEAR = {
    **dict.fromkeys(("half_pixel", "pytorch_half_pixel"), (False, True)),
    "align_corners": (True, False),
    "asymmetric": (False, False),
}
LARGEST_WEIGHT = 127  # of codes of weights, says TFLite's specification
# The parameters that TFLite fixes for outputs of functions with fixed ranges.
OF_UNIT = Params(1 / 256, -128)
OF_TANH = Params(1 / 128, 0)


def _conv(call: RuleCall) -> Operand:
    x, weight, bias, params = _layer(call, channels=0)
    (count, depth, *kernel), group = weight.shape, call.attribute("group", 1)
    if len(kernel) > 2:
        call.refuse(f"along {len(kernel)} axes")
    weight = call.writer.reshaped(weight, (count, depth, *kernel, 1)[:4], IMAGE_OF_WEIGHTS)
    x, padding = _padded(call, _image(call, x), kernel, 0.0)
    options = {"padding": padding, **_two(call, "strides", STRIDES), **_two(call, "dilations", DILATIONS)}
    if depth == 1 < group == x.shape[1]:
        inputs = [x, call.writer.in_order(weight, (1, 2, 3, 0)), bias]
        options["depthMultiplier"] = count // group
        return _of_image(call, "DEPTHWISE_CONV_2D", inputs, params, "DepthwiseConv2DOptions", **options)
    inputs = [x, call.writer.in_order(weight, (0, 2, 3, 1)), bias]
    return _of_image(call, "CONV_2D", inputs, params, "Conv2DOptions", **options)


def _gemm(call: RuleCall) -> Operand:
    if call.attribute("transA", 0) or call.attribute("alpha", 1.0) != 1 or call.attribute("beta", 1.0) != 1:
        call.refuse("with transA, alpha or beta")
    return _fully_connected(call, transposed=bool(call.attribute("transB", 0)))


def _matmul(call: RuleCall) -> Operand:
    if call.value(1).tensor.data is not None and len(call.value(1).shape) == 2:
        return _fully_connected(call, transposed=False)
    operands, params = call.operands()
    if any(len(each.shape) < 2 for each in operands):
        call.refuse("of a vector")
    operands = [call.writer.in_order(each, plain(len(each.shape))) for each in operands]
    return call.writer.emit(
        "BATCH_MATMUL", operands, call.like(plain(len(call.shapes[0]))), params, "BatchMatMulOptions"
    )


def _fully_connected(call: RuleCall, transposed: bool) -> Operand:
    x, weight, bias, params = _layer(call, channels=0 if transposed else 1)
    x = call.writer.in_order(x, plain(len(x.shape)))
    weight = call.writer.in_order(weight, (0, 1) if transposed else (1, 0))
    like = call.like(plain(len(call.shapes[0])))
    return call.writer.emit(
        "FULLY_CONNECTED", [x, weight, bias], like, params, "FullyConnectedOptions", keepNumDims=len(x.shape) > 2
    )


def _layer(call: RuleCall, channels: int) -> tuple[Operand, Operand, Operand, Params | None]:
    """What a layer reads, all of it on integers or all real, and the parameters of its output.

    channels: the axis of the weight that its outputs lie along.
    """
    x, weight, params = call.value(0), call.value(1), call.params
    bias = call.inputs[2] if len(call.inputs) > 2 else None
    if weight.tensor.data is None or (bias is not None and bias.tensor.data is None):
        call.refuse("whose weight or bias is not constant")
    count, tensor = weight.shape[channels], weight.tensor
    of_codes = tensor.dtype == np.int8 and (len(tensor.scales) == 1 or tensor.axis == channels)
    of_sums = bias is None or (bias.tensor.dtype == np.int32 and bool(bias.tensor.scales))
    if params is None or x.params is None or not (of_codes and of_sums) or any(tensor.zeros):
        real = call.writer.real
        bias = call.writer.constant(np.zeros(count)) if bias is None else real(bias)
        return real(x), real(weight), _vector(call, bias, count), None
    if np.any(np.asarray(tensor.data, np.int16) < -LARGEST_WEIGHT):
        call.refuse(f"with codes of weights below {-LARGEST_WEIGHT}: compile without 8-bit weights")
    if bias is None:
        bias = call.writer.constant(np.zeros(count), dtype=np.int32)
        bias.tensor.scales = tuple(float(np.float32(x.params.scale) * np.float32(scale)) for scale in tensor.scales)
        bias.tensor.zeros = (0,) * len(tensor.scales)
    return x, weight, _vector(call, bias, count), params


def _vector(call: RuleCall, bias: Operand, count: int) -> Operand:
    if bias.tensor.data is None or bias.tensor.data.size != count:
        call.refuse("whose bias is not one number for each output")
    return call.writer.reshaped(bias, (count,), (0,)) if len(bias.shape) != 1 else bias


def _image(call: RuleCall, x: Operand) -> Operand:
    """A value with channels last; along one axis, an image that is one pixel wide."""
    if len(x.shape) == 3:
        x = call.writer.in_order(x, ROW)
        count, length, channels = x.tensor.shape
        return call.writer.reshaped(x, (count, length, 1, channels), IMAGE)
    if len(x.shape) != len(IMAGE):
        call.refuse(f"along {len(x.shape) - 2} axes")
    return call.writer.in_order(x, IMAGE)


def _of_image(
    call: RuleCall, operator: str, inputs: Sequence[Operand], params: Params | None, kind: str, **options: Any
) -> Operand:
    """What an operator gives that reads an image."""
    count, channels, *sizes = call.shapes[0]
    like = call.like(IMAGE, (count, channels, *_pair(sizes, 1)))
    image = call.writer.emit(operator, inputs, like, params, kind, **options)
    return image if len(sizes) > 1 else call.writer.reshaped(image, (count, sizes[0], channels), ROW)


def _pair(values: Sequence[int], fill: int) -> list[int]:
    """Numbers along height and width. fill: that of an image of one pixel's width."""
    return [*values, fill][:2]


def _two(call: RuleCall, name: str, options: Sequence[str]) -> dict[str, int]:
    """An attribute with a number for each axis, as options."""
    return dict(zip(options, _pair(call.attribute(name, [1, 1]), 1), strict=True))


def _padded(call: RuleCall, x: Operand, kernel: Sequence[int], fill: float, alone: bool = False) -> tuple[Operand, int]:
    """An image, padded with real values where TFLite's own two ways do not do it, and which of these comes then.

    alone: by an operator of its own in any case.
    """
    out, size, kernel = _pair(call.shapes[0][2:], 1), x.shape[2:], _pair(kernel, 1)
    strides, dilations = (_pair(call.attribute(name, [1, 1]), 1) for name in ("strides", "dilations"))
    ends = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(out, strides, kernel, dilations, strict=True)]
    totals = [max(end - have, 0) for end, have in zip(ends, size, strict=True)]
    automatic = call.attribute("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        before = [(total + (automatic == "SAME_LOWER")) // 2 for total in totals]
    else:
        pads = call.attribute("pads", [0] * 4)
        before = _pair(pads[: len(pads) // 2], 0)
    after = [max(end - start - have, 0) for end, start, have in zip(ends, before, size, strict=True)]
    if not any((*before, *after)):
        return x, VALID
    halves = all(start == total // 2 for start, total in zip(before, totals, strict=True))
    if not alone and halves and all(n == -(-have // s) for n, have, s in zip(out, size, strides, strict=True)):
        return x, SAME
    return _pad(call, x, [0, 0, *before], [0, 0, *after], fill), VALID


def _pad(call: RuleCall, x: Operand, before: Sequence[int], after: Sequence[int], fill: float) -> Operand:
    """Real values around a value. before, after: how many, along the axes of ONNX."""
    amounts = call.writer.constant([[before[axis], after[axis]] for axis in x.order], dtype=np.int32)
    shape = tuple(size + before[axis] + after[axis] for axis, size in enumerate(x.shape))
    like = call.like(x.order, shape)
    if fill == 0:
        return call.writer.move("PAD", [x, amounts], like, "PadOptions")
    filler = call.writer.constant(fill, x.params)
    return call.writer.move("PADV2", [x, amounts, filler], like, "PadV2Options")


def _shape(call: RuleCall) -> Operand:
    shape = call.value(0).shape[call.attribute("start", 0) : call.attribute("end")]
    return call.writer.constant(shape, dtype=np.int64)


def _pad_node(call: RuleCall) -> Operand:
    x, mode = call.value(0), call.attribute("mode", "constant")
    amounts, fill, axes = call.array(1), call.array(2), call.array(3)
    assert amounts is not None
    if (amounts < 0).any() or mode not in ("constant", "reflect"):
        call.refuse(f"of the mode {mode}" if (amounts >= 0).all() else "that cuts off")
    rank = len(x.shape)
    named = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(named):
        before[axis], after[axis] = int(amounts[place]), int(amounts[place + len(named)])
    if mode == "constant":
        return _pad(call, x, before, after, 0.0 if fill is None else float(fill))
    sizes = call.writer.constant([[before[axis], after[axis]] for axis in x.order], dtype=np.int32)
    return call.writer.move("MIRROR_PAD", [x, sizes], call.like(x.order), "MirrorPadOptions", mode=0)


def _max_pool(call: RuleCall) -> Operand:
    if len(call.node.output) > 1 or any(each != 1 for each in call.attribute("dilations", [1])):
        call.refuse("with dilations or indices")
    return _pool(
        call, "MAX_POOL_2D", *_padded(call, _image(call, call.value(0)), call.attribute("kernel_shape"), -math.inf)
    )


def _average_pool(call: RuleCall) -> Operand:
    x, counted = _image(call, call.first()), bool(call.attribute("count_include_pad", 0))
    # TFLite counts no zeros of its own padding, and all those of a PAD.
    padded, padding = _padded(call, x, call.attribute("kernel_shape"), 0.0, alone=counted)
    if padded is not x and (call.attribute("ceil_mode", 0) or not counted):
        call.refuse("with this padding")
    return _pool(call, "AVERAGE_POOL_2D", padded, padding)


def _pool(call: RuleCall, operator: str, x: Operand, padding: int) -> Operand:
    height, width = _pair(call.attribute("kernel_shape"), 1)
    options = {"padding": padding, "filterHeight": height, "filterWidth": width, **_two(call, "strides", STRIDES)}
    return _of_image(call, operator, [x], x.params, "Pool2DOptions", **options)


def _mean(call: RuleCall) -> Operand:
    x, rank = call.first(), len(call.value(0).shape)
    if call.node.op_type == "GlobalAveragePool":
        axes = list(range(2, rank))
    else:
        named = call.attribute("axes") if len(call.inputs) < 2 else call.array(1)
        if named is not None and not len(named) and call.attribute("noop_with_empty_axes", 0):
            call.refuse("along no axes")
        axes = [int(axis) % rank for axis in named] if named is not None and len(named) else list(range(rank))
    params = call.params if x.params is not None else None
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    places = call.writer.constant(sorted(x.order.index(axis) for axis in axes), dtype=np.int32)
    mean = call.writer.emit("MEAN", [x, places], call.like(x.order, shape), params, "ReducerOptions", keepDims=True)
    return mean if call.shapes[0] == shape else _as(call, mean)


def _elementwise(operator: str, kind: str, on_integers: bool = True) -> Rule:
    def rule(call: RuleCall) -> Operand:
        if len(call.inputs) != 2:
            call.refuse(f"of {len(call.inputs)} inputs")
        values, params = call.operands()
        if not on_integers:
            values, params = [call.writer.real(value) for value in values], None
        rank = len(call.shapes[0])
        order = next(
            (each.order for each in values if len(each.order) == rank and each.tensor.data is None), plain(rank)
        )
        return call.writer.emit(
            operator, [_spread(call, each, order) for each in values], call.like(order), params, kind
        )

    return rule


def _spread(call: RuleCall, value: Operand, order: tuple[int, ...]) -> Operand:
    """An operand of an operator whose output is in this order; missing axes in front are added."""
    missing = len(order) - len(value.shape)
    if missing:
        value = call.writer.in_order(value, plain(len(value.shape)))
        value = call.writer.reshaped(value, (*(1,) * missing, *value.shape), plain(len(order)))
    return call.writer.in_order(value, order)


def _concat(call: RuleCall) -> Operand:
    values = [call.value(index) for index in range(len(call.inputs))]
    order = next((each.order for each in values if each.tensor.data is None), values[0].order)
    params = call.params if any(each.params for each in values) else None
    if params is not None:
        values = [call.writer.rounded(each, params) for each in values]
    elif any(each.params for each in values):
        values = [call.writer.real(each) for each in values]
    values = [call.writer.in_order(each, order) for each in values]
    axis = order.index(call.attribute("axis") % len(order))
    return call.writer.move("CONCATENATION", values, call.like(order), "ConcatenationOptions", axis=axis)


def _reshape(call: RuleCall) -> Operand:
    return _as(call, call.value(0))


def _as(call: RuleCall, x: Operand) -> Operand:
    """A value in the shape of the output."""
    moved = [axis for axis in x.order if x.shape[axis] > 1]
    if moved != sorted(moved):  # else the numbers lie in memory as ONNX has them
        x = call.writer.in_order(x, plain(len(x.order)))
    return call.writer.reshaped(x, call.shapes[0], plain(len(call.shapes[0])))


def _transpose(call: RuleCall) -> Operand:
    x = call.value(0)
    perm = call.attribute("perm", list(reversed(range(len(x.order)))))
    return Operand(x.tensor, tuple(perm.index(axis) for axis in x.order))


def _slice(call: RuleCall) -> Operand:
    x = call.value(0)
    starts, ends, axes, steps = (call.array(index) for index in range(1, 5))
    assert starts is not None
    assert ends is not None
    steps = np.ones_like(starts) if steps is None else steps
    if (steps < 0).any():
        call.refuse("with negative steps")
    begin, end, step = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    for place, axis in enumerate(range(len(starts)) if axes is None else axes):
        cut = slice(int(starts[place]), int(ends[place]), int(steps[place]))
        begin[axis], end[axis], step[axis] = cut.indices(x.shape[axis])
    return _cut(call, x, begin, end, step, 0)


def _split(call: RuleCall) -> Sequence[Operand]:
    x, parts, start = call.value(0), [], 0
    axis = call.attribute("axis", 0) % len(x.shape)
    for index, shape in enumerate(call.shapes):
        begin, end = [0] * len(shape), list(shape)
        begin[axis], end[axis] = start, start + shape[axis]
        parts.append(_cut(call, x, begin, end, [1] * len(shape), index))
        start += shape[axis]
    return parts


def _cut(call: RuleCall, x: Operand, begin: list[int], end: list[int], step: list[int], index: int) -> Operand:
    inputs = [call.writer.constant([each[axis] for axis in x.order], dtype=np.int32) for each in (begin, end, step)]
    return call.writer.move("STRIDED_SLICE", [x, *inputs], call.like(x.order, index=index), "StridedSliceOptions")


def _resize(call: RuleCall) -> Operand:
    x, mode = _image(call, call.first()), call.attribute("mode", "nearest")
    places = call.attribute("coordinate_transformation_mode", "half_pixel")
    sizes, out = x.shape[2:], _pair(call.shapes[0][2:], 1)
    if call.shapes[0][:2] != x.shape[:2]:
        call.refuse("along other axes than height and width")
    inputs = [x, call.writer.constant(out, dtype=np.int32)]
    if mode == "nearest":
        nearest = call.attribute("nearest_mode", "round_prefer_floor")
        whole = not any(after % before for before, after in zip(sizes, out, strict=True))
        if not whole or (places, nearest[:5]) not in (("asymmetric", "floor"), ("half_pixel", "round")):
            call.refuse(f"of the mode {nearest} with {places}" if whole else "to no multiple of the size")
        return _of_image(call, "RESIZE_NEAREST_NEIGHBOR", inputs, x.params, "ResizeNearestNeighborOptions")
    if mode != "linear" or places not in BILINEAR or 1 in out or call.attribute("antialias", 0):
        call.refuse(f"of the mode {mode} with {places}")
    aligned, half = BILINEAR[places]
    options = {"alignCorners": aligned, "halfPixelCenters": half}
    return _of_image(call, "RESIZE_BILINEAR", inputs, x.params, "ResizeBilinearOptions", **options)


def _depth_to_space(call: RuleCall) -> Operand:
    x, size = call.writer.in_order(call.value(0), IMAGE), call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "CRD":  # TFLite has the other order of channels alone
        order = np.arange(x.shape[1]).reshape(-1, size * size).T.ravel()
        channels = call.writer.constant(order, dtype=np.int32)
        x = call.writer.move("GATHER", [x, channels], call.like(IMAGE, x.shape), "GatherOptions", axis=3)
    return call.writer.move("DEPTH_TO_SPACE", [x], call.like(IMAGE), "DepthToSpaceOptions", blockSize=size)


def _clip(call: RuleCall) -> Operand:
    bounds = (call.array(1), call.array(2)) if len(call.inputs) > 1 else (call.attribute("min"), call.attribute("max"))
    low, high = (None if each is None else float(each) for each in bounds)
    return _clipped(call, -math.inf if low is None else low, math.inf if high is None else high)


def _relu(call: RuleCall) -> Operand:
    return _clipped(call, 0.0, math.inf)


def _clipped(call: RuleCall, low: float, high: float) -> Operand:
    """A value between bounds; those that its codes keep anyway are left out."""
    x = call.first()
    known = {(0.0, math.inf): "RELU", (0.0, 6.0): "RELU6"}
    if x.params is not None:
        scale, zero = x.params
        reached = (scale * (-SHIFT - zero), scale * (SHIFT - 1 - zero))
        low = -math.inf if low < reached[0] + scale / 2 else low
        high = math.inf if high > reached[1] - scale / 2 else high
    like = call.like(x.order)
    if operator := known.get((low, high)):
        return call.writer.move(operator, [x], like, "")
    for operator, bound in (("MAXIMUM", low), ("MINIMUM", high)):
        if math.isfinite(bound):
            x = call.writer.move(operator, [x, call.writer.constant(bound, x.params)], like, "MaximumMinimumOptions")
    return x


def _fixed(operator: str, params: Params) -> Rule:
    """A function whose codes TFLite gives parameters of its own."""

    def rule(call: RuleCall) -> Operand:
        (x,), wanted = call.operands()
        return call.writer.emit(operator, [x], call.like(x.order), None if wanted is None else params)

    return rule


def _softmax(call: RuleCall) -> Operand:
    (x,), wanted = call.operands()
    rank = len(x.shape)
    axis = call.attribute("axis", -1) % rank
    if x.order[-1] != axis:
        x = call.writer.in_order(x, (*(each for each in range(rank) if each != axis), axis))
    params = None if wanted is None else OF_UNIT
    return call.writer.emit("SOFTMAX", [x], call.like(x.order), params, "SoftmaxOptions", beta=1.0)


def _pointwise(operator: str, kind: str = "", on_integers: bool = False) -> Rule:
    def rule(call: RuleCall) -> Operand:
        (x, *_), params = call.operands()
        if not on_integers:
            x, params = call.writer.real(x), None
        return call.writer.emit(operator, [x], call.like(x.order), params, kind)

    return rule


def _leaky_relu(call: RuleCall) -> Operand:
    (x,), params = call.operands()
    alpha = call.attribute("alpha", 0.01)
    return call.writer.emit("LEAKY_RELU", [x], call.like(x.order), params, "LeakyReluOptions", alpha=alpha)


def _hard_sigmoid(call: RuleCall) -> Operand:
    x, writer = call.writer.real(call.value(0)), call.writer
    slope, offset = (writer.constant(call.attribute(*each)) for each in (("alpha", 0.2), ("beta", 0.5)))
    x = writer.emit("MUL", [x, slope], call.like(x.order), None, "MulOptions")
    x = writer.emit("ADD", [x, offset], call.like(x.order), None, "AddOptions")
    return writer.emit("RELU_0_TO_1", [x], call.like(x.order))


def _identity(call: RuleCall) -> Operand:
    if any(call.inputs[1:]) and call.node.op_type == "Max":
        call.refuse(f"of {len(call.inputs)} inputs")
    return call.value(0)


RULES: Mapping[str, Rule] = {
    "Add": _elementwise("ADD", "AddOptions"),
    "AveragePool": _average_pool,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "DepthToSpace": _depth_to_space,
    "Div": _elementwise("DIV", "DivOptions", on_integers=False),
    **dict.fromkeys(("Dropout", "Identity", "Max"), _identity),
    "Exp": _pointwise("EXP", "ExpOptions"),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    "Gemm": _gemm,
    "GlobalAveragePool": _mean,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _pointwise("HARD_SWISH", "HardSwishOptions", on_integers=True),
    "LeakyRelu": _leaky_relu,
    "Log": _pointwise("LOG"),
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mul": _elementwise("MUL", "MulOptions"),
    "Neg": _pointwise("NEG", "NegOptions"),
    "Pad": _pad_node,
    "ReduceMean": _mean,
    "Relu": _relu,
    "Resize": _resize,
    "Shape": _shape,
    "Sigmoid": _fixed("LOGISTIC", OF_UNIT),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Sqrt": _pointwise("SQRT"),
    "Sub": _elementwise("SUB", "SubOptions"),
    "Tanh": _fixed("TANH", OF_TANH),
    "Transpose": _transpose,
}
