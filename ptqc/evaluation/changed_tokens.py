"""The tokens of a text, and where the compiled model says another one than the float model does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.calibration.inputs import InputSpec
from ptqc.calibration.roles import InputRole, roles
from ptqc.calibration.texts import read_tokenizer
from ptqc.execution.onnxruntime import Feeds
from ptqc.losses import Kinds
from ptqc.losses.classes import Classes

# Pieces of tokenizers have these for a space in front, and for the end of a line.
SPACES, GOES_ON = ("▁", "Ġ"), "##"
READ_AS = {"▁": " ", "Ġ": " ", "Ċ": "↵", "<0x0A>": "↵", "\n": "↵"}
SHOWN_TOKENS, SHOWN_CHANGES = 96, 8

Words = Callable[[int], str]


@dataclass(frozen=True)
class TokenInput:
    """The input that takes tokens. words: the text of a token's number, with the space in front of it; the
    number where no tokenizer is known.
    """

    name: str
    mask: str | None
    rows: int | None
    words: Words

    @classmethod
    def of(cls, inputs: tuple[InputSpec, ...], tokenizer: Path | None) -> "TokenInput | None":
        """None for a model that takes no tokens, one text in a sample."""
        known = roles(inputs)
        tokens = next((spec for spec in inputs if known[spec.name] is InputRole.TOKENS and len(spec.shape) == 2), None)
        if tokens is None:
            return None
        mask = next((name for name, role in known.items() if role is InputRole.MASK), None)
        return cls(tokens.name, mask, tokens.rows, _number if tokenizer is None else _pieces(tokenizer))

    def changes(self, kinds: Kinds, feeds: Feeds, real: Feeds, packed: Feeds) -> dict[str, Any] | None:
        """The document: the tokens, and of outputs with an answer at each of them those that differ."""
        tokens = feeds[self.name]
        if tokens.shape[0] != 1:
            return None
        count = self._count(feeds, tokens.shape[1])
        numbers = tokens[0, :count]
        outputs = list(self._answers(kinds, numbers, real, packed))
        return {"input": self.name, "tokens": [self.words(int(x)) for x in numbers[:SHOWN_TOKENS]], "outputs": outputs}

    def says_tokens(self, kind: Classes, output: np.ndarray) -> bool:
        """Whether the classes of an output are the tokens."""
        return bool(self.rows == output.shape[kind.axis])

    def _count(self, feeds: Feeds, length: int) -> int:
        """How many tokens there are before padding, which stands behind them or not at all."""
        mask = feeds.get(self.mask) if self.mask is not None else None
        if mask is None or mask.shape != (1, length) or not np.array_equal(np.sort(mask[0])[::-1], mask[0]):
            return length
        return int(np.count_nonzero(mask))

    def _answers(self, kinds: Kinds, numbers: np.ndarray, real: Feeds, packed: Feeds) -> Iterator[dict[str, Any]]:
        for name, kind in kinds.items():
            if not isinstance(kind, Classes):
                continue
            both = [np.moveaxis(outputs[name], kind.axis, -1) for outputs in (real, packed)]
            if both[0].ndim != 3 or both[0].shape[0] != 1 or both[0].shape[1] < len(numbers):
                continue
            float_ones, compiled = (values[0, : len(numbers)].argmax(-1) for values in both)
            word = self.words if self.says_tokens(kind, real[name]) else lambda label: f"class {label}"
            places = np.flatnonzero(float_ones != compiled)
            changed = [[int(x), word(int(float_ones[x])), word(int(compiled[x]))] for x in places[:SHOWN_CHANGES]]
            yield {"output": name, "of": len(numbers), "differing": len(places), "changed": changed}


def _number(token: int) -> str:
    return f" {token}"


def _pieces(tokenizer: Path) -> Words:
    known = read_tokenizer(tokenizer)
    # Tokenizers that say nothing of spaces have one in front of every piece that does not go on with a word.
    is_spaced = any(piece[:1] in SPACES for piece in known.get_vocab())

    def words(number: int) -> str:
        piece = known.id_to_token(number)
        if piece is None:
            return _number(number)
        if not is_spaced:
            return piece.removeprefix(GOES_ON) if piece.startswith(GOES_ON) else f" {piece}"
        for written, read in READ_AS.items():
            piece = piece.replace(written, read)
        return str(piece)

    return words
