"""kill −9 of a compile and of its workers: the next run gives the same bytes, and nothing is left."""

from collections.abc import Callable
from pathlib import Path

import pytest
from killing import Killable, Usual, check_killed, driver, first_worker


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(21))
@pytest.mark.parametrize("victims", [driver, first_worker])
def test_compiles_killed_at_random(
    tmp_path: Path, usual: Usual, victims: Callable[[int, list[int]], list[int]], seed: int
) -> None:
    check_killed(Killable(tmp_path / "killed"), usual, seed, victims)
