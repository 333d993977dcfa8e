"""What `ptqc help TOPIC` prints: tables that are too long for the help of an option."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptqc import presets
from ptqc.presets import Preset


@dataclass(frozen=True)
class Topic:
    """summary: what it explains. text: gives the whole of it."""

    summary: str
    text: Callable[[], str]


def _budgets() -> str:
    from ptqc.budget import CONSTRAINTS  # loads ONNX Runtime, which the command line does not wait for

    rows = [
        f"  {'' if place else kind.kind:<9} {example:<18} {meaning}"
        for kind in CONSTRAINTS
        for place, (example, meaning) in enumerate(kind.examples.items())
    ]
    return "\n".join(
        [
            "A budget says what the compiled file may cost. Give --budget once for each limit:",
            "",
            "  ptqc compile model.onnx --calibration images/ --budget 13% --budget 2ms -o out/",
            "",
            *rows,
            "",
            '64KB is 64,000 bytes and 64KiB is 65,536: a microcontroller with "64 KB" of flash has 64KiBflash.',
            "A size and a microcontroller's flash and RAM are never exceeded. A file that misses another budget",
            "comes with a warning; with --strict nothing is written and the exit code is 2. Without a budget, the",
            "best file is built.",
            "A loss budget alone gives the smallest of a few files that are built and judged.",
        ]
    )


def _preprocessing() -> str:
    return "\n".join(
        [
            "Image files need the preprocessing that the model was trained with. --preprocessing takes one of these",
            "names, or a TOML file with the same keys; options given as well take precedence:",
            "",
            "  ptqc compile model.onnx --calibration images/ --preprocessing imagenet --crop 299 --resize 342 -o out/",
            "",
            *_table(presets.PREPROCESSING),
            "",
            "A pixel p becomes (p / scale - mean) / std, where scale is 255 if nothing else is said.",
            "Models that take pixels as they are, 0 to 255, need only --scale 1.",
        ]
    )


def _detectors() -> str:
    return "\n".join(
        [
            "Scores and images of detectors need to know how the model writes boxes. --detector takes one of these",
            "names; options given as well take precedence:",
            "",
            "  ptqc eval yolox.onnx out/ --metric map --data images/ --labels instances.json --detector yolox",
            "",
            *_table(presets.DETECTORS),
            "",
            "If the model gives the category ids of a COCO file, add --classes ids. SSD with y before x:",
            "--boxes offsets-yx. Other families: see the options of detectors in `ptqc eval --help`.",
        ]
    )


def _table(known: Mapping[str, Preset]) -> Iterator[str]:
    for one in known.values():
        needs = f" --{one.needs} FILE" if one.needs else ""
        yield f"  {one.name:<12} {one.models}"
        yield f"  {'':<12} {' '.join(_option(*field) for field in one.fields.items())}{needs}"


def _option(name: str, value: Any) -> str:
    """A field as the command line has it."""
    parts = value if isinstance(value, tuple) else (value,)
    text = ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts)
    return f"--{name.replace('_', '-')} {text}"


TOPICS: Mapping[str, Topic] = {
    "budgets": Topic("what a compiled file may cost, and how each kind of budget is written", _budgets),
    "preprocessing": Topic("settings for image files, by the origin of the model", _preprocessing),
    "detectors": Topic("how detectors write boxes, by family", _detectors),
}


def listing() -> str:
    """The topics, with a line each."""
    lines = [f"  {name:<14} {topic.summary}" for name, topic in TOPICS.items()]
    return "\n".join(
        ["ptqc help TOPIC explains:", "", *lines, "", "`ptqc help COMMAND` shows the options of a command."]
    )
