"""Names of modules that PyTorch's exporter writes beside the nodes."""

import pytest
from compiling import proto

from ptqc.ir import modules


@pytest.mark.parametrize(
    ("scopes", "names"),
    [("['', 'block', 'block.relu']", {"y": "block"}), ("['']", {}), ("{[]: 1}", {}), ("[1, 2]", {}), ("[", {})],
)
def test_the_innermost_module_is_read(scopes: str, names: dict[str, str]) -> None:
    model = proto("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    model.graph.node[0].metadata_props.add(key=modules.SCOPES, value=scopes)
    assert modules.read(model.graph) == names
