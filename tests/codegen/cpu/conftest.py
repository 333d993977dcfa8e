"""What several files need and takes seconds to make."""

from pathlib import Path

import pytest
from compiling import compiled_once
from compiling import residual as model
from compiling import samples as given

from ptqc.artifact.folder import Artifact


@pytest.fixture(scope="session")
def artifact(shared_room: Path) -> Artifact:
    """A small network with its library for this processor."""
    return compiled_once(model(), given(3, 8, 8), shared_room / "native", "25%", target="cpu")
