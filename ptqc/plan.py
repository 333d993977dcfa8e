"""The one place where decisions live: which activations are quantized and how, and the format of each weight.

A plan is plain JSON with stable keys (output value names), can be written, edited and given back.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ptqc.errors import UsageError
from ptqc.formats import BFLOAT16, UINT8, Format, QuantParams, mean_bits
from ptqc.layers import Layer, Weight
from ptqc.sites import Kernel, Site, integer_kernels, source_params, sources

VERSION = 1


@dataclass(frozen=True)
class Plan:
    """Decisions over the roles of one model.

    activations: site name -> parameters, for the sites that are quantized. formats: weight name -> storage format.
    bfloats: names of other sites, which are rounded to bfloat16.
    """

    layers: tuple[Layer, ...]
    weights: tuple[Weight, ...]
    kernels: tuple[Kernel, ...]
    sites: tuple[Site, ...]
    activations: Mapping[str, QuantParams]
    formats: Mapping[str, Format]
    bfloats: frozenset[str] = frozenset()

    @cached_property
    def params(self) -> Mapping[str, QuantParams]:
        """Tensor -> parameters; tensors of one site share one object."""
        return {
            tensor: self.activations[site.name]
            for site in self.sites
            if site.name in self.activations
            for tensor in site.tensors
        }

    @cached_property
    def rounded(self) -> Mapping[str, QuantParams]:
        """Parameters of the tensors at which values are rounded; the others of a site only move them."""
        return source_params(self.sites, self.activations)

    @cached_property
    def rounded_to_bfloat16(self) -> frozenset[str]:
        """The tensors at which values are rounded to bfloat16."""
        return sources(self.sites, self.bfloats)

    @property
    def bfloat_sites(self) -> list[Site]:
        """The sites that are rounded to bfloat16."""
        return [site for site in self.sites if site.name in self.bfloats]

    @cached_property
    def integer(self) -> Mapping[str, Kernel]:
        """Node name -> kernel, for the nodes that run on codes."""
        layers = {layer.name: layer for layer in self.layers}
        return {
            kernel.node: kernel
            for kernel in integer_kernels(self.kernels, self.params)
            if kernel.node not in layers or self._has_codes(layers[kernel.node])
        }

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
        """The same activations with other weight formats; those stay float32 whose rounding then gains nothing."""
        plan = replace(self, formats=dict(formats))
        read = {x.input for x in plan.layers if x.reads_pairs and x.name not in plan.integer and plan._has_codes(x)}
        return replace(plan, bfloats=frozenset(s.name for s in plan.bfloat_sites if not read.isdisjoint(s.tensors)))

    def to_json(self) -> dict[str, Any]:
        """Canonical JSON: activations with their tensors, and layers and tables with format and compute."""
        users = {weight.name: weight for weight in self.weights}
        activations = [
            {"site": site.name, "tensors": list(site.tensors), **self._decided(site)}
            for site in self.sites
            if site.name in self.activations or site.name in self.bfloats
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

    def _decided(self, site: Site) -> dict[str, Any]:
        params = self.activations.get(site.name)
        if params is None:
            return {"format": str(BFLOAT16)}
        return {"format": str(params.format), "scale": float(params.scale), "zero_point": params.zero_point}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], roles: "Plan") -> "Plan":
        """A plan read back, over the roles of the model it is for. Raises UsageError where the two do not fit."""
        if document.get("version") != VERSION:
            raise UsageError(f"the plan has version {document.get('version')!r}; this ptqc reads version {VERSION}")
        sites = {site.name for site in roles.sites}
        try:
            activations, bfloats = _decisions(document["activations"])
            formats = {entry["weight"]: Format.parse(entry["format"]) for entry in document["weights"]}
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"the plan cannot be read: {type(error).__name__}: {error}") from error
        _same("activation", sites, {**activations, **dict.fromkeys(bfloats)}, subset=True)
        _same("weight", {weight.name for weight in roles.weights}, formats, subset=False)
        return cls(roles.layers, roles.weights, roles.kernels, roles.sites, activations, formats, bfloats)


def _decisions(entries: Sequence[Mapping[str, Any]]) -> tuple[dict[str, QuantParams], frozenset[str]]:
    """Parameters of quantized sites, and the sites that are rounded to bfloat16."""
    bfloats = frozenset(str(entry["site"]) for entry in entries if Format.parse(entry["format"]) == BFLOAT16)
    return {entry["site"]: _params(entry) for entry in entries if entry["site"] not in bfloats}, bfloats


def _params(entry: Mapping[str, Any]) -> QuantParams:
    form = Format.parse(entry["format"])
    if form != UINT8:
        raise ValueError(f"site {entry['site']!r} is {form}; activations are uint8 or bfloat16")
    return QuantParams(form, entry["scale"], entry["zero_point"])


def _same(what: str, known: set[str], given: Mapping[str, object], *, subset: bool) -> None:
    unknown = sorted(set(given) - known)
    missing = [] if subset else sorted(known - set(given))
    if unknown or missing:
        raise UsageError(f"the plan is for another model: unknown {what}s {unknown[:5]}, missing {what}s {missing[:5]}")


def write_json(document: object) -> str:
    """Canonical JSON text: sorted keys, no volatile parts."""
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
