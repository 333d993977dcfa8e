"""What packed caches of keys and values lose, and their bytes: `python benchmarks/kv_caches.py [--texts 8] [--record]`.

`models/tiny_llama.py` reads texts that it drew itself; stories260K with a cache (`models/cached_stories.py`), where
real models are at hand, reads stories. Every token is read by a run of its own in ONNX Runtime, whose caches are what
the run before it left. Losses are mean divergences (nat) of the next token from that of the float model at the same
place of the same text. Other texts say how channels are sorted, and decide what a budget chooses. --record
puts the rows into figures/kv_caches.json.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import tasks
from harness import FIGURES, ROOT, Column, command_line, machine, number, percent, print_results, record, write_results

sys.path += [str(ROOT / "examples"), str(ROOT / "models")]

import cached_stories
import generate
import tiny_llama

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.kv_cache.form import CacheForm
from ptqc.kv_cache.known import NAMES
from ptqc.passes.allocate.constraints.caches import CacheBudget
from ptqc.passes.kv_cache.choose import CacheStatistics, chosen
from ptqc.passes.kv_cache.wrap import pack_caches

BUDGETS = (30, 25, 20, 16)  # percent
DRAWN, SAMPLES = 4, 128
COLUMNS = (
    Column("network", "task"),
    Column("form", "budget"),
    Column("chosen", "forms"),
    Column("bytes a token", "bytes", number(0)),
    Column("of float32", "share", percent(1)),
    Column("keys alone", "keys", number(5)),
    Column("values alone", "values", number(5)),
    Column("both", "both", number(5)),
    Column("same top token", "same", percent(1)),
)
Forms = Mapping[str, CacheForm]


@dataclass(frozen=True)
class Decoder:
    """A decoder, texts that something is chosen by, and texts that judge."""

    name: str
    model: onnx.ModelProto
    tuning: Sequence[Sequence[int]]
    texts: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Read:
    """What a decoder makes of texts: log chances (tokens, vocabulary), and bytes of its caches for one token."""

    chances: np.ndarray
    bytes: float


def decoders(count: int, length: int) -> Iterator[Decoder]:
    """Those that are at hand, with so many texts."""
    drawn = tiny_llama.build()
    texts = [_drawn(drawn, seed, length) for seed in range(DRAWN + count)]
    yield Decoder("tiny_llama", drawn, texts[:DRAWN], texts[DRAWN:])
    task = tasks.all_tasks().get("stories260K")
    if task is not None:
        model = cached_stories.build(onnx.load(task.path))
        tuning = [feeds["ids"][0].tolist() for feeds in task.calibration(DRAWN)]
        yield Decoder("stories260K", model, tuning, [text[:length] for text in _judging(task)[:count]])


def _drawn(model: onnx.ModelProto, seed: int, length: int) -> list[int]:
    """A text that the model draws."""
    random = np.random.default_rng(seed)
    choose = partial(generate.sampled, random=random, temperature=1.0)
    with tempfile.TemporaryDirectory() as folder:
        tokens = generate.generated(generate.Decoder(_opened(model, Path(folder))), [seed], choose)
        return [seed, *(token for token, _ in zip(tokens, range(length - 1), strict=False))]


def _judging(task: tasks.Task) -> list[list[int]]:
    """The texts that a task is scored on."""
    seen: list[list[int]] = []

    def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        seen.append(feeds["ids"][0].tolist())
        return [np.zeros((*feeds["ids"].shape, 512), np.float32)]

    task.score(run)
    return seen


def _opened(model: onnx.ModelProto, folder: Path) -> generate.Model:
    onnx.save(model, folder / "model.onnx")
    return generate.in_onnxruntime(folder / "model.onnx", 1)


def read(model: onnx.ModelProto, texts: Sequence[Sequence[int]], folder: Path | None = None) -> Read:
    """All texts, token by token. folder: where feeds are recorded."""
    chances: list[np.ndarray] = []
    with tempfile.TemporaryDirectory() as temporary:
        opened = _opened(model, Path(temporary))
        for text in texts:
            decoder = generate.Decoder(opened, generate.recorder(folder)) if folder else generate.Decoder(opened)
            chances += [_log_softmax(decoder.read([token])) for token in text]
    return Read(np.array(chances), sum(array.nbytes for array in decoder.caches.values()) / len(texts[-1]))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def packed(decoder: Decoder, forms: Forms) -> Read:
    """What the decoder makes of the judging texts with caches in these forms."""
    model = ir.from_proto(decoder.model)
    pack_caches(model, forms)
    return read(ir.to_proto(model), decoder.texts)


def rows(decoder: Decoder, folder: Path) -> Iterator[dict[str, Any]]:
    """One for each form, and one for each budget."""
    seen = CacheStatistics(ir.from_proto(decoder.model), _samples(decoder, folder))
    reference = read(decoder.model, decoder.texts)
    yield _row(decoder, "float32", reference, reference)
    for name in NAMES:
        forms = {cache: form for cache in seen.caches if (form := seen.form(cache, name)) is not None}
        if any(form.refusal(seen.caches[cache].channels or 0) for cache, form in forms.items()):
            continue
        parts = {kind: {cache: form for cache, form in forms.items() if kind in cache} for kind in ("key", "value")}
        alone = {f"{kind}s": _loss(reference, packed(decoder, part)) for kind, part in parts.items()}
        yield {**_row(decoder, name, reference, packed(decoder, forms)), **alone}
    for budget in BUDGETS:
        chosen_forms = chosen(seen, {}, CacheBudget(budget, "%"))
        counts: dict[str, int] = {}
        for name, form in chosen_forms.forms.items():
            key = f"{'keys' if 'key' in name else 'values'} {'float32' if form is None else form.name}"
            counts[key] = counts.get(key, 0) + 1
        counted = ", ".join(f"{count} {key}" for key, count in sorted(counts.items()))
        forms = {name: form for name, form in chosen_forms.forms.items() if form is not None}
        yield {**_row(decoder, f"{budget}%cache", reference, packed(decoder, forms)), "forms": counted}


def _samples(decoder: Decoder, folder: Path) -> Samples:
    read(decoder.model, decoder.tuning, folder / "feeds")
    specs = input_specs(ir.from_proto(decoder.model))
    return collect(str(folder / "feeds"), specs, folder / "samples", SAMPLES)


def _row(decoder: Decoder, form: str, reference: Read, result: Read) -> dict[str, Any]:
    same = np.mean(reference.chances.argmax(-1) == result.chances.argmax(-1))
    return {
        "task": decoder.name,
        "budget": form,
        "bytes": result.bytes,
        "share": result.bytes / reference.bytes,
        "both": _loss(reference, result),
        "same": float(same),
    }


def _loss(reference: Read, result: Read) -> float:
    gap = reference.chances - result.chances
    return float((np.exp(reference.chances) * gap).sum(-1).mean())


def main() -> None:
    """Print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--texts", type=int, default=8, help="how many texts judge")
    parser.add_argument("--length", type=int, default=128, help="tokens of each")
    parser.add_argument("--record", action="store_true", help="put the rows into figures/kv_caches.json")
    options = parser.parse_args()
    table: list[dict[str, Any]] = []
    for decoder in decoders(options.texts, options.length):
        with tempfile.TemporaryDirectory() as folder:
            table += rows(decoder, Path(folder))
    facts = {**machine(), "texts": options.texts, "length": options.length}
    print_results(table, COLUMNS, facts)
    write_results(options.out, table, facts)
    if options.record:
        record(FIGURES / "kv_caches.json", table, facts)


if __name__ == "__main__":
    main()
