"""Samples of text: a corpus cut into texts, each of which a tokenizer makes the model's inputs of."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ptqc.calibration.images import IMAGE_SUFFIXES
from ptqc.calibration.inputs import InputRole, InputSpec, roles, shape_text
from ptqc.calibration.sources import (
    ARRAY_SUFFIXES,
    CSV,
    TEXT,
    TEXT_SUFFIXES,
    TEXT_TABLE,
    SampleReader,
    SampleSource,
    TextSettings,
    csv_of_texts,
    files_below,
    lacks_tokenizer,
    spread,
)
from ptqc.errors import UNREADABLE, CalibrationError, PtqcError, UsageError
from ptqc.execution.onnxruntime import Feeds
from ptqc.notes import Note
from ptqc.utils.arguments import one_of, path_of, shown
from ptqc.utils.store import file_digest

Unit = Literal["lines", "paragraphs", "files"]
Overlong = Literal["cut", "split"]
Padding = Literal["none", "full"]
Side = Literal["right", "left"]
CHOICES = {
    "unit": get_args(Unit),
    "overlong": get_args(Overlong),
    "padding": get_args(Padding),
    "padding_side": get_args(Side),
}
SETTINGS = ("length", "padding", "padding_side", "padding_token", "special_tokens")  # that hold for other data as well
JSON = frozenset({".json", ".jsonl"})
LENGTH = 128  # tokens, where neither options nor model nor tokenizer say how many
TEXT_AXES = 2  # samples and tokens
OTHER_SUFFIXES = ARRAY_SUFFIXES | IMAGE_SUFFIXES | {CSV}  # of data that are no texts
ADVICE = "give its samples as arrays, or by module:function"
# How many times longer a tokenizer may make a text; what steps of it do so, and the lists that these stand in.
MOST_GROWTH = 2**16
GROWING = {"ByteLevel": 2, "Metaspace": 2, "Precompiled": 2}
SEQUENCES = ("normalizers", "pretokenizers", "processors")
# Tokens that fill up a text, by the names that tokenizers give them, the commonest first.
FILLERS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>", "<|end_of_text|>")


@dataclass(frozen=True)
class Texts(SampleReader):
    """Text as calibration samples: pass it to `ptqc.compile` as `calibration`.

    Besides token ids, the other inputs of the model are filled in: masks (1
    for tokens, 0 for padding), token types, positions, and empty caches of
    earlier tokens.

    Args:
        corpus: A text file in UTF-8, a folder of .txt files, a .tsv with a
            text and its label in each line (for calibration the label is not
            used), or a list of texts.
        tokenizer: A `tokenizer.json` of the library `tokenizers`.
        unit: What a sample is: "lines" that are not blank, "paragraphs"
            separated by blank lines, or whole "files"; None: lines of a file,
            and the files of a folder.
        length: The most tokens of a sample; None: the model's length if its
            axis is fixed, otherwise that of the tokenizer's file, otherwise
            128.
        overlong: Whether a longer text is "cut" or "split" into samples.
        padding: "full" pads every sample to the length; "none" leaves samples
            of different lengths; None pads only if the model's axis is fixed.
        padding_side: "left" or "right"; None: as in the tokenizer's file,
            otherwise right.
        padding_token: The token to pad with, if the tokenizer's file has none.
        special_tokens: Whether the tokenizer adds tokens that begin and end a
            text.

    Raises:
        UsageError: A value is none of these.

    Example:
        >>> ptqc.Texts("corpus.txt", "tokenizer.json", length=128)
    """

    corpus: str | Path | Sequence[str]
    tokenizer: str | Path
    unit: Unit | None = None
    length: int | None = None
    overlong: Overlong = "cut"
    padding: Padding | None = None
    padding_side: Side | None = None
    padding_token: str | None = None
    special_tokens: bool = True

    def __post_init__(self) -> None:
        path_of("tokenizer", self.tokenizer)
        for name, choices in CHOICES.items():
            if name == "overlong" or getattr(self, name) is not None:
                one_of(name, getattr(self, name), choices)
        whole = isinstance(self.length, int) and not isinstance(self.length, bool)
        if self.length is not None and not (whole and self.length > 0):
            raise UsageError(f"length is {shown(self.length)}; give a positive number of tokens")

    def open(self, inputs: Sequence[InputSpec], limit: int) -> SampleSource:
        """Samples of at most `limit` texts, or parts of them, evenly spread over the corpus.

        Raises CalibrationError for a corpus or a tokenizer that cannot be read, for a model that texts do not feed, and
        for a vocabulary that its table has no room for.
        """
        encoder = _Encoder.of(self, inputs)
        texts = _Corpus.of(self)
        chosen = spread(texts.count, limit)
        settings = self._settings(encoder.length)
        if self.overlong == "split":
            parts = _parts(encoder, texts.some(chosen), len(chosen), limit)
            return SampleSource(parts, texts.description, texts=settings)
        samples = (feeds for name, text in texts.some(chosen) for feeds in encoder(name, text, 1))
        return SampleSource(samples, texts.description, len(chosen), texts.count, texts=settings, notes=encoder.notes)

    def _settings(self, length: int) -> TextSettings:
        digest = file_digest(Path(self.tokenizer))
        filling = (self.padding, self.padding_side, self.padding_token)
        return TextSettings(str(self.tokenizer), digest, length, *filling, self.special_tokens)


def _parts(encoder: "_Encoder", texts: Iterable[tuple[str, str]], count: int, limit: int) -> Iterator[Feeds]:
    """At most `limit` parts of so many texts: of each as many as the others, which leave theirs to those behind."""
    for place, (name, text) in enumerate(texts):
        for feeds in encoder(name, text, -(-limit // (count - place))):
            limit -= 1
            yield feeds


def is_table(data: object) -> bool:
    """Whether data are a .tsv, whose lines are texts and their label."""
    return isinstance(data, str | PathLike) and path_of("data", data).suffix == TEXT_TABLE


@dataclass(frozen=True)
class LabelledLine:
    """A line of a .tsv. where: its file and number."""

    texts: tuple[str, ...]
    label: str
    where: str


def labelled_lines(texts: Texts, each: int = 1) -> list[LabelledLine]:
    """The lines of a .tsv that are not blank: `each` texts and their label, between tabs. Raises CalibrationError."""
    path = Path(str(texts.corpus))
    if texts.overlong == "split":
        raise UsageError(f"{path} has a label for each text, so texts cannot be split: leave out --overlong")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # other breaks of lines belong to texts
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"cannot read the texts of {path}: {error}; give a text file in UTF-8") from error
    result = []
    for number, line in enumerate(lines, 1):
        *columns, label = line.split("\t")
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if len(columns) != each or not all(text.strip() for text in columns):
            expected = " and ".join(["text"] * each)
            raise CalibrationError(f"{where}: {line[:60]!r} is not {expected} and label between tabs")
        result.append(LabelledLine(tuple(columns), label, where))
    if not result:
        raise CalibrationError(f"{path} holds no text: every line is blank")
    return result


def with_tokenizer(data: object, settings: TextSettings | None) -> object:
    """Data with the tokenizer of a compile, where they are a path of text. Raises UsageError where it is lost."""
    if settings is None or not isinstance(data, str | PathLike):
        return data
    path = path_of("data", data)
    if not (path.is_dir() and holds_texts(path)) and path.suffix.lower() not in TEXT_SUFFIXES:
        return data
    if settings.path is None:
        raise lacks_tokenizer(path, settings)
    values = {name: getattr(settings, name) for name in SETTINGS}
    return Texts(path, settings.path, **values)


def holds_texts(data: str | PathLike[str]) -> bool:
    """Whether a path is that of a text file, or of a folder with more of them than of arrays and images."""
    path = path_of("calibration data", data)
    if path.is_dir():
        return len(files_below(path, frozenset({TEXT}))) > len(files_below(path, OTHER_SUFFIXES))
    suffix = path.suffix.lower()
    return suffix in TEXT_SUFFIXES or (path.is_file() and suffix not in OTHER_SUFFIXES)


@dataclass(frozen=True)
class _Corpus:
    """Texts of files, or as they were given. count: how many there are."""

    unit: Unit
    files: tuple[Path, ...]
    texts: tuple[str, ...]
    description: str
    count: int

    @classmethod
    def of(cls, texts: Texts) -> "_Corpus":
        if not isinstance(texts.corpus, str | Path):
            result = cls("lines", (), _checked(texts.corpus), "the texts", 0)
        else:
            path = path_of("corpus", texts.corpus)
            files = _text_files(path)
            if path.suffix == TEXT_TABLE and texts.unit not in (None, "lines"):
                raise UsageError(f"unit is {texts.unit!r}, but {path} is a table of lines: leave it out")
            result = cls(texts.unit or ("files" if path.is_dir() else "lines"), files, (), str(path), 0)
        count = sum(1 for _ in result)
        if not count:
            raise CalibrationError(f"{result.description} holds no text: every line is blank")
        return cls(result.unit, result.files, result.texts, result.description, count)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Each text that is not blank, with its name."""
        for number, text in enumerate(self.texts):
            if text.strip():
                yield f"text {number}", text
        for file in self.files:
            yield from _texts_of(file, self.unit)

    def some(self, chosen: Sequence[int]) -> Iterator[tuple[str, str]]:
        """Those with these numbers."""
        wanted = frozenset(chosen)
        return (text for number, text in enumerate(self) if number in wanted)


def _checked(value: object) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or not all(isinstance(text, str) for text in value):
        raise UsageError(f"corpus is {shown(value)}; give a path, or a list of texts")
    return tuple(value)


def _text_files(path: Path) -> tuple[Path, ...]:
    if path.suffix.lower() == CSV:
        raise csv_of_texts(path)
    if path.suffix.lower() in JSON:
        raise CalibrationError(f"{path} holds JSON, not plain text: save its texts as .txt, one a line")
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise CalibrationError(f"calibration data {str(path)!r}: no such file or folder; give a text file or a folder")
    if not (result := files_below(path, frozenset({TEXT}))):
        raise CalibrationError(f"folder {path} holds no texts, expected files ending in {TEXT}")
    return tuple(result)


def _texts_of(file: Path, unit: Unit) -> Iterator[tuple[str, str]]:
    """The texts of a file that are not blank; of lines and paragraphs only one is in memory."""
    try:
        with file.open(encoding="utf-8-sig") as stream:
            if unit == "files":
                yield from ((str(file), text) for text in [stream.read()] if text.strip())
                return
            lines: Iterable[tuple[int, str]] = enumerate((line.rstrip("\n") for line in stream), 1)
            if file.suffix == TEXT_TABLE:
                lines = ((number, text) for number, line in lines for text in _columns(line))
            if unit == "lines":
                yield from ((f"{file}, line {number}", line) for number, line in lines if line.strip())
                return
            for is_text, block in groupby(lines, lambda numbered: bool(numbered[1].strip())):
                if is_text:
                    numbered = list(block)
                    yield f"{file}, line {numbered[0][0]}", "\n".join(line for _, line in numbered)
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"cannot read the texts of {file}: {error}; give a text file in UTF-8") from error


def _columns(line: str) -> list[str]:
    """The texts of a table's line: all but the label, which stands last where there is more than one column."""
    columns = line.split("\t")
    return columns[:-1] or columns


@dataclass(frozen=True)
class _Encoder:
    """Makes feeds of a text. length: tokens of a sample at most, and where it `pads` always.

    lengths: in samples, of the texts that were read.
    """

    tokenizer: Any
    inputs: Sequence[InputSpec]
    roles: dict[str, InputRole]
    length: int
    pads: bool
    side: str
    filler: int
    special_tokens: bool
    where: str
    lengths: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, texts: Texts, inputs: Sequence[InputSpec]) -> "_Encoder":
        with tokenizer_calls(f"tokenizer {texts.tokenizer} fails"):
            return cls._of(texts, inputs)

    @classmethod
    def _of(cls, texts: Texts, inputs: Sequence[InputSpec]) -> "_Encoder":
        result, where = roles(inputs), f"tokenizer {texts.tokenizer}"
        tokens = _tokens_input(inputs, result)
        tokenizer = read_tokenizer(Path(texts.tokenizer))
        own, cutting = tokenizer.padding or {}, tokenizer.truncation or {}
        fixed = tokens.shape[-1] if isinstance(tokens.shape[-1], int) else None
        length = texts.length or fixed or cutting.get("max_length") or LENGTH
        pads = texts.padding == "full" or (texts.padding is None and fixed is not None)
        if fixed is not None and length > fixed:
            raise UsageError(f"length is {length}, but input {tokens} has room for {fixed} tokens")
        if fixed is not None and not pads:
            raise UsageError(f"padding is 'none', but input {tokens} takes exactly {fixed} tokens; give padding 'full'")
        added = tokenizer.num_special_tokens_to_add(False) if texts.special_tokens else 0
        if length <= added:
            raise UsageError(f"length is {length}, but {where} adds {added} tokens to every text; give more")
        filler = _filler(tokenizer, texts.padding_token, own, where) if pads else 0
        _check_vocabulary(tokenizer, tokens, filler, where)
        tokenizer.no_padding()
        # Of a text that is split nothing is lost, so its parts come in order.
        end = "right" if texts.overlong == "split" else cutting.get("direction", "right")
        tokenizer.enable_truncation(length, direction=end)
        side, length = texts.padding_side or own.get("direction", "right"), fixed or length
        return cls(tokenizer, inputs, result, length, pads, side, filler, texts.special_tokens, where)

    def __call__(self, name: str, text: str, parts: int) -> Iterator[Feeds]:
        """Feeds of at most so many parts of the text, evenly spread; the first one where there is to be one."""
        with tokenizer_calls(f"{name}: {self.where} fails"):
            encoded = self.tokenizer.encode(text, add_special_tokens=self.special_tokens)
            pieces = [encoded, *encoded.overflowing]
        self.lengths.append(len(pieces))
        for index in spread(len(pieces), parts):
            if not pieces[index].ids:
                raise CalibrationError(f"{name}: {self.where} makes no token of it: leave it out")
            yield self._feeds(pieces[index])

    def notes(self) -> list[Note]:
        """What is said where texts were longer than a sample."""
        cut, count = sum(length > 1 for length in self.lengths), len(self.lengths)
        if not cut:
            return []
        most = self.tokenizer.truncation["max_length"]
        is_longest = _tokens_input(self.inputs, self.roles).shape[-1] == most
        longer = "" if is_longest else "a larger --length, or "
        message = (
            f"{cut} of {count} texts have more than {most} tokens, and the rest of them is not used: {longer}"
            "--overlong split would use more"
        )
        return [Note("calibrate", "", message)]

    def _feeds(self, piece: Any) -> Feeds:
        count = len(piece.ids)
        free = self.length - count if self.pads else 0
        around = (free, 0) if self.side == "left" else (0, free)
        is_token = np.pad(np.ones(count, np.int64), around)
        values = {
            InputRole.TOKENS: np.pad(np.array(piece.ids), around, constant_values=self.filler),
            InputRole.MASK: is_token,
            InputRole.TYPES: np.pad(np.array(piece.type_ids), around),
            InputRole.PLACES: np.maximum(np.cumsum(is_token) - 1, 0),
        }
        return {spec.name: self._filled(spec, values) for spec in self.inputs}

    def _filled(self, spec: InputSpec, values: dict[InputRole, np.ndarray]) -> np.ndarray:
        role = self.roles[spec.name]
        if role is InputRole.PAST:
            first, *others = spec.shape
            sizes = (size if isinstance(size, int) else 0 for size in others)
            return np.zeros((first if isinstance(first, int) else 1, *sizes), spec.dtype)
        if role is InputRole.FLAG:
            return np.zeros(tuple(size for size in spec.shape if isinstance(size, int)), spec.dtype)
        return values[role].astype(spec.dtype)[np.newaxis]


def _tokens_input(inputs: Sequence[InputSpec], roles: dict[str, InputRole]) -> InputSpec:
    """The input that takes the tokens. Raises CalibrationError where texts cannot feed the model."""
    tokens = [spec for spec in inputs if roles[spec.name] is InputRole.TOKENS]
    if not tokens:
        takes = ", ".join(map(str, inputs))
        raise CalibrationError(f"text feeds a model with one input of token ids; this one takes {takes}: {ADVICE}")
    for spec in inputs:
        role = roles[spec.name]
        filled = (InputRole.PAST, InputRole.FLAG)
        if role is InputRole.OTHER or (role not in filled and len(spec.shape) != TEXT_AXES):
            shape = shape_text(spec.shape)
            raise CalibrationError(f"input {spec.name!r} of shape {shape}: text has no values for it: {ADVICE}")
    return tokens[0]


def read_tokenizer(path: Path) -> Any:
    """A `tokenizers.Tokenizer`. Raises UsageError without that library, CalibrationError for what is none."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError("text needs the library tokenizers: pip install 'ptqc[text]'") from error
    if not path.is_file():
        raise CalibrationError(f"tokenizer {path}: no such file; give the tokenizer.json of the model")
    try:
        with tokenizer_calls(f"{path} is not a tokenizer.json of the library tokenizers"):
            result = Tokenizer.from_file(str(path))
            _check_growth(result, path)
    except CalibrationError:
        if _is_vocabulary(path):
            raise CalibrationError(
                f"{path} is a plain vocabulary, which does not say how a text is cut into tokens: give the "
                "tokenizer.json of the model (a fast tokenizer of transformers writes one with save_pretrained), or "
                "make one with the library tokenizers, as the page 'Compile a text model' shows"
            ) from None
        raise
    return result


@contextmanager
def tokenizer_calls(problem: str) -> Iterator[None]:
    """Calls of the library tokenizers, whose panics are no Exception. problem: what a CalibrationError says of them."""
    try:
        yield
    except (PtqcError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise CalibrationError(f"{problem}: {error}") from error


def _check_growth(tokenizer: Any, path: Path) -> None:
    """Raise CalibrationError for steps one after the other that make a text longer than memory has room for."""
    for name in ("normalizer", "pre_tokenizer", "post_processor"):
        part = getattr(tokenizer, name)
        growth = 1.0 if part is None else _growth(json.loads(part.__getstate__()))
        if growth > MOST_GROWTH:
            raise CalibrationError(
                f"tokenizer {path}: its {name} may make a text {growth:.0e} times longer, expected at most "
                f"{MOST_GROWTH:,}: give the tokenizer.json of the model"
            )


def _growth(step: Mapping[str, Any]) -> float:
    """How many times longer a step may make a text, roughly."""
    if step["type"] == "Sequence":
        return math.prod((_growth(each) for kind in SEQUENCES for each in step.get(kind, ())), start=1.0)
    if step["type"] == "Replace" and (replaced := step["pattern"].get("String")):
        return max(1.0, len(step["content"]) / len(replaced))
    if step["type"] == "Replace":  # an expression may match between any two letters
        return 1.0 + len(step["content"])
    return max(1, len(step["single"])) if step["type"] == "TemplateProcessing" else GROWING.get(step["type"], 1)


def _is_vocabulary(path: Path) -> bool:
    """Whether a file holds tokens and their numbers alone."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except UNREADABLE:
        return False
    return isinstance(document, dict) and bool(document) and all(type(number) is int for number in document.values())


def _check_vocabulary(tokenizer: Any, tokens: InputSpec, filler: int, where: str) -> None:
    """Tokens that pad may lie behind the table where they do not: they were added for programs that pad."""
    if tokens.rows is None:
        return
    if filler >= tokens.rows:
        raise CalibrationError(
            f"{where} pads with token {filler}, but the table that input {tokens.name!r} indexes has {tokens.rows} "
            "rows: give another of its tokens as padding_token"
        )
    last = max((number for token, number in tokenizer.get_vocab().items() if token not in FILLERS), default=-1)
    if last >= tokens.rows:
        raise CalibrationError(
            f"{where} has token ids up to {last}, but the table that input {tokens.name!r} indexes has "
            f"{tokens.rows} rows: give the tokenizer of this model"
        )


def _filler(tokenizer: Any, requested: str | None, own: dict[str, Any], where: str) -> int:
    """The number of the token that pads."""
    if requested is None and own:
        return int(own["pad_id"])
    numbers = (tokenizer.token_to_id(token) for token in ((requested,) if requested is not None else FILLERS))
    result = next((number for number in numbers if number is not None), None)
    if result is None:
        lacking = f"no token {requested!r}" if requested is not None else "no token that pads"
        raise UsageError(f"{where} has {lacking}; give one of its tokens as padding_token")
    return int(result)
