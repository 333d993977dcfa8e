"""Budgets of flash and memory: what the delivered C takes, what is refused, and with which numbers it then works."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compiling import compiled, product, residual, samples

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.budget import parse
from ptqc.codegen.c import footprint
from ptqc.errors import Infeasible, TargetError, UsageError
from ptqc.passes.allocate.constraints import microcontroller
from ptqc.passes.allocate.constraints.memory import MemoryBudget
from ptqc.passes.allocate.constraints.microcontroller import FlashBudget, RamBudget
from ptqc.passes.quantize.phases import FlashCosts

OPTIONS: dict[str, Any] = {"samples": 16, "target": "c", "bits": (2, 4, 8)}


def on_c(place: Path, *budgets: str, **options: Any) -> Artifact:
    """The residual network as C. place: of the store, so that it is measured once."""
    options = {**OPTIONS, "cache": place / "store", "output": place / "_".join(("out", *budgets)), **options}
    return compiled(residual(), samples(3, 8, 8), place, budgets or None, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("microcontroller")


@pytest.fixture(scope="module")
def both(place: Path) -> Artifact:
    """Within a budget of flash and one of memory."""
    return on_c(place, "9000Bflash", "20KBram")


def refused(place: Path, *budgets: str) -> Infeasible:
    with pytest.raises(Infeasible) as refusal:
        on_c(place, *budgets)
    return refusal.value


@pytest.mark.long
def test_the_delivered_c_keeps_its_flash_and_uses_it(both: Artifact, tmp_path: Path) -> None:
    check_flash(both, 9_000, tmp_path)


@pytest.mark.slow
def test_a_flash_without_a_memory_is_kept_and_used(place: Path, tmp_path: Path) -> None:
    check_flash(on_c(place, "12000Bflash"), 12_000, tmp_path)


def check_flash(artifact: Artifact, limit: int, folder: Path) -> None:
    flash = artifact.manifest["flash"]
    assert 0.95 * limit <= flash["used_bytes"] <= flash["limit_bytes"] == limit
    assert flash["used_bytes"] == flash["constant_bytes"] + flash["code_bytes"] + flash["structure_bytes"]
    assert flash["constant_bytes"] == artifact.manifest["targets"]["c"]["constant_bytes"]
    if flash["compiler"].startswith(footprint.COMPILER):
        command = [footprint.COMPILER, *footprint.CORTEX_M4.flags, *footprint.FLAGS, "-c", "-o", str(folder / "o")]
        subprocess.run([*command, str(artifact.folder / "c" / "model.c")], check=True)
        listed = subprocess.run(["arm-none-eabi-size", str(folder / "o")], capture_output=True, text=True, check=True)
        text, data, _ = map(int, listed.stdout.splitlines()[1].split()[:3])
        assert text + data == flash["used_bytes"]


@pytest.mark.slow
def test_a_larger_flash_loses_less(place: Path) -> None:
    small, large = (on_c(place, f"{limit}Bflash", force=True).manifest for limit in (9_000, 14_000))
    assert large["allocation"]["loss"] < small["allocation"]["loss"]
    assert large["flash"]["used_bytes"] > small["flash"]["used_bytes"]


@pytest.mark.long
def test_too_little_flash_is_refused(place: Path) -> None:
    assert "code" in [what for what, _ in refused(place, "3KBflash").blockers]


@pytest.mark.slow
def test_what_is_named_where_flash_is_refused_works(place: Path) -> None:
    refusal = refused(place, "3KBflash")
    assert on_c(place, f"{refusal.smallest}Bflash").manifest["flash"]["used_bytes"] <= refusal.smallest


@pytest.mark.slow
def test_too_little_memory_is_refused_before_measuring_with_what_works(place: Path, tmp_path: Path) -> None:
    with pytest.raises(
        Infeasible, match=r"needs [\d,]+ bytes, [\d,]+ of them .*while \w+ is made, for [\w ]+ [\d,]+ B, "
    ) as early:
        on_c(tmp_path, "1KBram")
    assert not list((tmp_path / "store").rglob("*.safetensors"))
    ram = on_c(place, f"{early.value.smallest}Bram").manifest["ram"]
    assert ram["used_bytes"] == ram["arena_bytes"] + ram["input_and_output_bytes"] <= early.value.smallest
    built = on_c(place, f"{early.value.smallest}Bram@c").manifest
    assert built["ram"] == ram
    assert built["memory"]["limit_bytes"] is None


@pytest.mark.slow
def test_memory_that_only_the_built_network_exceeds_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in ("check", "decide"):
        monkeypatch.setattr(RamBudget, step, lambda _, first, *__: first)
    refusal = refused(place, "1KBram")
    monkeypatch.undo()
    assert on_c(place, f"{refusal.smallest}Bram").manifest["ram"]["used_bytes"] == refusal.smallest


@pytest.mark.slow
def test_together_with_the_size_of_the_file(place: Path) -> None:
    manifest = on_c(place, "20%", "9KBflash", "20KBram").manifest
    assert manifest["file"]["bytes"] <= manifest["allocation"]["limit"]
    for kind in ("flash", "ram"):
        assert manifest[kind]["used_bytes"] <= manifest[kind]["limit_bytes"]


@pytest.mark.slow
def test_together_with_a_loss_the_best_network_of_the_flash_is_built(tmp_path: Path) -> None:
    manifest = on_c(tmp_path, "9KBflash", "0.5nat").manifest
    assert 0.95 * 9_000 <= manifest["flash"]["used_bytes"] <= 9_000
    assert manifest["loss_budget"]["kept"]
    with pytest.raises(
        Infeasible, match=r"9,000 B of flash and 1e-07nat contradict each other: the best network that fits loses about"
    ):
        on_c(tmp_path, "9KBflash", "0.0000001nat", force=True)


@pytest.mark.long
def test_summary_and_report_tell_both(both: Artifact) -> None:
    assert re.search(
        r"flash +[\d,]+ bytes, [\d.]+ % of the budget of 9,000 B of flash: [\d,]+ of weights", both.summary()
    )
    assert re.search(r"RAM +[\d,]+ bytes, [\d.]+ % of the budget of 20,000 B of RAM", both.summary())
    assert "9,000 B of flash" in (both.folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["64KBflash", "64KBflash@c", "20KBram@c"])
def test_without_the_target_they_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is of what a target builds for microcontrollers: give target c too"):
        compiled(product(), samples(16), tmp_path, text)


def test_of_a_target_that_may_be_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="allow-missing-target allows to be missing"):
        compiled(product(), samples(16), tmp_path, "64KBflash", target="c", allow_missing_target=True)


@pytest.mark.parametrize(("budget", "is_offered"), [("64KBflash", False), ("20KBram", False), ("64KB", True)])
def test_doing_without_the_target_is_offered_where_no_budget_is_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str, is_offered: bool
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(TargetError, match="install a C compiler") as refusal:
        compiled(product(), samples(16), tmp_path, budget, target="c")
    assert ("--allow-missing-target" in str(refusal.value)) == is_offered


def test_memory_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="several of ram"):
        compiled(product(), samples(16), tmp_path, ("20KBram", "20KBram@c"), target="c")


def test_how_they_are_written() -> None:
    assert parse("64KBflash") == FlashBudget(64_000)
    assert parse("64KiBflash@c") == FlashBudget(65_536, "c")
    assert parse("20KBram@c") == RamBudget(20_000, "c")
    assert parse("20KBram") == MemoryBudget(20_000)
    assert [str(parse(text)) for text in ("64KBflash", "20KBram@c")] == ["64,000 B of flash", "20,000 B of RAM"]


@pytest.mark.slow
def test_what_the_built_network_has_too_much_the_next_plan_saves(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weighed = microcontroller._flash_costs

    def too_little(*arguments: Any) -> FlashCosts:
        costs = weighed(*arguments)
        return replace(costs, limit=costs.limit + 700)

    monkeypatch.setattr(microcontroller, "_flash_costs", too_little)
    flash = on_c(place, "10KBflash").manifest["flash"]
    assert 9_500 <= flash["used_bytes"] <= 10_000


@pytest.mark.slow
def test_another_compiler_is_named_where_that_of_arm_is_missing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(footprint.shutil, "which", lambda name, *_: None if name.startswith("arm") else which(name))
    flash = on_c(place, "11KBflash").manifest["flash"]
    assert "for this machine, as arm-none-eabi-gcc is not installed" in flash["compiler"]
    assert 0 < flash["constant_bytes"] < flash["used_bytes"] <= 11_000
    assert flash["structure_bytes"] > 0


@pytest.mark.slow
def test_an_artifact_is_resolved_for_another_flash(place: Path) -> None:
    artifact = on_c(place, "13KBflash", c_name="net")
    options: dict[str, Any] = {"cache": place / "store", "output": place / "resolved"}
    resolved = ptqc.resolve(artifact.folder, budget="9500Bflash", **options)
    assert 0.95 * 9_500 <= resolved.manifest["flash"]["used_bytes"] <= 9_500
    assert {path.name for path in (resolved.folder / "c").iterdir()} == {"net.c", "net.h", "net_weights.h"}


@pytest.mark.slow
def test_a_plan_that_is_given_has_to_keep_it(place: Path) -> None:
    artifact = on_c(place, "15KBflash")
    options: dict[str, Any] = {"cache": place / "store", "output": place / "planned", "target": "c"}
    with pytest.raises(UsageError, match="over the budget of 9,000 B of flash, and the plan is given"):
        ptqc.resolve(artifact.folder, plan=artifact.plan, budget="9KBflash", **options)
