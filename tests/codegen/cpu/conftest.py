"""What several files need and takes seconds to make."""

import pytest
from compiling import compiled
from compiling import residual as model
from compiling import samples as given

from ptqc.artifact.folder import Artifact


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A small network with its library for this processor."""
    return compiled(model(), given(3, 8, 8), tmp_path_factory.mktemp("native"), "25%", target="cpu")
