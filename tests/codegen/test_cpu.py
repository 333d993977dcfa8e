"""The tests in `cpu/`, which load the TVM compiler and run in a process of their own: see `conftest.py` here."""

from importlib.util import find_spec

import pytest
from background import Background


@pytest.mark.skipif(find_spec("tvm") is None, reason="needs apache-tvm: pip install 'ptqc[tvm]'")
def test_the_cpu_target(cpu_tests: Background) -> None:
    code, told = cpu_tests.wait()
    assert code == 0, told[-4000:]
