"""The documents of a compile written by hand, and their report as a page that checks itself."""

import copy
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from ptqc.artifact.report import render

VOID = {"meta", "br", "img"}
CHANGED: dict[str, Any] = {
    "unit": "nat", "of": 32,
    "samples": [
        {
            "sample": "samples[7] (cat.jpg)", "loss": 0.03, "pictures": {"input": "data:image/jpeg;base64,AAAA"},
            "outputs": [
                {
                    "output": "y", "place": place, "float": [[281, 0.6], [282, 0.3]],
                    "compiled": [[282, 0.5], [281, 0.4]],
                }
                for place in ("", "0, 17")
            ],
        }
    ],
}  # fmt: skip
TIMES = {
    "latency": {"float_ms": 4.0, "compiled_ms": 1.6, "speedup": 2.5, "low": 2.4, "high": 2.6, "rounds": 12, "batch": 1},
}


@dataclass(frozen=True)
class Documents:
    """Arguments of render."""

    manifest: dict[str, Any]
    plan: dict[str, Any]
    sensitivity: dict[str, Any]
    times: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(TIMES))
    changed: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(CHANGED))

    def html(self) -> str:
        return render(self.manifest, self.plan, self.sensitivity, self.times, self.changed, SWEEP)

    def page(self) -> "Page":
        page = Page()
        page.feed(self.html())
        page.close()
        assert page.open == []
        return page


@dataclass
class Page(HTMLParser):
    """Checks the nesting and collects what the tests ask for."""

    open: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str]] = field(default_factory=list)
    content: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.content.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.content).split())


def weight(i: int, name: str) -> dict[str, Any]:
    elements = 1000 * (1 + i % 7)
    candidates = [
        {"format": f"int{b}", "bytes": elements * b // 8 + 90, "loss": (1 + i) * 1e-3 * 4.0**-b, "error": 4.0**-b}
        for b in range(2, 8)
    ]
    candidates.append({"format": "float16", "bytes": elements * 2 + 40, "loss": 0.0, "error": 0.0})
    return {"weight": f"w{i}", "elements": elements, "layers": {name: 50 * elements}, "candidates": candidates}


def documents(count: int = 5, name: str = "/features/conv{}") -> Documents:
    """A compile of `count` layers that take int2 … int7 in turn."""
    names = [name.replace("{}", str(i)) for i in range(count)]
    weights = [weight(i, names[i]) for i in range(count)]
    analysis = [
        {"weight": f"w{i}", "format": f"int{2 + i % 6}", "layers": {names[i]: "float" if i % 10 == 3 else "integer"}}
        for i in range(count)
    ]
    chosen = [
        next(c for c in w["candidates"] if c["format"] == d["format"]) for w, d in zip(weights, analysis, strict=True)
    ]
    planned = sum(c["bytes"] for c in chosen) + 900 + 300
    original = 4 * sum(w["elements"] for w in weights) + 2000
    return Documents(
        manifest(planned, original, sum(c["loss"] for c in chosen), names),
        {"version": 1, "weights": analysis, "activations": [site(name) for name in names]},
        {
            "loss_unit": "nat",
            "weights": weights,
            "activations": [{"site": name, "loss": 1e-5, "quantized": i % 10 != 3} for i, name in enumerate(names)],
            "fixed_bytes": 900,
            "shared_bytes": {"L2": 300},
            "frontier": [{"bytes": planned * k // 4, "loss": 0.1 / 10**k} for k in range(2, 8)],
        },
    )


def loss_budget(unit: str, lost: float, bound: float, *, kept: bool) -> dict[str, Any]:
    """Of two plans; the second one failed where the first is kept."""
    judged = {"lost": lost, "bound": bound, "samples": 945, "method": "Clopper-Pearson"}
    measured = {"lost": 0.003, "bound": 0.04, "samples": 64, "method": "Clopper-Pearson"}
    built = {"limit": 1e-3, "predicted": 9e-4, "bytes": 4321, "measured": measured, "judged": judged}
    return {
        "budget": f"99{unit}", "unit": unit, "limit": 0.01, "predicted": 9e-4, "predicted_unit": "nat",
        "measured": measured, "judged": judged, "confidence": 0.9, "kept": kept,
        "samples_needed": None if kept else 1234, "delivered": 0, "rounds": [built, {**built, "judged": None}],
    }  # fmt: skip


SWEEP: dict[str, Any] = {
    "unit": "nat", "original_bytes": 50_000, "float_ms": 2.5, "runtime": "a runtime", "asked": 3,
    "points": [
        {
            "budget": None, "limit": size, "bytes": size, "predicted": 10 / size, "loss": 12 / size,
            "top1_agreement": None if size == 4000 else 0.98, "sqnr_db": 20.0, "held_back_samples": 64,
            "milliseconds": 1.25,
        }
        for size in (3000, 4000, 6000)
    ],
}  # fmt: skip


def site(name: str) -> dict[str, Any]:
    return {"site": name, "tensors": [name], "format": "uint8", "scale": 0.01, "zero_point": 3}


def note(step: str, subject: str, message: str, level: str = "info") -> dict[str, Any]:
    return {"step": step, "subject": subject, "message": message, "level": level}


def manifest(planned: int, original: int, loss: float, names: list[str]) -> dict[str, Any]:
    return {
        "ptqc": "0.1.0",
        "libraries": {"onnxruntime": "1.31.1", "numpy": "2.4.6"},
        "source": {"name": "model.onnx", "bytes": original, "sha256": "5e" * 32, "weights": (original - 2000) // 4},
        "calibration": {"samples": 128, "sha256": "ca" * 32},
        "options": {"bits": [2, 3, 4, 5, 6, 7, 8], "allow_8bit": False, "seed": 0},
        "budget": "13%",
        "file": {
            "bytes": planned - 7, "bytes_told_to_solver": planned, "opset": 18, "ir_version": 8,
            "oldest_onnxruntime": "1.16",
        },
        "allocation": {
            "status": "optimal", "loss": loss, "unit": "nat", "bound": loss, "gap": 0.0, "limit": planned + 50,
            "price_of_one_percent": loss / 3, "smallest_bytes": planned // 2,
        },
        "loss_budget": loss_budget("%same", 0.004, 0.0098, kept=True),
        "latency": {
            "budget": "2 ms", "budget_ms": 2.0, "runtime": "a runtime", "predicted_ms": 1.95, "measured_ms": 1.9,
            "float_ms": 4.5, "conversions": {"tensors": 2, "predicted_us": 30.0, "measured_us": 31.0}, "times": {},
            "operators": [
                {
                    "node": name, "operator": "Conv", "compute": "integer", "predicted_us": 120.5,
                    "measured_us": 118.0, "float_us": 300.0, "integer_us": 120.5,
                }
                for name in names
            ],
        },
        "memory": {
            "runtime": "a runtime",
            "weights_bytes": 1_234_567,
            "run_bytes": 345_678,
            "predicted_run_bytes": 333_333,
            "needed_bytes": 1_580_245,
            "budget": "1,600,000 B of memory",
            "limit_bytes": 1_600_000,
        },
        "flash": {
            "budget": "64,000 B of flash",
            "limit_bytes": 64_000,
            "used_bytes": 63_000,
            "constant_bytes": 58_000,
            "code_bytes": 4_000,
            "structure_bytes": 1_000,
            "compiler": "gcc -O2",
            "weight_bytes": 58_000,
        },
        "ram": {
            "budget": "20,000 B of RAM",
            "limit_bytes": 20_000,
            "used_bytes": 16_650,
            "arena_bytes": 16_112,
            "input_and_output_bytes": 538,
            "peak": "y",
            "alive": [["x", 8_000], ["y", 8_000]],
        },
        "caches": {
            "budget": "25 % of the caches", "limit_bytes": 260, "bytes": 250, "float_bytes": 1024, "places": 8,
            "unit": "nat", "loss": 0.002,
            "caches": [
                {
                    "name": "past_key", "form": "int8", "inputs": ["past_key", "past_key.scale"], "bytes": 250,
                    "float_bytes": 1024, "loss": 0.0015,
                }
            ],
        },
        "weights_by_format": {},
        "float_operators": {"Conv": 1},
        "activation_loss": 1e-5,
        "verification": {
            "operators": {"QLinearConv": 4}, "integer_nodes": 4, "kernels_compared": 4, "codes_compared": 12345,
            "output_difference": 1e-7,
        },
        "results": {
            "held_back_samples": 32, "loss": 4e-4, "loss_unit": "nat", "top1_agreement": 0.984, "sqnr_db": 22.5,
            "float_score": 91.2, "compiled_score": 90.95,
            "outputs": [
                {
                    "name": names[-1], "judged_as": "boxes and scores, channels on axis 1", "loss": 0.5,
                    "loss_unit": "nat", "losses": {"scores": 0.3, "values (channels 0 to 3)": 0.02},
                    "units": {"scores": "nat", "values (channels 0 to 3)": "relative squared error"},
                    "figures": [{"name": "SQNR", "value": 27.1, "text": "SQNR of scores 27.1 dB", "low": False}],
                },
            ],
        },
        "measurements": "ee" * 32,
        "cpu": {"saturates_without_vnni": False, "session_option_without_vnni": {}},
        "targets": {
            "cpu": {
                "weights_bytes": 23456,
                "libraries": [{
                    "isa": "avx2", "cpu_features": ["avx2", "fma"], "bytes": 104112, "constant_bytes": 12345,
                    "kernels": 7, "steps": {"dense": 8, "add": 3}, "workspace_bytes": 67904, "loaded_bytes": 45678,
                    "low_bit_weights": "unpacked when the library is loaded",
                    "roundings_of_float_parts": [f"{names[0]}_q"],
                    "verification": {
                        "kernels_compared": 11, "integers_compared": 54321, "reals_compared": 60,
                        "end_to_end_integers": 54321, "end_to_end_different": {f"{names[-1]}_q": 17},
                    },
                }],
            },
            "qdq": {
                "bytes": 34567,
                "runtimes": {
                    "openvino": {
                        "title": "OpenVINO 9", "note": "", "loss": 0.0123, "packed_loss": 0.0111, "unit": "nat",
                        "samples": 4, "placement": "6 of 7 layers on integers",
                    },
                    "qnn": {"title": "Qualcomm HTP", "note": "not verified: not asked for"},
                },
            },
            "listing": {"operators": 1234, "in_order": True, "share": 0.12345, "more": [1, 2], "kind": "text"},
        },
        "notes": [
            *(note("flatten", name, "Reshape is now Flatten") for name in names[:5]),
            *(note("lower", name, "Conv computes in float: it would cost too much") for name in names[3:4]),
        ],
    }  # fmt: skip
