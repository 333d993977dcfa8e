"""Names by which people know layers: exporters number what operators give, and keep the names of modules in weights."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ptqc.ir.layers import Weight

# `blocks.5.c1.weight`, `encoder/dense/kernel:0`
OF_MODULE = re.compile(r"(?P<module>.+)[./](weight|kernel)s?(:\d+)?", re.IGNORECASE)
# Names with a path tell the module themselves, as `/blocks.5/c1/Conv_output_0`.
PATH = re.compile(r"[./:]")


def labels_of(weights: Sequence[Weight]) -> Mapping[str, str]:
    """The module of each layer that has a weight for itself, where only the weight tells it: by the layer's name."""
    found = {}
    for weight in weights:
        match = OF_MODULE.fullmatch(weight.name)
        if match and len(weight.layers) == 1 and not PATH.search(name := weight.layers[0].name):
            found[name] = match["module"]
    times = Counter(found.values())
    return {name: module for name, module in found.items() if times[module] == 1}
