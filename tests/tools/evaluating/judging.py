"""Cases for the tests of metrics."""

from typing import Any

import numpy as np

from ptqc.calibration.inputs import InputRole
from ptqc.tools.evaluating.metric import Case

ROLES = {"ids": InputRole.TOKENS, "mask": InputRole.MASK}


def case(answer: object, label: Any = None, first: object = None, **feeds: object) -> Case:
    """A case of one sample. feeds: `ids` and `mask`."""
    fed = [{name: np.asarray(array) for name, array in feeds.items()}]
    firsts = [{"y": np.asarray(answer if first is None else first)}]
    return Case("case 0", fed, [{"y": np.asarray(answer)}], firsts, label, "y", {name: ROLES[name] for name in feeds})
