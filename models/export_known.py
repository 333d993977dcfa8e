"""Export well-known networks to ONNX: `python models/export_known.py NAME [--out DIR] [--random-weights]`.

Needs torch and the package that defines the network (`--list` says which); that package downloads trained weights.
`--random-weights` needs no network connection and serves to try shapes, sizes and speed, not accuracy.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OPSET = 17
TOKENS = 128


@dataclass(frozen=True)
class Known:
    """A network that another package defines.

    build(package, trained): the torch module, in inference mode.
    """

    package: str
    inputs: tuple[str, ...]
    build: Callable[[Any, bool], Any]


def _torchvision(name: str) -> Known:
    def build(package: Any, trained: bool) -> Any:
        return package.models.get_model(name, weights="DEFAULT" if trained else None)

    return Known("torchvision", ("input",), build)


def _timm(name: str) -> Known:
    return Known("timm", ("input",), lambda package, trained: package.create_model(name, pretrained=trained))


def _bert(name: str, **sizes: int) -> Known:
    def build(package: Any, trained: bool) -> Any:
        plain = {"attn_implementation": "eager"}
        if trained:
            return _last_hidden_state(package.BertModel.from_pretrained(name, **plain))
        return _last_hidden_state(package.BertModel(package.BertConfig(**sizes, **plain)))

    return Known("transformers", ("input_ids", "attention_mask"), build)


def _last_hidden_state(encoder: Any) -> Any:
    """The encoder with two positional inputs and one output: the tracer cannot pass its many keyword arguments."""
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    return Encoder()


NETWORKS = {
    "resnet18": _torchvision("resnet18"),
    "resnet50": _torchvision("resnet50"),
    "mobilenet_v2": _torchvision("mobilenet_v2"),
    "mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "efficientnet_b0": _torchvision("efficientnet_b0"),
    "vit_tiny": _timm("vit_tiny_patch16_224"),
    "bert_mini": _bert(
        "google/bert_uncased_L-4_H-256_A-4",
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    ),
}


def _require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        sys.exit(f"{package} is not installed in this environment: pip install {package}")


def _example(torch: Any, known: Known) -> tuple[Any, ...]:
    if known.inputs == ("input",):
        return (torch.zeros(2, 3, 224, 224),)
    return tuple(torch.ones(2, TOKENS, dtype=torch.int64) for _ in known.inputs)


def export(name: str, folder: Path, trained: bool) -> Path:
    """Write NAME.onnx with a symbolic batch (and sequence) axis; the path that was written."""
    known = NETWORKS[name]
    torch, package = _require("torch"), _require(known.package)
    torch.manual_seed(0)
    path = folder / f"{name}.onnx"
    axes = {0: "N"} if known.inputs == ("input",) else {0: "N", 1: "T"}
    torch.onnx.export(
        known.build(package, trained).eval(),
        _example(torch, known),
        str(path),
        input_names=list(known.inputs),
        output_names=["output"],
        dynamic_axes={**dict.fromkeys(known.inputs, axes), "output": axes},
        opset_version=OPSET,
        dynamo=False,
    )
    return path


def main() -> None:
    """Export one network, or list what can be exported."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=NETWORKS)
    parser.add_argument("--list", action="store_true", help="names, and the package each one needs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "models", help="default: build/models")
    parser.add_argument("--random-weights", action="store_true", help="download nothing")
    options = parser.parse_args()
    if options.list or options.name is None:
        print("\n".join(f"{name:20} {known.package}" for name, known in NETWORKS.items()))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    print(export(options.name, options.out, trained=not options.random_weights))


if __name__ == "__main__":
    main()
