"""Which channels are tied, and which can change places, on networks where it can be said by hand."""

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.ir.channel_rules import ORDERS
from ptqc.ir.channels import ChannelSets, ChannelTies, find_ties, moved, turns


def ties(body: str, constants: dict[str, np.ndarray], **shapes: tuple[int, ...]) -> tuple[ir.Model, ChannelTies]:
    """Ties of a graph from x to y of a body in ONNX's text form. shapes: of all activations."""
    sizes = {name: ", ".join(map(str, shapes[name])) for name in ("x", "y")}
    model = parse(f"g (float[{sizes['x']}] x) => (float[{sizes['y']}] y) {{ {body} }}", **constants)
    return model, find_ties(model, shapes, ORDERS)


def free(result: ChannelTies, name: str) -> list[list[int]]:
    """The places of a tensor that can change places with each other, flat, in lists of two and more."""
    sets = result.tensors[name].ravel() if name in result.tensors else np.empty(0, np.int64)
    classes = result.classes[sets]
    lists = [np.flatnonzero(classes == number).tolist() for number in np.unique(classes[classes >= 0])]
    return sorted(places for places in lists if len(set(sets[places])) > 1)


SIZES = {"x": (1, 2, 4, 4), "h": (1, 4, 4, 4), "y": (1, 2, 4, 4)}
AROUND = {"w": noise(4, 2, 1, 1), "v": noise(2, 4, 1, 1)}


def test_between_two_layers_all_can_change_places() -> None:
    _, result = ties("h = Conv(x, w)  y = Conv(h, v)", AROUND, **SIZES)
    assert free(result, "h") == [[0, 1, 2, 3]]


def test_inputs_and_outputs_stay() -> None:
    _, result = ties("h = Conv(x, w)  y = Conv(h, v)", AROUND, **SIZES)
    assert free(result, "x") == free(result, "y") == []


def test_constants_per_channel_go_along() -> None:
    body, one = "h = Conv(x, w)  k = Mul(h, c)  y = Conv(k, v)", noise(4, 1, 1)
    _, result = ties(body, {**AROUND, "c": one}, **SIZES, k=SIZES["h"])
    (factor,) = result.constants["c"].factors
    assert np.array_equal(factor.numbers, result.tensors["h"].ravel())
    assert free(result, "h") == [[0, 1, 2, 3]]


def test_groups_keep_their_channels() -> None:
    _, result = ties("h = Conv(x, w)  y = Conv<group = 2>(h, v)", {**AROUND, "v": noise(2, 2, 1, 1)}, **SIZES)
    assert free(result, "h") == [[0, 1], [2, 3]]


def test_parts_of_a_concatenation_keep_their_channels() -> None:
    body = "h = Conv(x, w)  k = Relu(h)  j = Concat<axis = 1>(h, k)  y = Conv(j, u)"
    sizes = {**SIZES, "k": SIZES["h"], "j": (1, 8, 4, 4)}
    _, result = ties(body, {**AROUND, "u": noise(2, 8, 1, 1)}, **sizes)
    assert free(result, "j") == [[0, 1, 2, 3, 4, 5, 6, 7]]  # each of h with its copy
    assert np.array_equal(result.tensors["j"].ravel()[:4], result.tensors["j"].ravel()[4:])


def test_what_is_appended_does_not_mix() -> None:
    body = "h = Conv(x, w)  k = Conv(x, u)  j = Concat<axis = 1>(h, k)  y = Conv(j, t)"
    constants = {**AROUND, "u": noise(4, 2, 1, 1), "t": noise(2, 8, 1, 1)}
    _, result = ties(body, constants, **SIZES, k=SIZES["h"], j=(1, 8, 4, 4))
    assert free(result, "j") == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_slice_cuts_the_order_in_two() -> None:
    body = "h = Conv(x, w)  k = Slice(h, one, three, one)  y = Conv(k, v)  z = Conv(h, u)"
    constants = {**AROUND, "v": noise(2, 2, 1, 1), "u": noise(2, 4, 1, 1)}
    whole = {"one": np.array([1]), "three": np.array([3])}
    _, result = ties(body, {**constants, **whole}, **SIZES, k=(1, 2, 4, 4), z=(1, 2, 4, 4))
    assert free(result, "h") == [[0, 3], [1, 2]]


def test_a_weight_of_two_layers_has_one_order() -> None:
    body = "h = Conv(x, w)  k = Conv(h, s)  j = Conv(k, s)  y = Conv(j, v)"
    sizes = {**SIZES, "k": SIZES["h"], "j": SIZES["h"]}
    _, result = ties(body, {**AROUND, "s": noise(4, 4, 1, 1)}, **sizes)
    assert np.array_equal(result.tensors["h"], result.tensors["k"])
    assert free(result, "h") == [[0, 1, 2, 3]]


def test_flattened_planes_move_as_blocks() -> None:
    body = "h = Conv(x, w)  f = Flatten(h)  y = Gemm(f, g)"
    _, result = ties(body, {**AROUND, "g": noise(64, 2)}, x=SIZES["x"], h=SIZES["h"], f=(1, 64), y=(1, 2))
    assert np.array_equal(result.tensors["f"].ravel(), np.repeat(result.tensors["h"].ravel(), 16))
    assert free(result, "f") == [list(range(64))]


def test_depthwise_convolutions_lead_on() -> None:
    body = "h = Conv(x, w)  d = Conv<group = 4>(h, u)  y = Conv(d, t)"
    constants = {**AROUND, "u": noise(8, 1, 1, 1), "t": noise(2, 8, 1, 1)}
    _, result = ties(body, constants, **SIZES, d=(1, 8, 4, 4))
    assert np.array_equal(result.tensors["d"].ravel(), np.repeat(result.tensors["h"].ravel(), 2))


@pytest.mark.parametrize("queries", [2, 4])
def test_heads_keep_their_channels_and_share_them_with_their_keys(queries: int) -> None:
    """Queries (1, heads, 2, 3), of which one or two share keys (1, 2, 2, 3)."""
    times = queries // 2
    body = """
        q = MatMul(x, wq)  qs = Reshape(q, sq)  qt = Transpose<perm = [0, 2, 1, 3]>(qs)
        k = MatMul(x, wk)  ks = Reshape(k, sk)  kt = Transpose<perm = [0, 2, 1, 3]>(ks)
        ku = Unsqueeze(kt, two)  ke = Expand(ku, se)  kr = Reshape(ke, sr)
        kk = Transpose<perm = [0, 1, 3, 2]>(kr)  y = MatMul(qt, kk)
    """
    sizes = {"sq": [1, 2, queries, 3], "sk": [1, 2, 2, 3], "two": [2], "se": [1, 1, times, 1, 1]}
    constants = {name: np.array(size) for name, size in {**sizes, "sr": [1, queries, 2, 3]}.items()}
    weights = {"wq": noise(5, 3 * queries), "wk": noise(5, 6)}
    shapes = {
        **{"x": (1, 2, 5), "q": (1, 2, 3 * queries), "qs": (1, 2, queries, 3), "qt": (1, queries, 2, 3)},
        **{"k": (1, 2, 6), "ks": (1, 2, 2, 3), "kt": (1, 2, 2, 3), "ku": (1, 2, 1, 2, 3), "ke": (1, 2, times, 2, 3)},
        **{"kr": (1, queries, 2, 3), "kk": (1, queries, 3, 2), "y": (1, queries, 2, 2)},
    }
    _, result = ties(body, {**constants, **weights}, **shapes)
    assert free(result, "k") == [[0, 1, 2], [3, 4, 5]]
    keys = result.tensors["k"].ravel().reshape(2, 1, 3)
    assert np.array_equal(result.tensors["q"].ravel(), np.broadcast_to(keys, (2, times, 3)).ravel())


def test_sets_with_unlike_traces_do_not_change_places() -> None:
    sets = ChannelSets()
    numbers = sets.fresh(4)
    sets.trace(numbers, np.array([0, 0, 1, 1]))
    sets.fix(numbers[:1])
    _, classes = sets.classes()
    assert classes[0] == -1
    assert classes[2] == classes[3] != classes[1]


def test_the_kth_place_of_a_set_goes_to_the_kth_of_the_other() -> None:
    sets = np.array([0, 1, 0, 1, 2])
    assert turns(sets).tolist() == [0, 0, 1, 1, 0]
    assert moved(sets, np.array([1, 0, 2])).tolist() == [1, 0, 3, 2, 4]


def test_a_table_that_is_turned_as_well_stays() -> None:
    body = "e = Gather(t, i)  n = Relu(e)  r = Transpose<perm = [1, 0]>(t)  y = MatMul(x, r)  z = MatMul(n, w)"
    constants = {"t": noise(4, 3), "i": np.array([1, 2]), "w": noise(3, 2)}
    shapes = {"x": (1, 2, 3), "e": (2, 3), "n": (2, 3), "r": (3, 4), "y": (1, 2, 4), "z": (2, 2)}
    _, result = ties(body, constants, **shapes)
    assert free(result, "e") == []


def test_a_part_without_elements_ties_nothing() -> None:
    body = "h = Conv(x, w)  j = Concat<axis = 1>(h, none)  y = Conv(j, v)"
    _, result = ties(body, {**AROUND, "none": np.zeros((1, 0, 4, 4), np.float32)}, **SIZES, j=SIZES["h"])
    assert free(result, "h") == [[0, 1, 2, 3]]
