"""Options: defaults, the values refused, and the way to manifests and back."""

from typing import Any

import pytest

from ptqc.errors import UsageError
from ptqc.options import CompileOptions, Phase


def test_defaults_are_kept_where_nothing_is_given() -> None:
    assert CompileOptions.of({}) == CompileOptions()
    assert CompileOptions.of({"seed": 3}) == CompileOptions(seed=3)


def test_an_unknown_option_names_all_known_ones() -> None:
    known = "samples, observer, activations, activation_limit, loss, sensitivity, bits, formats, sparsity, scales"
    with pytest.raises(
        UsageError, match=rf"unknown option sede, turbo \(did you mean seed\?\); known: {known}, runtime, allow_8bit"
    ):
        CompileOptions.of({"turbo": 1, "sede": 2, "seed": 3})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"observer": "magic"}, "unknown observer magic; known: auto, minmax, percentile, entropy, mse"),
        ({"activations": "int"}, "activations is 'int'; known: auto, integer, float"),
        ({"sparsity": "4:8"}, "sparsity is '4:8'; known: given, 2:4"),
        ({"sensitivity": "hessian"}, "sensitivity is 'hessian'; known: outputs, curvature"),
        ({"scales": "shift"}, "scales is 'shift'; known: free, pow2"),
        ({"pipeline": "heavy"}, "pipeline is 'heavy'; known: light, advanced"),
        (
            {"loss": "l2"},
            "loss is 'l2'; known: auto, kl, mse, packed-cache, labels, state, probabilities, scores, detection, boxes",
        ),
        ({"loss": {"y": "l2"}}, "loss of output 'y' is 'l2'; known: auto, kl, mse, packed-cache, labels, state"),
        ({"samples": 1}, "samples is 1; give at least 2"),
        ({"bits": ()}, r"bits is \(\); give widths from 2 to 8"),
        ({"bits": (1, 4)}, "give widths from 2 to 8"),
        ({"bits": (8,)}, "at most 7 bits unless allow_8bit is given"),
        ({"bits": (4, 9)}, "give widths from 2 to 8"),
        ({"formats": ("int",), "activations": "float8"}, r"activations is 'float8' and formats is \('int',\), which"),
        ({"formats": ("float8_e4m3fn",)}, "unknown format float8_e4m3fn; known: int, safe"),
        ({"formats": ("int", "pears")}, r"unknown format pears \(did you mean pairs\?\); known: int, safe"),
        ({"activation_limit": -0.1}, "activation_limit is -0.1"),
        ({"activation_limit": float("nan")}, "activation_limit is nan"),
        ({"activation_limit": float("inf")}, "activation_limit is inf"),
        ({"seed": -1}, "seed is -1; it cannot be negative"),
        ({"time_limit": -1}, "time_limit is -1; give seconds"),
        ({"time_limit": float("nan")}, "time_limit is nan; give seconds"),
    ],
)
def test_bad_values_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CompileOptions.of(given)


def test_options_survive_a_manifest() -> None:
    options = CompileOptions(samples=48, bits=(3, 5), allow_8bit=True, activations="integer", seed=9)
    document = options.to_json()
    assert document["bits"] == [3, 5]
    assert CompileOptions.of({**document, "bits": tuple(document["bits"])}) == options


def test_what_was_found_serves_all_values_of_options_that_were_not_yet_read() -> None:
    usual, other = CompileOptions(), CompileOptions(observer="mse", pipeline="advanced", inline=True)
    assert usual.until(Phase.SOLVE) == other.until(Phase.SOLVE)
    assert usual.until(Phase.MEASURE).items() ^ other.until(Phase.MEASURE).items() == {
        ("observer", "auto"),
        ("observer", "mse"),
    }
    assert usual.until(Phase.FIT) == usual.to_json()
    assert CompileOptions(sensitivity="curvature").until(Phase.MEASURE) == {
        **usual.until(Phase.MEASURE),
        "sensitivity": "curvature",
    }
    assert usual.until(Phase.SOLVE) != CompileOptions(seed=1).until(Phase.SOLVE)
