"""Tables of measured times: what they choose, what they tell, how they are read."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ptqc.codegen.cuda.times_table import GpuTimes, MeasuredKernel
from ptqc.codegen.cuda.trials import TrialTimes
from ptqc.errors import UsageError
from ptqc.runtime.cuda import CudaDevice

A100 = CudaDevice("A100", (8, 0), "580.65")


def measured(
    shares: Mapping[str, float], key: str = "dense_mma_1", predicted: tuple[float, ...] = ()
) -> MeasuredKernel:
    """A kernel whose first variant takes 10 and 100 µs, others so much of that."""
    of_first = {"first": 1.0, **shares}
    times = {label: (10 * share, 100 * share) for label, share in of_first.items()}
    return MeasuredKernel("first", TrialTimes(key, times, of_first, {}), predicted)


@pytest.mark.parametrize(
    ("shares", "chosen", "of_first"),
    [
        ({}, "first", 1.0),
        ({"second": 1.3}, "first", 1.0),
        ({"second": 0.99}, "first", 1.0),  # no more than a GPU's clock varies
        ({"second": 0.97, "third": 0.9}, "third", 0.9),
    ],
)
def test_another_variant_has_to_gain_something(shares: dict[str, float], chosen: str, of_first: float) -> None:
    result = measured(shares)
    assert (result.chosen, result.of_first) == (chosen, of_first)


def test_a_report_counts_what_changes_and_how_predictions_were() -> None:
    kernels = {
        "a": measured({"second": 0.8}, "a", (5.0, 200.0)),
        "b": measured({"second": 0.995}, "b", (10.0, 100.0)),
    }
    text = GpuTimes(A100, (1, 64), kernels, "1 kernels left: 600 s were over").report
    assert text["tuning"]["of_first"] == [0.8]
    assert text["tuning"]["predicted_of_measured"] == [0.5, 1.0, 2.0]
    assert text["tuned"] == (
        "1 of 2 kernels have other tiles than usual, by times on A100, and take 0.80 of the time in the median; "
        "predicted times are 1.00 of the measured ones (0.50 to 2.00); not all were measured: 1 kernels left: 600 s "
        "were over"
    )


def test_a_table_is_read_from_a_file_and_from_an_artifact(tmp_path: Path) -> None:
    value = GpuTimes(A100, (1, 64), {"a": measured({"second": 0.8}, "a", (5.0,))})
    file = tmp_path / "cuda" / "tuning.json"
    file.parent.mkdir()
    file.write_text(json.dumps(value.to_json()))
    assert GpuTimes.read(file) == GpuTimes.read(tmp_path) == value


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": 3, "samples": [], "kernels": {}, "missing": ""}'])
def test_what_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text(text)
    with pytest.raises(UsageError, match=r"times\.json has no times of kernels on a GPU"):
        GpuTimes.read(tmp_path / "times.json")


def test_a_share_of_zero_is_no_time() -> None:
    with pytest.raises(ValueError, match="not a kernel with the times of its variants"):
        MeasuredKernel.from_json(measured({"second": 0.0}).to_json())
