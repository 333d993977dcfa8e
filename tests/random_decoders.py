"""Decoders of one layer with a cache, drawn at random: sizes, ways to repeat heads and to scale, forms of caches."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from graphs import noise, parse

from ptqc.execution.onnxruntime import Feeds
from ptqc.kv_cache.form import CacheForm, packed_feeds
from ptqc.kv_cache.known import FLOAT, NAMES
from ptqc.passes.kv_cache.wrap import form_named, pack_caches

CACHES = ("past_key_0", "past_value_0")
# Every head of keys or values for the queries that share it.
REPEATED = {
    "Expand": "{x}1 = Unsqueeze({x}, two) {x}2 = Expand({x}1, times) {x}3 = Reshape({x}2, heads)",
    "Tile": "{x}1 = Unsqueeze({x}, two) {x}2 = Tile({x}1, times) {x}3 = Reshape({x}2, heads)",
    "apart": "{x}3 = Unsqueeze({x}, two)",
}
SCALED = {"Mul": "scaled = Mul(products, factor)", "Div": "scaled = Div(products, factor)", "none": ""}


@dataclass(frozen=True)
class DrawnDecoder:
    """model: with its caches packed, if any has a form. before: as it was."""

    model: ir.Model
    before: ir.Model
    forms: dict[str, CacheForm]
    shared: int
    depth: int
    width: int

    def step(self, places: int, seed: int) -> Feeds:
        """One word behind so many, as the model takes them before its caches are packed."""
        random = np.random.default_rng(seed)
        caches = {name: noise(1, self.shared, places, self.depth, seed=seed + n) for n, name in enumerate(CACHES)}
        sizes = np.exp(random.standard_normal((self.shared, 1, self.depth)))
        return {
            "x": noise(1, 1, self.width, seed=seed + 5),
            **{name: (array * sizes).astype(np.float32) for name, array in caches.items()},
        }

    def packed(self, places: int, seed: int) -> Feeds:
        """The same as the model takes it."""
        return packed_feeds(self.step(places, seed), self.forms)


def drawn(seed: int) -> DrawnDecoder:
    """Always the same decoder for a seed."""
    random = np.random.default_rng(seed)
    shared, times, depth = (int(random.choice(sizes)) for sizes in ((1, 2, 3), (1, 2, 4), (8, 16, 24)))
    width, way, scaled = 32, str(random.choice(list(REPEATED))), str(random.choice(list(SCALED)))
    heads = f"{shared * times}"
    split = f"[0, 0, {shared}, {times}, {depth}]" if way == "apart" else f"[0, 0, {heads}, {depth}]"
    # With heads that are not repeated, queries have an axis for those that share one.
    turn = "Transpose <perm = [0, 2, 3, 1, 4]>" if way == "apart" else "Transpose <perm = [0, 2, 1, 3]>"
    back = "Transpose <perm = [0, 3, 1, 2, 4]>" if way == "apart" else turn
    swap = "Transpose <perm = [0, 1, 2, 4, 3]>" if way == "apart" else "Transpose <perm = [0, 1, 3, 2]>"
    cache, grown = (f"float[N, {shared}, {places}, {depth}]" for places in "PA")
    body = (
        f"g (float[N, 1, {width}] x, {cache} past_key_0, {cache} past_value_0)"
        f" => (float[N, 1, {width}] y, {grown} present_key_0, {grown} present_value_0) {{"
        f" q_split = Constant <value_ints = {split}> () k_split = Constant <value_ints = [0, 0, {shared}, {depth}]> ()"
        f" q0 = MatMul(x, wq) q1 = Reshape(q0, q_split) q = {turn} (q1)"
        + "".join(
            f" {x}0 = MatMul(x, w{x}) {x}1 = Reshape({x}0, k_split) {x} = Transpose <perm = [0, 2, 1, 3]> ({x}1)"
            for x in "kv"
        )
        + " present_key_0 = Concat <axis = 2> (past_key_0, k) present_value_0 = Concat <axis = 2> (past_value_0, v) "
        + " ".join(REPEATED[way].format(x=x) for x in ("present_key_0", "present_value_0"))
        + f" turned = {swap} (present_key_03) products = MatMul(q, turned) {SCALED[scaled]}"
        + f" shares = Softmax({'products' if scaled == 'none' else 'scaled'})"
        + f" mixed = MatMul(shares, present_value_03) rows = {back} (mixed) flat = Reshape(rows, whole)"
        + " y = MatMul(flat, wo) }"
    )
    constants = {
        "wq": noise(width, shared * times * depth, seed=seed, scale=0.3),
        "wo": noise(shared * times * depth, width, seed=seed + 1, scale=0.3),
        **{f"w{x}": noise(width, shared * depth, seed=seed + n, scale=0.3) for n, x in enumerate("kv", 2)},
        "two": np.array([2]),
        "times": np.array([1, 1, times, 1, 1]),
        "heads": np.array([0, shared * times, -1, depth]),
        "whole": np.array([0, 0, shared * times * depth]),
        "factor": np.array(depth ** (0.5 if scaled == "Div" else -0.5), np.float32),
    }
    before = parse(body, **{name: array for name, array in constants.items() if f"{name})" in body})
    plain = DrawnDecoder(before, before, {}, shared, depth, width)
    kinds = {name: str(random.choice((FLOAT, *NAMES))) for name in CACHES}
    seen = [plain.step(20, seed + 9)]
    forms = {name: form_named(kind, [f[name] for f in seen]) for name, kind in kinds.items() if kind != FLOAT}
    model = before.clone()
    pack_caches(model, forms)
    return DrawnDecoder(model, before, forms, shared, depth, width)
