"""Text from a decoder, token by token: `python examples/generate.py MODEL --tokenizer tokenizer.json --prompt TEXT`.

MODEL is an ONNX file, or a folder that `ptqc compile` wrote, of which `--native` runs the library. Without a tokenizer
the prompt is token numbers ("3 14 15"), and so is what comes out. Three kinds of models are known by their inputs:

* without a cache: every run reads the whole text; a model of a fixed length, as libraries have, what fits into it;
* with a cache that grows (`past…` with an open axis): every run reads what is new;
* with a cache of a fixed size: a run reads as many tokens as the model takes, and their places are an input.

A decoder behind an encoder (T5, Whisper) needs what that made: `--given FILE.npz` with `encoder_hidden_states`.

Needs onnxruntime and NumPy; with `--native` ptqc, with `--tokenizer` the library tokenizers. `--record FOLDER` saves
what the model is given at each step as calibration samples: `ptqc compile MODEL --calibration FOLDER`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], Mapping[str, np.ndarray]]
TYPES = {
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}

# Words in the names of inputs that have a number for each token, and are no token.
NOT_TOKENS = ("mask", "pos", "type", "cache")


@dataclass(frozen=True)
class Input:
    """An input of a model; a size that it leaves open is None."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Model:
    """How a model is run: `run` gives its outputs by name."""

    inputs: Sequence[Input]
    outputs: Sequence[str]
    run: Run


def in_onnxruntime(path: Path, threads: int = 0) -> Model:
    """An ONNX file."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    inputs = [
        Input(
            value.name,
            np.dtype(TYPES.get(value.type, np.bool_)),
            tuple(size if isinstance(size, int) else None for size in value.shape),
        )
        for value in session.get_inputs()
    ]
    return Model(inputs, names, lambda feeds: dict(zip(names, session.run(None, feeds), strict=True)))


def natively(folder: Path, threads: int = 0) -> Model:
    """The library of an artifact."""
    import ptqc

    library = ptqc.load(folder).native(threads)
    inputs = [
        Input(value.name, value.dtype, tuple(size if isinstance(size, int) else None for size in value.shape))
        for value in library.interface.inputs
    ]
    return Model(inputs, [value.name for value in library.interface.outputs], library.run)


class Full(Exception):
    """The model has no room for another token."""


class Missing(Exception):
    """The model reads something that nobody gave."""


@dataclass
class Decoder:
    """A model at work on one text.

    place: how many tokens it has read. watch: is shown what each run is given. given: inputs that stay the same, as
    what an encoder made. Raises Missing for one of an encoder that is not among them.
    """

    model: Model
    watch: Callable[[Feeds], None] = lambda _feeds: None
    given: Mapping[str, np.ndarray] = field(default_factory=dict)
    place: int = 0
    text: list[int] = field(default_factory=list)
    caches: Feeds = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_name = {given.name: given for given in self.model.inputs}
        self.pasts = {name: _present(name, self.model.outputs) for name in by_name if "past" in name}
        others = [given for given in self.model.inputs if given.name not in self.pasts]
        self.always = self._always([given.name for given in others])
        others = [given for given in others if given.name not in self.always]
        self.tokens = next(given for given in others if not any(word in given.name for word in NOT_TOKENS))
        self.others = [given for given in others if given is not self.tokens]
        self.logits = next(name for name in self.model.outputs if name not in self.pasts.values())
        self.caches = {
            name: np.zeros([_size(by_name[name], axis) for axis in range(4)], by_name[name].dtype)
            for name in self.pasts
        }
        # A cache whose axis of places is of a fixed size.
        self.capacity = next((by_name[name].shape[2] for name in self.pasts), None)
        self.length = self.tokens.shape[1]

    def _always(self, names: Sequence[str]) -> Feeds:
        """What is given, and where that says nothing else, a mask that hides nothing of an encoder."""
        found = {name: self.given[name] for name in names if name in self.given}
        heard = next((array for name, array in found.items() if "encoder" in name and "mask" not in name), None)
        missing = [name for name in names if "encoder" in name and name not in found]
        for name in sorted(missing, key=lambda name: "mask" in name):
            if heard is None or "mask" not in name:
                raise Missing(f"the model reads {name}, which an encoder makes: give it with --given FILE.npz")
            found[name] = np.ones(heard.shape[:2], np.int64)
        return found

    def read(self, new: Sequence[int]) -> np.ndarray:
        """The logits (tokens,) of what comes next. Raises Full."""
        self.text += new
        if not self.pasts:
            return self._read_all()
        step = self.length or len(new)
        found = [self._read_some(new[start : start + step]) for start in range(0, len(new), step)]
        return found[-1]

    def _read_all(self) -> np.ndarray:
        """Without a cache: the text, or its end, in front of padding that no token of it looks at."""
        text = self.text if self.length is None else self.text[-self.length :]
        outputs = self._run(text, self.length or len(text), 0)
        return outputs[self.logits][0, len(text) - 1]

    def _read_some(self, new: Sequence[int]) -> np.ndarray:
        """What is new, behind what is cached."""
        length = self.length or len(new)
        if self.capacity is not None and self.place + len(new) > self.capacity:
            raise Full(f"its cache has room for {self.capacity} tokens")
        outputs = self._run(new, length, self.place)
        # What is cached of an encoder stays as it is: a model that takes it may give nothing in its place.
        kept = {past for past in self.pasts if "encoder" in past and self.place}
        self.caches |= {past: outputs[present] for past, present in self.pasts.items() if past not in kept}
        self.place += len(new)
        return outputs[self.logits][0, len(new) - 1]

    def _run(self, tokens: Sequence[int], length: int, place: int) -> Mapping[str, np.ndarray]:
        padded = np.zeros((1, length), self.tokens.dtype)
        padded[0, : len(tokens)] = tokens
        feeds = {self.tokens.name: padded, **self.caches, **self.always}
        for given in self.others:
            whole = self.capacity or place + length
            values: np.ndarray
            if "mask" in given.name:
                values = np.arange(whole) < place + len(tokens)
            elif "pos" in given.name:
                values = np.arange(place, place + length)
            elif given.dtype == np.bool_ and len(given.shape) == 1:  # whether the cache is read
                values = np.array(place > 0)
            else:
                values = np.zeros(length)
            feeds[given.name] = values[np.newaxis].astype(given.dtype)
        self.watch(feeds)
        return self.model.run(feeds)


def _present(past: str, outputs: Sequence[str]) -> str:
    """The output that is the past of the next run: past_key_values.0.key is followed by present.0.key."""
    names = [past.replace("past_key_values", "present"), past.replace("past", "present")]
    return next(name for name in names if name in outputs)


def _size(given: Input, axis: int) -> int:
    """Of a cache that is empty: one text, and no place unless their number is fixed."""
    size = given.shape[axis]
    return size if size is not None else 1 if axis == 0 else 0


def sampled(
    logits: np.ndarray, random: np.random.Generator, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0
) -> int:
    """The next token: the likeliest for a temperature of 0, else a drawn one.

    Drawn from the top_k likeliest (0: all), and of these from the fewest that have the share top_p of all probability.
    """
    if temperature <= 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    chances = np.exp((logits[order] - logits[order[0]]).astype(np.float64) / temperature)
    chances /= chances.sum()
    count = int(np.searchsorted(np.cumsum(chances), top_p)) + 1
    kept = chances[:count] / chances[:count].sum()
    return int(random.choice(order[:count], p=kept))


def generated(decoder: Decoder, prompt: Sequence[int], choose: Callable[[np.ndarray], int]) -> Iterator[int]:
    """Tokens behind the prompt, one after the other, until the model is full."""
    new = list(prompt)
    try:
        while True:
            token = choose(decoder.read(new))
            yield token
            new = [token]
    except Full:
        return


def recorder(folder: Path) -> Callable[[Feeds], None]:
    """Saves each step as a calibration sample."""
    folder.mkdir(parents=True, exist_ok=True)

    def save(feeds: Feeds) -> None:
        np.savez(folder / f"{len(list(folder.glob('*.npz'))):06}.npz", **feeds)  # type: ignore[arg-type]

    return save


class Vocabulary:
    """Between texts and token numbers; without a tokenizer numbers are written out."""

    def __init__(self, tokenizer: Path | None) -> None:
        self.tokenizer: Any = None
        if tokenizer is not None:
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(str(tokenizer))
            self.tokenizer.no_padding()
            self.tokenizer.no_truncation()

    def encode(self, text: str) -> list[int]:
        """Token numbers of a text."""
        return [int(word) for word in text.split()] if self.tokenizer is None else self.tokenizer.encode(text).ids

    def pieces(self, tokens: Iterator[int]) -> Iterator[str]:
        """What each token adds to the text: that of all tokens so far, as tokens may share a letter's bytes."""
        seen: list[int] = []
        told = ""
        for token in tokens:
            seen.append(token)
            text = " ".join(map(str, seen)) if self.tokenizer is None else self.tokenizer.decode(seen)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):
                yield text[len(told) :]
                told = text


def until(tokens: Iterator[int], count: int, stop: int | None) -> Iterator[int]:
    """At most so many tokens, up to one that ends the text."""
    for _, token in zip(range(count), tokens, strict=False):
        if token == stop:
            return
        yield token


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the text while it is made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="an ONNX file, or a folder that ptqc compile wrote")
    parser.add_argument("--prompt", required=True, help="the text, or without --tokenizer token numbers")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("--native", action="store_true", help="run the library of the folder")
    parser.add_argument("--tokens", type=int, default=100, help="tokens at most")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default): always the likeliest token")
    parser.add_argument("--top-k", type=int, default=0, help="only the K likeliest")
    parser.add_argument("--top-p", type=float, default=1.0, help="only the likeliest that have this share together")
    parser.add_argument("--stop", type=int, help="the number of the token that ends a text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="save what the model is given at each step")
    parser.add_argument(
        "--given", type=Path, metavar="FILE.npz", help="inputs that stay the same: encoder_hidden_states"
    )
    options = parser.parse_args(arguments)
    vocabulary = Vocabulary(options.tokenizer)
    prompt = vocabulary.encode(options.prompt)
    if not prompt:
        parser.error("the prompt has no token; a text begins with one at least")
    path = options.model / "model.onnx" if options.model.is_dir() else options.model
    model = natively(options.model, options.threads) if options.native else in_onnxruntime(path, options.threads)
    watch = recorder(options.record) if options.record else lambda _feeds: None
    try:
        decoder = Decoder(model, watch, dict(np.load(options.given)) if options.given else {})
    except Missing as error:
        parser.error(str(error))
    random = np.random.default_rng(options.seed)

    def choose(logits: np.ndarray) -> int:
        return sampled(logits, random, options.temperature, options.top_k, options.top_p)

    tokens = until(generated(decoder, prompt, choose), options.tokens, options.stop)
    started, before = time.monotonic(), len(decoder.text)
    for piece in vocabulary.pieces(tokens):
        print(piece, end="", flush=True)
    print()
    seconds = time.monotonic() - started
    print(f"{(len(decoder.text) - before) / seconds:.1f} tokens per second, the prompt's among them", file=sys.stderr)


if __name__ == "__main__":
    main()
