"""The least that a manifest tells, for artifacts that no compile wrote."""

from typing import Any

MANIFEST: dict[str, Any] = {
    "ptqc": "0.1.0",
    "budget": None,
    "source": {"name": "model.onnx", "bytes": 9, "sha256": "00"},
    "file": {"bytes": 5},
    "cpu": {"session_option_without_vnni": {}},
    "golden": {"distances": {}},
    **{key: {} for key in ("calibration", "options", "allocation", "weights_by_format", "float_operators", "results")},
    "verification": {"kernels_compared": 0, "integer_nodes": 0},
    "measurements": "00",
    "notes": [],
    "activation_loss": 0.0,
}
