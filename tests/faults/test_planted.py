"""Faults planted into the compiler itself: a compile of a small network must stop at every one of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiling import compiled
from fault_networks import NETWORKS
from planted_decisions import DECISIONS
from planted_lowering import LOWERING
from planted_packing import PACKING
from planted_rewrites import REWRITES

from ptqc.artifact.folder import Artifact
from ptqc.errors import InternalError

FAULTS = REWRITES | DECISIONS | LOWERING | PACKING
# Of decisions, lowering and packing one each; the others run with -m slow.
SAMPLE = (
    "ranges of two tensors swapped",
    "padded with code zero",
    "output renamed",
)
assert set(SAMPLE) <= set(FAULTS)
Stores = Callable[[str], Path]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """The store of a network that was compiled without a fault: measured once, for all faults behind measuring."""
    made: dict[str, Path] = {}

    def store(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            run(name, folder, folder / "cache")
            made[name] = folder / "cache"
        return made[name]

    return store


def run(name: str, folder: Path, cache: Path) -> Artifact:
    network = NETWORKS[name]
    return compiled(network.model, network.data, folder, network.budget, cache=cache, **network.options)


def counted(function: Callable[..., Any], calls: list[object]) -> Callable[..., Any]:
    def called(*arguments: Any, **options: Any) -> Any:
        calls.append(function)
        return function(*arguments, **options)

    return called


def check(name: str, stores: Stores, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, calls = FAULTS[name], list[object]()
    store = stores(fault.network)
    wrong = fault.change(getattr(fault.place, fault.name))
    monkeypatch.setattr(fault.place, fault.name, counted(wrong, calls))
    with pytest.raises(InternalError, match=fault.found):
        run(fault.network, folder, store)
    assert calls
    assert not (folder / "out").exists()


@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_is_stopped(name: str, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, stores, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in SAMPLE])
def test_every_fault_is_stopped(name: str, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, stores, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_without_a_fault_a_network_compiles(name: str, stores: Stores, tmp_path: Path) -> None:
    verified = run(name, tmp_path, stores(name)).manifest["verification"]
    assert verified["weights_as_tuned"] > 0
    assert verified["operators_as_planned"] > verified["integer_nodes"]
