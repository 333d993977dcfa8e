"""Which operators and versions are accepted: ONNX's own, in float, that the installed runtime can run."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import onnx
from onnx.defs import SchemaError

from ptqc.errors import ModelError
from ptqc.frontend.classical import DOMAIN as CLASSICAL
from ptqc.frontend.functions import key_of
from ptqc.ir.operators import Trait, named
from ptqc.ir.proto_walk import every_graph, every_node, label

MIN_OPSET = 7  # lower ones broadcast by attributes
MAX_OPSET = 26  # what ONNX Runtime 1.31 loads

ONNX_DOMAINS = ("", "ai.onnx")
# What a lowered graph is made of itself.
CONVERSIONS = named(Trait.CONVERTS)
# Left as they are where all that they read is computed: no weights of a quantized network.
INTEGER = named(Trait.QUANTIZED)
# Operators of ONNX Runtime's own, left by its optimizer; those with such names are of quantized networks.
FUSED = "com.microsoft"
QUANTIZED = re.compile(r"^Q[A-Z]|[Qq]uantize|Integer|NBits|Bnb4|FpQ4|Float8")
# Layouts for one kind of processor.
BLOCKED = ("com.microsoft.nchwc", "com.ms.internal.nhwc")


def check_versions(model: onnx.ModelProto) -> None:
    """Refuse a model without an operator set version, or with one outside 7 to 26; functions alike.

    None is needed where every operator is of another domain, as in a pipeline of `ai.onnx.ml` alone.
    """
    version = _opset(model.opset_import)
    if version is None and not any(node.domain in ONNX_DOMAINS for node in every_node(model)):
        return
    if version is None:
        raise ModelError("names no operator set version for ai.onnx; export the model again")
    if not MIN_OPSET <= version <= MAX_OPSET:
        remedy = "onnx.version_converter" if version < MIN_OPSET else f"opset_version={MAX_OPSET} or lower at export"
        raise ModelError(f"uses opset {version}; {MIN_OPSET} to {MAX_OPSET} are accepted: use {remedy}")
    for function in model.functions:
        own = _opset(function.opset_import)
        if own is not None and own != version:
            raise ModelError(f"function {function.name!r} uses opset {own}, the model {version}; expected the same")


def check_operators(model: onnx.ModelProto) -> None:
    """Refuse quantized, custom and unknown operators, and layouts for one kind of processor."""
    version = _opset(model.opset_import) or 0
    versions = {entry.domain: entry.version for entry in model.opset_import} | dict.fromkeys(ONNX_DOMAINS, version)
    constants = _constants(model)
    functions = {key_of(function) for function in model.functions}
    unknown: dict[str, str] = {}
    for node in every_node(model):
        _check_text(node)
        if (node.domain, node.op_type, node.overload) in functions:
            continue
        if _is_quantized(node, constants):
            raise ModelError(f"is quantized already ({label(node)}); give the float model that it was made from")
        if node.domain in BLOCKED:
            raise ModelError(
                f"was laid out by ONNX Runtime for one kind of processor ({node.domain}: {label(node)}); "
                "give the model as it was exported, or optimized with ORT_ENABLE_EXTENDED at most"
            )
        if not _known(node, versions):
            unknown.setdefault(":".join(filter(None, (node.domain, node.op_type))), label(node))
    if unknown:
        _refuse_unknown(unknown, version)


def _check_text(node: onnx.NodeProto) -> None:
    """Refuse what protobuf gives as bytes, because it is no text."""
    for text in (node.op_type, node.domain):
        if not isinstance(text, str):
            raise ModelError(
                f"names an operator by what is not UTF-8 text ({text!r}): the file is damaged; export it again"
            )


def _refuse_unknown(unknown: Mapping[str, str], version: int) -> None:
    first = next(iter(unknown.values()))
    own = [
        name for name in unknown if ":" not in name or name.startswith(("ai.onnx:", f"{CLASSICAL}:", "ai.onnx.preview"))
    ]
    if own:
        raise ModelError(
            f"has operators that ONNX opset {version} does not define: {_list(own)} (first: {first}); "
            "export the model again, with a newer opset"
        )
    raise ModelError(
        f"has custom operators: {_list(unknown)} (first: {first}), which ONNX Runtime has no kernels for; "
        "export the model without them, or cut it off before them"
    )


def check_attributes(model: onnx.ModelProto) -> None:
    """Refuse nodes that state an attribute twice: libraries differ in which one they take."""
    for node in every_node(model):
        names = Counter(attribute.name for attribute in node.attribute)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ModelError(f"the {label(node)} has {twice[0]!r} twice; export the model again")


def _opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int | None:
    return next((entry.version for entry in imports if entry.domain in ONNX_DOMAINS), None)


def _constants(model: onnx.ModelProto) -> set[str]:
    """Names of constants anywhere in the model."""
    made = {name for node in every_node(model) if node.op_type == "Constant" for name in node.output}
    return made.union(*({tensor.name for tensor in graph.initializer} for graph in every_graph(model)))


def _is_quantized(node: onnx.NodeProto, constants: set[str]) -> bool:
    if node.domain == FUSED:
        return QUANTIZED.search(node.op_type) is not None
    is_integer = node.op_type in INTEGER and not constants.isdisjoint(node.input)
    return is_integer or node.op_type in CONVERSIONS


def _known(node: onnx.NodeProto, versions: Mapping[str, int]) -> bool:
    """Whether one of ONNX's own domains has the operator; of ONNX Runtime's own, its loading says."""
    if node.domain not in (*ONNX_DOMAINS, CLASSICAL):
        return node.domain == FUSED
    domain = "" if node.domain in ONNX_DOMAINS else node.domain
    try:
        return not onnx.defs.get_schema(node.op_type, versions.get(node.domain, 0), domain).deprecated
    except SchemaError:
        return False


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
