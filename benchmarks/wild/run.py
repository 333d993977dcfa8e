"""Runs one recipe in its own environment: python run.py MODULE MODEL PACKAGES FOLDER."""

import importlib
import sys
from pathlib import Path

from common import Place, save


def main() -> None:
    module, model, packages, folder = sys.argv[1:]
    place = Place(Path(packages), Path(folder))
    data = getattr(importlib.import_module(module), model)(place)
    save(data, place.folder)


if __name__ == "__main__":
    main()
