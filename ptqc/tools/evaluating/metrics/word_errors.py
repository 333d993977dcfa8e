"""Word error rate: words put in, left out and changed, of those that were said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.tools.evaluating.metric import Case, Share


@dataclass(frozen=True)
class WordErrors(Share):
    """The judged output has scores (1, positions, tokens), or the numbers of tokens (1, positions).

    Of scores each position has its likeliest token; of equal ones in a row one counts, and `blank` is none (CTC, Graves
    et al. 2006). The label is a text, for which a tokenizer has to be given, or has the numbers of tokens, each of
    which is a word; numbers below 0 do not count.
    """

    name: ClassVar[str] = "word-errors"
    title = "word error rate, %"
    higher_is_better: ClassVar[bool] = False
    blank: int = 0

    @classmethod
    def of(cls, parameter: str) -> "WordErrors | None":
        """See `Metric`."""
        return cls(int(parameter or 0)) if parameter.isdecimal() or not parameter else None

    def measure(self, case: Case) -> tuple[float, ...]:
        """Errors and words."""
        result, wanted = self._heard(case), case.label
        if isinstance(wanted, str):
            if case.decode is None:
                raise case.refused("the label is a text: give the --tokenizer that turns tokens into words")
            heard, said = case.decode(result).split(), wanted.split()
            return 100 * float(distance(heard, said)), float(len(said))
        tokens = [int(token) for token in case.whole("tokens").reshape(-1) if token >= 0]
        return 100 * float(distance(result, tokens)), float(len(tokens))

    def _heard(self, case: Case) -> list[int]:
        answer = case.answers[0]
        if answer.dtype.kind in "iu":
            return [int(token) for token in answer.reshape(-1)]
        if answer.ndim != 3 or answer.shape[0] != 1:
            raise case.refused(f"output {case.output!r} has shape {answer.shape}, expected (1, positions, tokens)")
        likeliest = answer[0].argmax(-1)
        starts = np.append(True, likeliest[1:] != likeliest[:-1])
        return [int(token) for token in likeliest[starts] if token != self.blank]


def distance(values: Sequence[object], wanted: Sequence[object]) -> int:
    """The fewest words put in, left out or changed between two sequences (Levenshtein 1966)."""
    row = list(range(len(wanted) + 1))
    for number, word in enumerate(values, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(wanted, 1):
            changed = before + (word != other)
            before, row[place] = row[place], min(changed, row[place] + 1, row[place - 1] + 1)
    return row[-1]
