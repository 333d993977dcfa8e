"""What models draw is recorded for each sample, the same in every compile."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
from compiling import proto
from graphs import noise

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.recording import recorded_specs, with_recorded
from ptqc.calibration.samples import Samples, collect
from ptqc.ir import recorded

GRAPH = """g (float[N,T] x) => (float[N,T] y) {
    d = RandomNormalLike<mean=3.0>(x)
    y = Add(x, d)
}"""


def model_that_draws() -> ir.Model:
    made = proto(GRAPH)
    result = recorded.record(made)
    model = ir.from_proto(made)
    recorded.remember(model, result)
    return model


def recorded_samples(folder: Path, seed: int = 0) -> Samples:
    model = model_that_draws()
    feeds = [{"x": noise(1, 3 + number % 2)} for number in range(6)]
    samples = collect(feeds, input_specs(model), folder / "samples", 10)
    return with_recorded(model, samples, folder / f"recorded{seed}", seed)


def test_each_sample_has_numbers_of_its_own(tmp_path: Path) -> None:
    result = recorded_samples(tmp_path)
    assert [feeds["d.recorded"].shape for feeds in result] == [feeds["x"].shape for feeds in result]
    numbers = np.concatenate([feeds["d.recorded"].reshape(-1) for feeds in result])
    assert len(set(numbers.tolist())) == len(numbers) == 21
    assert 2 < numbers.mean() < 4


def test_the_numbers_are_the_same_in_every_compile(tmp_path: Path) -> None:
    one, other = recorded_samples(tmp_path / "one"), recorded_samples(tmp_path / "other")
    assert one.digest == other.digest
    assert recorded_samples(tmp_path / "one", seed=7).digest != one.digest


def test_samples_of_models_that_draw_nothing_stay(tmp_path: Path) -> None:
    model = ir.from_proto(proto("g (float[N,T] x) => (float[N,T] y) { y = Neg(x) }"))
    samples = collect([{"x": noise(1, 3)}, {"x": noise(1, 4)}], input_specs(model), tmp_path, 10)
    assert with_recorded(model, samples, tmp_path / "recorded") is samples


def test_callers_feed_what_is_not_recorded(tmp_path: Path) -> None:
    model, samples = model_that_draws(), recorded_samples(tmp_path)
    assert [spec.name for spec in input_specs(model)] == ["x"]
    (spec,) = recorded_specs(model, samples[0])
    assert (spec.name, spec.dtype, spec.shape) == ("d.recorded", np.dtype(np.float32), (None, None))
