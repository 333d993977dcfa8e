"""Archives of arrays by name, whatever the names are: NumPy's `savez` takes none called `file`."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write what `np.load` reads, without pickles. Raises ValueError for arrays of Python objects."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
