"""The modules of a PyTorch network that computed each value, as its exporter writes them beside the nodes."""

import ast
import json
from collections.abc import Mapping

import onnx
import onnx_ir as ir

KEY = "ptqc.modules"
# The names of all modules around an operation, the network's own first ("") and the operation's last.
SCOPES = "pkg.torch.onnx.name_scopes"


def read(graph: onnx.GraphProto) -> dict[str, str]:
    """By the name of a value, the innermost module; values that the network computes outside of one are left out."""
    result = dict[str, str]()
    for node in graph.node:
        scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
        if module := _innermost(scopes):
            result |= dict.fromkeys(node.output, module)
    return result


def _innermost(scopes: str) -> str:
    try:
        names = ast.literal_eval(scopes)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ""
    is_list = isinstance(names, list) and len(names) > 1
    return names[-2] if is_list and isinstance(names[-2], str) else ""


def remember(model: ir.Model, modules: Mapping[str, str]) -> None:
    """Keep them with the model."""
    if modules:
        model.graph.metadata_props[KEY] = json.dumps(modules)


def remembered(model: ir.Model) -> dict[str, str]:
    """Those of a model, by the name of a value; empty where its exporter wrote none."""
    result: dict[str, str] = json.loads(model.graph.metadata_props.get(KEY, "{}"))
    return result
