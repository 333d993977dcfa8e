"""The scripts in benchmarks/ are no package: they find one another beside themselves, as when they are run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
