"""The one place where decisions live: which activations are quantized and how, and the format of each weight.

A plan is plain JSON with stable keys (output value names), can be written, edited and given back.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ptqc.errors import MALFORMED, UsageError
from ptqc.formats import ActivationParams, FloatActivation, Format, QuantParams, Reader, coded, mean_bits, rounded_to
from ptqc.formats.activations import read
from ptqc.ir.layers import Layer, Weight, module_labels
from ptqc.ir.sites import QuantizableOp, ScaleGroup, integer_kernels, source_params, useful_sites

VERSION = 1
# Written for a site by who takes it out of the integers; plans of ptqc leave such sites out.
FLOAT = "float"


@dataclass(frozen=True)
class Plan:
    """Decisions over the roles of one model.

    activations: site name -> its format with parameters, for the sites that are rounded; the others are float32.
    formats: weight name -> storage format.
    """

    layers: tuple[Layer, ...]
    weights: tuple[Weight, ...]
    kernels: tuple[QuantizableOp, ...]
    sites: tuple[ScaleGroup, ...]
    activations: Mapping[str, ActivationParams]
    formats: Mapping[str, Format]

    @cached_property
    def params(self) -> Mapping[str, QuantParams]:
        """Tensor -> parameters, for those that are codes; tensors of one site share one object."""
        result = coded(self.activations)
        return {tensor: result[site.name] for site in self.sites if site.name in result for tensor in site.tensors}

    @cached_property
    def rounded(self) -> Mapping[str, ActivationParams]:
        """Parameters of the tensors at which values are rounded; the others of a site only move them."""
        return source_params(self.sites, self.activations)

    @cached_property
    def cast(self) -> Mapping[str, FloatActivation]:
        """Format of the tensors that are rounded to real numbers of fewer digits."""
        return rounded_to(self.rounded)

    @property
    def cast_sites(self) -> dict[str, FloatActivation]:
        """The same of whole sites, by name, in order of appearance."""
        result = rounded_to(self.activations)
        return {site.name: result[site.name] for site in self.sites if site.name in result}

    @cached_property
    def integer(self) -> Mapping[str, QuantizableOp]:
        """Node name -> kernel, for the nodes that run on codes."""
        return {kernel.node: kernel for kernel in integer_kernels(self._coded, self.params)}

    @cached_property
    def integer_here(self) -> Mapping[str, QuantizableOp]:
        """Those that ONNX Runtime runs on codes; what another runtime fuses, only where it is a layer between codes."""
        layers = {layer.name for layer in self.layers}
        return {
            name: one
            for name, one in self.integer.items()
            if not one.fused or (name in layers and one.output in self.params)
        }

    @cached_property
    def _coded(self) -> Sequence[QuantizableOp]:
        """The kernels but for those of layers whose weights are no codes."""
        layers = {layer.name: layer for layer in self.layers}
        return [one for one in self.kernels if one.node not in layers or self._has_codes(layers[one.node])]

    @property
    def labels(self) -> dict[str, str]:
        """The module of what a layer computes, by the layer's name and by that of the Relu or Clip that it absorbs."""
        labels = module_labels(self.weights)
        absorbed = {one.output: labels[one.node] for one in self.kernels if one.node in labels}
        return {**labels, **absorbed}

    @cached_property
    def code_bits(self) -> float:
        """Stored bits of the mean weight that layers read as codes, without scales and levels; 0 without such."""
        read = [(self.formats[weight.name], weight.size) for weight in self.weights if weight.layers]
        return mean_bits((form, size) for form, size in read if form.has_codes)

    def _has_codes(self, layer: Layer) -> bool:
        """Whether the layer's weight is stored as codes with a scale per output channel."""
        weight = next(weight for weight in self.weights if weight.name == layer.weight)
        form = self.formats.get(weight.name)
        return weight.channel_axis == layer.channel_axis and (form is None or form.has_codes)

    def with_formats(self, formats: Mapping[str, Format]) -> "Plan":
        """The same activations with other weight formats; those stay float32 whose rounding then serves nothing.

        Codes serve kernels that read or give them; roundings to other real numbers make weights of some formats faster.
        """
        plan = replace(self, formats=dict(formats))
        layers = [layer for layer in plan.layers if layer.name not in plan.integer]
        tensors = {site.name: site.tensors for site in self.sites}
        left = {name for name, form in self.cast_sites.items() if not plan._gains(form, tensors[name], layers)}
        left |= plan._idle_sites()
        return replace(plan, activations={n: p for n, p in self.activations.items() if n not in left}) if left else plan

    def _idle_sites(self) -> set[str]:
        """The sites on codes that serve no kernel on codes: a layer that reads them has a weight of real numbers."""
        sites = [site for site in self.sites if site.name in coded(self.activations)]
        useful = useful_sites(sites, self._coded, {layer.name for layer in self.layers})
        return {site.name for site in sites} - {site.name for site in useful}

    def _gains(self, form: FloatActivation, tensors: Collection[str], layers: Iterable[Layer]) -> bool:
        """Whether rounding the tensors pays, of which these are the layers in float."""
        readers = [Reader(x.reads_pairs, self.formats.get(x.weight)) for x in layers if x.input in tensors]
        return form.gains(readers)

    def to_json(self) -> dict[str, Any]:
        """Canonical JSON: activations with their tensors, and layers and tables with format and compute."""
        users = {weight.name: weight for weight in self.weights}
        activations = [
            {"site": site.name, "tensors": list(site.tensors), **self.activations[site.name].to_json()}
            for site in self.sites
            if site.name in self.activations
        ]
        weights = [
            {
                "weight": name,
                "format": str(form),
                "layers": {x.name: "integer" if x.name in self.integer else "float" for x in users[name].layers},
            }
            for name, form in self.formats.items()
        ]
        return {"version": VERSION, "activations": activations, "weights": weights}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], roles: "Plan") -> "Plan":
        """A plan read back, over the roles of the model it is for. Raises UsageError where the two do not fit."""
        if not isinstance(document, Mapping):
            raise UsageError(f"the plan is a {type(document).__name__}; expected an object with version and formats")
        if (version := document.get("version")) != VERSION or isinstance(version, bool):
            raise UsageError(f"the plan has version {version!r}; this ptqc reads version {VERSION}")
        sites = {site.name for site in roles.sites}
        try:
            stated = {entry["site"]: entry for entry in document["activations"]}
            activations = {name: _activation(entry) for name, entry in stated.items() if entry["format"] != FLOAT}
            formats = {entry["weight"]: _format(entry) for entry in document["weights"]}
        except MALFORMED as error:
            raise UsageError(f"the plan cannot be read: {type(error).__name__}: {error}") from error
        _same("activation", sites, stated, subset=True)
        _same("weight", {weight.name for weight in roles.weights}, formats, subset=False)
        return cls(roles.layers, roles.weights, roles.kernels, roles.sites, activations, formats)


def _activation(entry: Mapping[str, Any]) -> ActivationParams:
    """Raises ValueError naming the site where its range is missing."""
    try:
        return read(entry)
    except KeyError as error:
        raise ValueError(f"site {entry['site']!r} is {entry['format']} and has no {error}") from error


def _format(entry: Mapping[str, Any]) -> Format:
    """Of a weight. Raises ValueError naming it."""
    try:
        return Format.parse(entry["format"])
    except ValueError as error:
        raise ValueError(f"weight {entry['weight']!r}: {error}") from error


def _same(what: str, known: set[str], values: Mapping[str, object], *, subset: bool) -> None:
    unknown = sorted(set(values) - known, key=str)  # a plan's names may be anything
    missing = [] if subset else sorted(known - set(values))
    if unknown or missing:
        raise UsageError(f"the plan is for another model: unknown {what}s {unknown[:5]}, missing {what}s {missing[:5]}")


def write_json(document: object) -> str:
    """Canonical JSON text: sorted keys, no volatile parts."""
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
