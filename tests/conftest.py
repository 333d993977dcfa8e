"""Fixtures that tests of several rooms share: the project's own networks, and real models where they are at hand."""

import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"


@pytest.fixture(scope="session")
def digits_model_path() -> Path:
    """The float network that the README compiles."""
    return MODELS / "digits_resnet_dw.onnx"


@pytest.fixture(scope="session")
def digits_calibration() -> np.ndarray:
    """Unlabelled inputs (512, 1, 16, 16) float32."""
    return np.load(MODELS / "digits_calibration.npz")["input"]


@pytest.fixture(scope="session")
def digits_evaluation() -> tuple[np.ndarray, np.ndarray]:
    """Held-out inputs (1796, 1, 16, 16) float32 and labels (1796,)."""
    arrays = np.load(MODELS / "digits_evaluation.npz")
    return arrays["input"], arrays["labels"]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real models and labelled data: PTQC_SHARED_DATA, or shared/data beside the repository."""
    named = os.environ.get("PTQC_SHARED_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (folder / "models").is_dir():
        pytest.skip(f"needs real models: {folder} has no models/ (set PTQC_SHARED_DATA to a folder that has)")
    return folder
