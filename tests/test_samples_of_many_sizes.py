"""Whole compiles on samples that differ in length, height and width, as they are: nobody pads them."""

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, quick, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.artifact.verify import verify
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.utils.store import write_npz

ATTENTION = """g (int64[N,L] ids) => (float[N,L,20] y) {
    e = Gather(table, ids)
    q = MatMul(e, wq)
    k = MatMul(e, wk)
    v = MatMul(e, wv)
    t = Transpose<perm=[0,2,1]>(k)
    s = MatMul(q, t)
    p = Softmax<axis=-1>(s)
    a = MatMul(p, v)
    h = Relu(a)
    r = Add(h, e)
    y = MatMul(r, wo)
}"""
RECURRENT = """g (float[N,T,8] x) => (float[N,16] y) {
    t = Transpose<perm=[1,0,2]>(x)
    o, last = GRU<hidden_size=32>(t, w, r)
    h = Squeeze(last, zero)
    y = MatMul(h, wo)
}"""
CONVOLUTIONS = """g (float[N,3,H,W] x) => (float[N,5,A,B] y, float[N,6] z) {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    ar = Relu(a)
    b = Conv<pads=[1,1,1,1], strides=[2,2]>(ar, w2)
    br = Relu(b)
    y = Conv(br, w3)
    p = GlobalAveragePool(br)
    f = Flatten(p)
    z = MatMul(f, w4)
}"""
LENGTHS = (5, 7, 9, 12, 30)
SIZES = ((8, 8), (9, 11), (12, 12), (17, 10), (20, 25))


def attention() -> onnx.ModelProto:
    products = {name: weight(32, 32, seed=i) / 4 for i, name in enumerate(("wq", "wk", "wv"))}
    return proto(ATTENTION, table=weight(50, 32, seed=4), wo=weight(32, 20, seed=5), **products)


def recurrent() -> onnx.ModelProto:
    gates = {"w": weight(1, 96, 8), "r": weight(1, 96, 32, seed=1) / 2}
    return proto(RECURRENT, zero=np.array([0]), wo=weight(32, 16, seed=2), **gates)


def convolutions() -> onnx.ModelProto:
    shapes = {"w1": (16, 3, 3, 3), "w2": (32, 16, 3, 3), "w3": (5, 32, 1, 1), "w4": (32, 6)}
    return proto(CONVOLUTIONS, **{name: weight(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())})


def texts(count: int, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    return [{"ids": rng.integers(0, 50, (1, n))} for n in itertools.islice(itertools.cycle(lengths), count)]


def sounds(count: int, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    of = itertools.islice(itertools.cycle(lengths), count)
    return [{"x": rng.standard_normal((1, n, 8), np.float32)} for n in of]


def images(count: int, sizes: tuple[tuple[int, int], ...] = SIZES, seed: int = 0) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    of = itertools.islice(itertools.cycle(sizes), count)
    return [{"x": rng.standard_normal((1, 3, *size), np.float32)} for size in of]


def sqnr(model: onnx.ModelProto, artifact: Artifact, feeds: list[Feeds]) -> float:
    """Of what the file gives for samples that it never saw, in dB, over all outputs."""
    real, packed, signal, error = Runner(model), Runner(artifact.path), 0.0, 0.0
    for one in feeds:
        for name, wanted in real.run(one).items():
            result = packed.run(one)[name]
            assert result.shape == wanted.shape
            signal, error = signal + np.square(wanted).sum(), error + np.square(wanted - result).sum()
    return float(10 * np.log10(signal / error))


def test_tokens_of_any_length(tmp_path: Path) -> None:
    artifact = compiled(attention(), texts(40), tmp_path, bits=(7,))
    assert sqnr(attention(), artifact, texts(6, (1, 6, 40), seed=1)) > 25
    assert artifact.manifest["results"]["top1_agreement"] > 0.9


def test_sounds_of_any_length(tmp_path: Path) -> None:
    artifact = compiled(recurrent(), sounds(40), tmp_path, bits=(7,), activations="float")
    assert sqnr(recurrent(), artifact, sounds(6, (1, 6, 40), seed=1)) > 25


@pytest.mark.slow
def test_images_of_any_size_with_two_kinds_of_outputs(tmp_path: Path) -> None:
    """One `.npz` per sample in nested folders; the artifact is checked anew, and another one made of it."""
    for i, feeds in enumerate(images(40)):
        (tmp_path / "data" / str(i % 3)).mkdir(parents=True, exist_ok=True)
        write_npz(tmp_path / "data" / str(i % 3) / f"{i}.npz", feeds)
    artifact = compiled(convolutions(), tmp_path / "data", tmp_path, bits=(5, 7))
    unseen = images(6, ((5, 6), (13, 9), (32, 24)), seed=1)
    assert sqnr(convolutions(), artifact, unseen) > 25
    assert str(verify(artifact.folder))
    with quick():
        again = ptqc.resolve(artifact.folder, output=tmp_path / "again", cache=tmp_path / "cache", budget="38%")
    assert again.path.stat().st_size <= 0.38 * (tmp_path / "model.onnx").stat().st_size
    assert sqnr(convolutions(), again, unseen) > 20


@pytest.mark.slow
def test_the_order_of_sizes_hardly_matters(tmp_path: Path) -> None:
    result = []
    for name, feeds in (("mixed", images(40)), ("sorted", sorted(images(40), key=lambda one: one["x"].size))):
        artifact = compiled(convolutions(), feeds, tmp_path / name, bits=(4,))
        result.append(sqnr(convolutions(), artifact, images(6, ((5, 6), (13, 9), (32, 24)), seed=1)))
    assert abs(result[0] - result[1]) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "sound", "image"])
def test_gradient_steps_too(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    model, feeds = {
        "text": (attention(), texts(40)),
        "sound": (recurrent(), sounds(40)),
        "image": (convolutions(), images(40)),
    }[kind]
    before, after = (
        compiled(model, feeds, tmp_path / pipeline, bits=(3,), pipeline=pipeline) for pipeline in ("light", "advanced")
    )
    assert after.manifest["results"]["loss"] < 1.2 * before.manifest["results"]["loss"]


EMPTY_BRANCH = """g (float[1,T,32] x, float[1,P,32] past) => (float[1,T,16] y) {
    h = MatMul(x, w1)
    old = MatMul(past, wp)
    r = Relu(old)
    s = ReduceSum(r, one)
    a = Add(h, s)
    b = Relu(a)
    y = MatMul(b, w2)
}"""


def with_past(count: int, past: int, seed: int) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    shapes = [{"x": (1, 3 + i % 4, 32), "past": (1, past, 32)} for i in range(count)]
    return [{name: rng.standard_normal(shape, np.float32) for name, shape in one.items()} for one in shapes]


def test_a_branch_that_is_empty_in_every_sample_still_serves_when_it_is_not(tmp_path: Path) -> None:
    shapes = {"wp": (32, 48), "w1": (32, 48), "w2": (48, 16)}
    constants = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    model = proto(EMPTY_BRANCH, one=np.array([1]), **constants)
    artifact = compiled(model, with_past(40, 0, seed=0), tmp_path, bits=(7,), activations="float")
    unseen = with_past(8, 4, seed=1)
    assert sqnr(model, artifact, unseen) > 25
    notes = {(note["subject"], note["level"]): note["message"] for note in artifact.manifest["notes"]}
    assert "empty or zero in every calibration sample" in notes["r", "warning"]
    assert "are read where no sample comes" in notes["wp", "warning"]
