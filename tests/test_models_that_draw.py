"""Models with random numbers inside: a denoising step, choices by chance, and a voice whose length is chance, too."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, samples, weight
from voices import sentences, voice

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.errors import CalibrationError, UsageError
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Runner
from ptqc.ir.recorded import with_inputs

STEP = """g (float[N,4,8,8] x, float[1] sigma) => (float[N,4,8,8] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    r = Relu(a)
    e = Conv<pads=[1,1,1,1]>(r, w2, b2)
    m = Sub(x, e)
    d = RandomNormalLike(x)
    n = Mul(d, sigma)
    y = Add(m, n)
}"""


def step() -> onnx.ModelProto:
    weights = {"w1": weight(32, 4, 3, 3), "b1": weight(32), "w2": 0.3 * weight(4, 32, 3, 3), "b2": weight(4)}
    return proto(STEP, **weights)


def noisy_samples(count: int = 24, seed: int = 7) -> list[dict[str, np.ndarray]]:
    return [{"x": x[None], "sigma": np.array([0.5], np.float32)} for x in samples(4, 8, 8, count=count, seed=seed)]


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(step(), noisy_samples(), tmp_path_factory.mktemp("step"), "35%", bits=(4, 8))


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def with_the_same_draws(artifact: Artifact, feeds: dict[str, np.ndarray], taps: list[str]) -> list[np.ndarray]:
    """The output of the float model, and that of the compiled file for the numbers that the float model drew."""
    float_model = artifact.folder.parent / "model.onnx"
    result = Runner(float_model, taps).run(feeds)
    file = with_inputs(onnx.load(artifact.path), artifact.manifest["recorded"])
    draws = {source: result[source.removesuffix(".recorded")] for source in artifact.manifest["recorded"]}
    (output,) = (value.name for value in file.graph.output)
    return [result[output], Runner(file).run({**feeds, **draws})[output]]


def test_the_file_draws_itself(denoiser: Artifact) -> None:
    assert operators(denoiser.path)["RandomNormalLike"] == 1
    assert operators(denoiser.path)["CastLike"] == 0
    assert [value.name for value in onnx.load(denoiser.path).graph.input] == ["x", "sigma"]
    (feeds,) = noisy_samples(1, seed=8)
    one, other = (denoiser.run(feeds)["y"] for _ in range(2))
    assert 0.3 < (one - other).std() < 1.2  # of two draws with a deviation of .5 each
    quiet = {**feeds, "sigma": np.zeros(1, np.float32)}
    assert np.array_equal(denoiser.run(quiet)["y"], denoiser.run(quiet)["y"])


def test_the_file_is_the_float_model_for_the_same_numbers(denoiser: Artifact) -> None:
    pairs = [with_the_same_draws(denoiser, feeds, ["d"]) for feeds in noisy_samples(8, seed=8)]
    assert relative([wanted for wanted, _ in pairs], [result for _, result in pairs]) < 0.05
    assert denoiser.manifest["results"]["sqnr_db"] > 25
    assert any("draws new random numbers in every run" in note["message"] for note in denoiser.manifest["notes"])


def test_its_size_is_that_of_the_file(denoiser: Artifact) -> None:
    assert (
        denoiser.path.stat().st_size == denoiser.manifest["file"]["bytes"] <= denoiser.manifest["allocation"]["limit"]
    )


def test_it_is_verified_anew(denoiser: Artifact) -> None:
    result = ptqc.verify(denoiser.folder, model=denoiser.folder.parent / "model.onnx")
    assert {"files", "kernels", "golden", "model"} <= result.checks.keys()


def test_models_are_compared_on_the_same_numbers(denoiser: Artifact) -> None:
    result = ptqc.compare(denoiser.folder.parent / "model.onnx", denoiser.folder, data=noisy_samples(4, seed=8))
    sqnr = result.models[1].sqnr_db
    assert sqnr is not None
    assert 25 < sqnr < 100


def test_a_run_and_a_score_draw(denoiser: Artifact, tmp_path: Path) -> None:
    ptqc.run(denoiser.folder, noisy_samples(3), output=tmp_path / "outputs.npz")
    assert np.load(tmp_path / "outputs.npz")["y"].shape == (3, 4, 8, 8)
    assert "RandomNormalLike" in str(ptqc.bench(denoiser.folder))
    assert [tensor.name for tensor in ptqc.inspect(denoiser.folder.parent / "model.onnx").inputs] == ["x", "sigma"]


def test_the_same_compile_takes_what_was_measured(denoiser: Artifact, tmp_path: Path) -> None:
    again = compiled(step(), noisy_samples(), tmp_path, "35%", bits=(4, 8), cache=denoiser.folder.parent / "cache")
    assert again.path.read_bytes() == denoiser.path.read_bytes()


def test_samples_that_were_measured_on_judge_no_loss(denoiser: Artifact, tmp_path: Path) -> None:
    """What the model drew for a sample is another one each time, and is not what tells samples apart."""
    cache = denoiser.folder.parent / "cache"
    with pytest.raises(CalibrationError, match="only 0 of 24 samples differ from those that were measured on"):
        ptqc.resolve(denoiser, budget="0.1relative", data=noisy_samples(), output=tmp_path / "out", cache=cache)


@pytest.mark.slow
def test_half_precision_draws_too(tmp_path: Path) -> None:
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in step().graph.initializer}
    halves = {name: array.astype(np.float16) for name, array in weights.items()}
    data = [{name: array.astype(np.float16) for name, array in feeds.items()} for feeds in noisy_samples()]
    artifact = compiled(proto(STEP.replace("float[", "float16["), **halves), data, tmp_path, bits=(4, 7))
    assert artifact.manifest["results"]["sqnr_db"] > 25
    assert operators(artifact.path)["CastLike"] == 0
    assert artifact.run(data[0])["y"].dtype == np.float16


@pytest.mark.slow
def test_whoever_scores_feeds_what_the_file_takes(tmp_path: Path) -> None:
    (feeds,) = noisy_samples(1, seed=9)

    def score(run) -> float:  # type: ignore[no-untyped-def]
        return -float(np.square(run(feeds)["y"]).mean())

    artifact = compiled(step(), noisy_samples(), tmp_path, bits=(6, 7), evaluate=score)
    assert artifact.manifest["results"]["compiled_score"] < 0


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param("p = Sigmoid(h) c = Bernoulli(p) q = Mul(h, c)", marks=pytest.mark.slow),
        "i = Multinomial<sample_size=1>(h) r = Gather(table, i) s = Squeeze(r, one) q = Mul(h, s)",
        pytest.param("n = RandomUniformLike<low=0.5, high=1.5>(h) q = Mul(h, n)", marks=pytest.mark.slow),
    ],
    ids=["Bernoulli", "Multinomial", "RandomUniformLike"],
)
def test_choices_by_chance(draw: str, tmp_path: Path) -> None:
    graph = f"g (float[N,16] x) => (float[N,8] y) {{ h = Gemm(x, w, b) {draw} y = MatMul(q, v) }}"
    constants = {"table": weight(32, 32), "one": np.array([1])}
    used = {name: array for name, array in constants.items() if name in draw}
    model = proto(graph, w=weight(16, 32), b=weight(32), v=weight(32, 8), **used)
    artifact = compiled(model, samples(16), tmp_path, bits=(6, 7), pipeline="light")
    assert artifact.manifest["results"]["sqnr_db"] > 25
    assert sum(operators(artifact.path)[name] for name in ("Bernoulli", "Multinomial", "RandomUniformLike")) == 1


@pytest.mark.slow
def test_a_library_reads_what_the_file_draws(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    artifact = compiled(step(), noisy_samples(), tmp_path, "35%", bits=(4, 7), target="cpu")
    (feeds,) = noisy_samples(1, seed=8)
    _, file = with_the_same_draws(artifact, feeds, ["d"])
    with pytest.raises(UsageError, match=r"give 'd\.recorded'"):
        artifact.run(feeds)
    draws = (file - artifact.run({**feeds, "d.recorded": np.zeros_like(feeds["x"])})["y"]) / feeds["sigma"]
    again = artifact.run({**feeds, "d.recorded": draws})["y"]
    np.testing.assert_allclose(again, file, atol=1e-4)
    assert ptqc.verify(artifact.folder).checks["library"]
    ptqc.run(artifact.folder, noisy_samples(3), output=tmp_path / "outputs.npz")  # by the library
    drawn = np.load(tmp_path / "outputs.npz")["y"]
    assert np.isfinite(drawn).all()
    assert drawn.shape == (3, 4, 8, 8)


REGULATOR = """g (int64[1,T] ids) => (float[F,8] y) {
    e = Gather(table, ids)
    h = MatMul(e, w1)
    d0 = MatMul(h, w2)
    d1 = Softplus(d0)
    d = Ceil(d1)
    ends = CumSum(d, one)
    starts = Sub(ends, d)
    total0 = ReduceSum<keepdims=0>(d)
    total = Cast<to=7>(total0)
    frames0 = Range(zero, total, step)
    frames = Cast<to=1>(frames0)
    after = GreaterOrEqual(frames, starts)
    before = Less(frames, ends)
    inside = And(after, before)
    path0 = Cast<to=1>(inside)
    path1 = Squeeze(path0, batch)
    path = Transpose(path1)
    rows = Squeeze(h, batch)
    spread = MatMul(path, rows)
    y = MatMul(spread, w3)
}"""


@pytest.mark.long
def test_a_length_that_layers_compute_stays_free(tmp_path: Path) -> None:
    """Else what is compared has another shape as soon as rounding a weight lengthens a sound."""
    weights = {"table": weight(20, 16), "w1": weight(16, 24), "w2": 2 * weight(24, 1), "w3": weight(24, 8)}
    integers = {name: np.array(value) for name, value in (("one", 1), ("zero", 0), ("step", 1), ("batch", [0]))}
    random = np.random.default_rng(0)
    data = [{"ids": random.integers(0, 20, (1, length))} for length in random.integers(4, 12, 40)]
    model = proto(REGULATOR, **weights, **integers)
    artifact = compiled(model, data[:32], tmp_path, "70%", bits=(2, 5, 7))
    assert artifact.manifest["recorded"].keys() == {"total.recorded"}
    lengths = [(Runner(model).run(feeds)["y"].shape, artifact.run(feeds)["y"].shape) for feeds in data[32:]]
    assert len({wanted for wanted, _ in lengths}) > 1
    assert sum(wanted == result for wanted, result in lengths) >= len(lengths) - 2


@pytest.mark.slow
def test_a_voice_speaks_at_any_length(tmp_path: Path) -> None:
    artifact = compiled(voice(), sentences(10), tmp_path, "30%", bits=(5, 7), pipeline="light")
    assert operators(artifact.path)["RandomNormalLike"] == 2
    held_back = sentences(4, seed=1)
    assert len({feeds["input"].size for feeds in held_back}) > 1
    for feeds in held_back:
        sound = artifact.run(feeds)["output"]
        assert sound.shape[:2] == (1, 1)
        assert sound.shape[2] % 16 == 0
        assert sound.shape[2] > 16 * feeds["input"].size / 2
        assert 0.01 < sound.std() < 1
    pairs = [with_the_same_draws(artifact, feeds, ["drawn_w", "drawn", "total"]) for feeds in held_back]
    assert relative([wanted for wanted, _ in pairs], [result for _, result in pairs]) < 0.3
    assert ptqc.verify(artifact.folder).checks
