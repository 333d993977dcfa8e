"""Charts of docs/pictures, drawn from the data files in benchmarks/figures and docs/data; `figures.py` writes them.

SVG without scripts or fonts. Greys and blues that are seen on white and on black.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from html import escape

from harness import FIGURES, ROOT, Row, recorded

BLUE, LIGHT, ORANGE, GREY = "#2f7fd1", "#9cc4ec", "#d98e00", "#808080"
# What charts, and tables of pages for users, call the networks.
NAMES = {
    "mobilenetv2_imagenette": "MobileNetV2",
    "resnet50v2_c4_imagenette": "ResNet-50 v2",
    "squeezenet1_1": "SqueezeNet 1.1",
    "mobilenet_v1_075_224": "MobileNetV1 0.75",
    "cifar10_resnet20": "ResNet-20",
    "cifar10_resnet56": "ResNet-56",
    "mlperftiny_ic_resnet8": "ResNet-8",
    "mlperftiny_kws_dscnn": "DS-CNN, keywords",
    "mlperftiny_vww_mbv1_025_96": "MobileNetV1, persons",
    "mlperftiny_ad_autoencoder": "autoencoder",
    "yolox_nano_416": "YOLOX-nano",
    "espcn_x3_224": "ESPCN",
    "stories260K": "stories260K",
    "silero_vad_16k": "Silero VAD",
    "digits_resnet_dw": "ResNet, digits",
    "minilm_l6_v2_emb": "MiniLM-L6-v2",
}
# Tools of the chart of peers, at 4 bits a weight; COMPARED are all networks that they were tried on.
PEERS = {"onnxruntime int4-weights": "ONNX Runtime, int4 weights", "aimet w4a8": "AIMET, w4a8 (min/max)"}
# Networks of the chart of agreement.
FOLLOWED = {
    "resnet50v2_c4_imagenette": BLUE,
    "mobilenetv2_imagenette": LIGHT,
    "cifar10_resnet20": "#123d6b",
    "squeezenet1_1": ORANGE,
    "mobilenet_v1_075_224": GREY,
    "mlperftiny_kws_dscnn": "#8a5a9e",
}
# Instructions that latency is shown for, with the color of their bars.
KERNELS = {"AVX-512 VNNI": BLUE, "AVX2": ORANGE}
COMPARED = (
    *("mobilenetv2_imagenette", "squeezenet1_1", "mlperftiny_ic_resnet8", "cifar10_resnet20"),
    "mlperftiny_kws_dscnn",
)


@cache
def rows(name: str) -> list[Row]:
    """The rows of a data file."""
    return [*recorded(FIGURES / f"{name}.json")]


def text(x: float, y: float, content: str, anchor: str = "start", color: str = GREY) -> str:
    """An element of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(content)}</text>'


def bar(x: float, y: float, width: float, height: float, color: str) -> str:
    """A filled box."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{color}"/>'


def line(x1: float, y1: float, x2: float, y2: float, dashed: bool = False) -> str:
    """A thin line."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{GREY}" stroke-width="1" fill="none"{dash}/>'


def page(width: int, height: int, title: str, body: Sequence[str]) -> str:
    """The drawing. title: read aloud in its place."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
    return f'{head}font-size="12">\n<title>{escape(title)}</title>\n' + "\n".join(body) + "\n</svg>\n"


def peers() -> str:
    """Points lost at the bytes of 4-bit weights: two tools, and ptqc in no more bytes."""
    left, wide, tall, most = 130, 500, 14, 70
    body = [text(left, 16, "points of the score lost, at no more bytes (shorter is better)")]
    for place, (label, color) in enumerate([*zip(PEERS.values(), (ORANGE, GREY), strict=True), ("ptqc", BLUE)]):
        body += [bar(left + 210 * place, 26, 10, 10, color), text(left + 14 + 210 * place, 35, label)]
    down = 60.0
    for task in COMPARED:
        several = {row["peer"]: row for row in rows("peers") if row["task"] == task}
        body.append(text(left - 8, down + 1.7 * tall, NAMES[task], "end"))
        fewest = min((several[peer] for peer in PEERS), key=lambda row: row["ptqc_bytes"])
        losses = [-several[peer]["difference"] for peer in PEERS] + [-fewest["ptqc_difference"]]
        for loss, color in zip(losses, (ORANGE, GREY, BLUE), strict=True):
            width = wide * max(loss, 0) / most
            value = f"{loss:.1f}" if loss >= 0 else f"gained {-loss:.1f}"
            body += [bar(left, down, width, tall - 3, color), text(left + width + 6, down + 10, value)]
            down += tall
        down += tall
    return page(left + wide + 60, round(down), "points lost at the bytes of 4-bit weights, by tool", body)


def at_13(task: str) -> list[Row]:
    """Latencies of a network at 13 % of the bytes, on one thread."""
    return [row for row in rows("latency") if (row["task"], row["budget"], row["threads"]) == (task, "13%", 1)]


def latency() -> str:
    """Latency at 13 % of the bytes over that of float, by network and instructions of the processor."""
    ratios = {task: {row["kernels"]: row["ratio"] for row in at_13(task)} for task in NAMES if at_13(task)}
    left, wide, tall, most = 145, 465, 13, 1.2
    body = [text(left, 16, "latency at 13 % of the bytes, in ONNX Runtime; the line is the float model")]
    for place, (kernels, color) in enumerate(KERNELS.items()):
        body += [bar(left + 160 * place, 26, 10, 10, color), text(left + 14 + 160 * place, 35, kernels)]
    down = 50.0
    for task, several in sorted(ratios.items(), key=lambda item: min(item[1].values())):
        for kernels, color in KERNELS.items():
            if kernels in several:
                width = wide * several[kernels] / most
                body += [bar(left, down, width, tall - 2, color)]
                body.append(text(left + width + 6, down + 10, f"{several[kernels]:.2f}"))
                down += tall
        body.append(text(left - 8, down - tall * len(several) / 2 + 3, NAMES[task], "end"))
        down += tall / 2
    body.append(line(left + wide / most, 42, left + wide / most, down, dashed=True))
    return page(left + wide + 60, round(down + 6), "latency over that of the float model, by network", body)


def agreement() -> str:
    """Predictions that stay the same, by the share of the bytes."""
    measured: dict[str, list[tuple[float, float]]] = {task: [] for task in FOLLOWED}
    for row in rows("accuracy"):
        if row["task"] in FOLLOWED:
            measured[row["task"]].append((row["bytes"] / row["float_bytes"], row["top1_agreement"]))
    left, top, wide, tall = 60, 40, 420, 240
    low, high, least = 0.07, 0.26, 0.75

    def across(share: float) -> float:
        return left + wide * (share - low) / (high - low)

    def down(value: float) -> float:
        return top + tall * (1 - (value - least) / (1 - least))

    body = [text(left, 20, "predictions that stay the same, by bytes of the float file")]
    for share in (0.08, 0.10, 0.13, 0.20, 0.25):
        body += [line(across(share), top + tall, across(share), top + tall + 4)]
        body += [text(across(share), top + tall + 18, f"{share:.0%}", "middle")]
    for value in (0.75, 0.80, 0.85, 0.90, 0.95, 1.0):
        body += [
            line(left, down(value), left + wide, down(value)),
            text(left - 6, down(value) + 4, f"{value:.0%}", "end"),
        ]
    below = top + tall + 44
    for place, (task, points) in enumerate(measured.items()):
        path = " ".join(f"{across(share):.1f},{down(value):.1f}" for share, value in sorted(points))
        body.append(f'<polyline points="{path}" fill="none" stroke="{FOLLOWED[task]}" stroke-width="2"/>')
        body += [
            f'<circle cx="{across(s):.1f}" cy="{down(v):.1f}" r="2.5" fill="{FOLLOWED[task]}"/>' for s, v in points
        ]
        x, y = left + 150 * (place % 3), below + 18 * (place // 3)
        body += [bar(x, y - 9, 10, 10, FOLLOWED[task]), text(x + 14, y, NAMES[task])]
    return page(left + wide + 20, below + 36, "predictions that stay the same, by size", body)


# Formats of the chart: those that ptqc chooses from, by family, and a few others.
FAMILIES = {
    "int": ("int", GREY),
    "codebook": ("codebook", LIGHT),
    "pairs": ("pairs", ORANGE),
    "tcq": ("trellis codes", BLUE),
    "entropy": ("entropy codes", "#123d6b"),
}
OTHERS = ("NVFP4", "MXFP4 E2M1, floor", "FP8 E4M3", "FP8 E5M2", "FP6 E2M3")


def formats() -> str:
    """Signal to noise of weights by bits, mean of six networks."""
    with (ROOT / "docs" / "data" / "number_formats.csv").open(encoding="utf-8") as file:
        table = {row["format"]: (float(row["bits"]), float(row["dB"])) for row in csv.DictReader(file)}
    left, top, wide, tall, most, highest = 50, 40, 520, 280, 9, 45

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return left + wide * point[0] / most, top + tall * (1 - point[1] / highest)

    body = [text(left, 20, "signal to noise in dB, by bits per weight (higher is better)")]
    for bits in range(1, most):
        body.append(text(place((bits, 0))[0], top + tall + 18, f"{bits}", "middle"))
    for noise in range(10, highest, 10):
        y = place((0, noise))[1]
        body += [line(left, y, left + wide, y), text(left - 6, y + 4, f"{noise}", "end")]
    for number, (family, (label, color)) in enumerate(FAMILIES.items()):
        points = sorted(
            at for name, at in table.items() if name.rstrip("0123456789.") == family and name != "codebook5"
        )
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, points))
        body.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        y = top + 14 + 18 * number
        body += [bar(left + 14, y - 9, 10, 10, color), text(left + 28, y, label)]
    for name in OTHERS:
        x, y = place(table[name])
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="none" stroke="{GREY}"/>')
        body.append(text(x + 6, y + 12, name.removesuffix(", floor").removesuffix(" E2M1")))
    return page(left + wide + 40, top + tall + 30, "signal to noise of number formats by bits", body)


CHARTS: dict[str, Callable[[], str]] = {
    "peers": peers,
    "latency": latency,
    "agreement": agreement,
    "formats": formats,
}


def drawn() -> Iterator[tuple[str, str]]:
    """Names of files in docs/pictures, and what they hold."""
    for name, draw in CHARTS.items():
        yield f"{name}.svg", draw()
