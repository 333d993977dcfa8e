"""A resolve takes the target and its options as compiled, unless others are given."""

from typing import Any

import pytest

from ptqc.codegen.targets import Chosen, choose, choose_as_compiled
from ptqc.errors import UsageError


def manifest(name: str, **options: object) -> dict[str, Any]:
    """Of a compile with this target."""
    chosen = choose(name, options)
    assert chosen is not None
    return {"target": chosen.to_json(), "targets": {name: {}}}


def resolved(earlier: dict[str, Any], name: str | None = None, *needed: str, **options: object) -> Chosen | None:
    return choose_as_compiled(name, options, (), earlier, needed, may_be_missing=False)


def options(chosen: Chosen | None) -> dict[str, object]:
    return {} if chosen is None else {"target": chosen.name, **vars(chosen.options)}


def test_c_source_is_built_again_under_its_name() -> None:
    earlier = manifest("c", c_name="kws", c_stream=2)
    wanted = {"target": "c", "c_name": "kws", "c_stream": 2, "c_frames": None}
    assert options(resolved(earlier)) == options(resolved(earlier, "c")) == wanted
    assert options(resolved(earlier, c_name="vad")) == {**wanted, "c_name": "vad"}
    assert options(resolved(earlier, "litert")).get("target") == "litert"


def test_native_libraries_are_built_again_where_asked_for() -> None:
    earlier = manifest("cpu", cpu="avx2,portable", cpu_library="static", c_name="kws")
    assert resolved(earlier) is None
    wanted = {"target": "cpu", "cpu": "avx2,portable", "tune": "off", "cpu_library": "static", "c_name": "kws"}
    assert options(resolved(earlier, "cpu")) == options(resolved(earlier, None, "cpu")) == wanted
    assert options(resolved(earlier, cpu="avx2")) == {**wanted, "cpu": "avx2"}


def test_none_is_the_onnx_file_alone() -> None:
    assert choose("none", {}) is None
    assert resolved(manifest("c", c_name="kws"), "none") is None
    with pytest.raises(UsageError, match="c_name is an option of the target"):
        resolved(manifest("c"), "none", c_name="kws")


def test_a_target_that_was_missing_may_be_missing_again() -> None:
    earlier = manifest("c")
    earlier["targets"]["c"] = {"missing": "no compiler"}
    again, named = resolved(earlier), resolved(earlier, "c")
    assert again is not None
    assert named is not None
    assert (again.may_be_missing, named.may_be_missing) == (True, False)


@pytest.mark.parametrize("earlier", [{}, {"target": None}, {"target": {"name": "uninstalled", "options": {}}}])
def test_without_a_known_target(earlier: dict[str, Any]) -> None:
    assert resolved({**earlier, "targets": {}}) is None
    with pytest.raises(UsageError, match="c_name is an option of the target"):
        resolved({**earlier, "targets": {}}, c_name="kws")
