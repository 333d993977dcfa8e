"""What several files need and takes seconds to make."""

from pathlib import Path

import pytest
from compiling import compiled_once
from compiling import residual as model
from compiling import samples as given

from ptqc.artifact.folder import Artifact


@pytest.fixture(scope="session")
def artifact(shared_room: Path) -> Artifact:
    """A small network with its CUDA library."""
    return compiled_once(model(), given(3, 8, 8), shared_room / "cuda", "25%", target="cuda", gpu="sm_80")
