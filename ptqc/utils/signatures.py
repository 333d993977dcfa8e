"""Signatures and docstrings that list the keywords of a table, so that `help` and editors show them by name."""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

WIDTH = 78


class LongSignature(Signature):
    """A signature of one parameter a line."""

    def __str__(self) -> str:
        lines, is_starred = [], False
        for parameter in self.parameters.values():
            if parameter.kind is Parameter.KEYWORD_ONLY and not is_starred:
                lines.append("*")
                is_starred = True
            lines.append(_declared(parameter))
        returned = "" if self.return_annotation is Signature.empty else f" -> {_type(self.return_annotation)}"
        return "(\n" + "\n".join(wrapped(f"{line},", " " * 4) for line in lines) + f"\n){returned}"


def lists_keywords(keywords: Sequence[Parameter], texts: Mapping[str, str]) -> Callable[[F], F]:
    """Put keywords into the signature and the docstring of a function in place of its last parameter, `**keywords`.

    texts: what each keyword is, by name. The docstring has the sections of the Google style, "Returns" among them.
    """

    def listed(function: F) -> F:
        signature = inspect.signature(function)
        parameters = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        function.__signature__ = LongSignature(  # type: ignore[attr-defined]
            [*parameters, *keywords], return_annotation=signature.return_annotation
        )
        before, returns, after = (function.__doc__ or "").partition("\n    Returns:")
        entries = "\n".join(wrapped(f"{one.name}: {texts[one.name]}", " " * 8) for one in keywords)
        head, *_ = before.rstrip().rsplit("\n        **keywords", 1)
        function.__doc__ = f"{head}\n\n    Keyword Args:\n{entries}\n{returns}{after}"
        return function

    return listed


def wrapped(text: str, indent: str) -> str:
    """Break an entry of a docstring into lines, all but the first further indented."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _declared(parameter: Parameter) -> str:
    kind = "" if parameter.annotation is Parameter.empty else f": {_type(parameter.annotation)}"
    return f"{parameter.name}{kind}" + ("" if parameter.default is Parameter.empty else f" = {parameter.default!r}")


def _type(annotation: object) -> str:
    """A type as it is written in code, without modules but those of other libraries."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(ptqc|collections|os|pathlib|typing)\.([a-z]\w*\.)*", "", text)
