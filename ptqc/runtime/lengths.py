"""Sizes that vary from call to call: sums of products of lengths, as `past + time` or `4*time*time`.

A length is the size of an axis of an input that a library leaves open. What follows from it keeps being exact: sizes
are added, multiplied and, where that leaves no rest, divided as polynomials. Where a size meets something else, the
index of a loop of a kernel, it becomes an expression of what lengths are there (see `with_lengths`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

Product = tuple[str, ...]
Terms = Mapping[Product, int]
# What a length counts as where a decision needs one number: how memory is shared, whether threads pay off.
HINT = 64
_TERM = re.compile(r"(?:(\d+)\*?)?([A-Za-z_]\w*(?:\*[A-Za-z_]\w*)*)?")


class UnknownSizeError(Exception):
    """A decision that a size which varies does not allow to make."""


@dataclass(frozen=True)
class SymDim:
    """An axis that varies. seen: its size in the first sample. least: the smallest size that it may have."""

    name: str
    seen: int
    least: int = 1


class SymExpr:
    """A size. terms: by products of lengths, what each is multiplied with; () is the constant."""

    __slots__ = ("terms",)

    def __init__(self, terms: Terms) -> None:
        self.terms = tuple(sorted((product, factor) for product, factor in terms.items() if factor))

    @property
    def names(self) -> frozenset[str]:
        """The lengths that it is made of."""
        return frozenset(name for product, _ in self.terms for name in product)

    @property
    def length(self) -> str | None:
        """The name of the length that it is, if it is one."""
        (product, factor), *rest = self.terms
        return product[0] if len(product) == factor == 1 and not rest else None

    def at(self, lengths: Mapping[str, Any]) -> Any:
        """The size for lengths: numbers, or expressions of a kernel."""
        total: Any = None
        for product, factor in reversed(self.terms):
            term: Any = None
            for name in product:
                term = lengths[name] if term is None else term * lengths[name]
            term = factor if term is None else (term if factor == 1 else term * factor)
            total = term if total is None else total + term
        return total

    @property
    def hint(self) -> int:
        """The size for lengths of TYPICAL."""
        return int(self.at(dict.fromkeys(self.names, HINT)))

    @property
    def expression(self) -> Any:
        """The size for the lengths that are `with_lengths`. Raises UnknownSizeError where they are not."""
        lengths = _LENGTHS.get()
        if not self.names <= lengths.keys():
            raise UnknownSizeError(f"a kernel has to know the size {self} before it is written")
        return self.at(lengths)

    def __tvm_ffi_object__(self) -> Any:
        """TVM's functions take it for its expression."""
        return self.expression

    def __str__(self) -> str:
        ordered = sorted(self.terms, key=lambda term: (-len(term[0]), term))
        return " + ".join(_shown(product, factor) for product, factor in ordered)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymExpr) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    def __bool__(self) -> bool:
        return True

    def __add__(self, other: Any) -> Any:
        result = _terms(other)
        if result is None:
            return self.expression + other
        return size_of(_sum(dict(self.terms), result))

    def __radd__(self, other: Any) -> Any:
        return self + other if _terms(other) is not None else other + self.expression

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + -other if _terms(other) is not None else self.expression - other

    def __rsub__(self, other: Any) -> Any:
        return -self + other if _terms(other) is not None else other - self.expression

    def __mul__(self, other: Any) -> Any:
        result = _terms(other)
        if result is None:
            return self.expression * other
        terms: dict[Product, int] = {}
        for product, factor in self.terms:
            for another, number in result.items():
                terms = _sum(terms, {tuple(sorted(product + another)): factor * number})
        return size_of(terms)

    def __rmul__(self, other: Any) -> Any:
        return self * other if _terms(other) is not None else other * self.expression

    def __floordiv__(self, other: Any) -> Any:
        result = _terms(other)
        ratio = None if result is None else _ratio(dict(self.terms), result)
        return self.expression // _plain(other) if ratio is None else size_of(ratio)

    def __rfloordiv__(self, other: Any) -> Any:
        return other // self.expression

    def __mod__(self, other: Any) -> Any:
        result = _terms(other)
        if result is not None and _ratio(dict(self.terms), result) is not None:
            return 0
        return self.expression % _plain(other)

    def __rmod__(self, other: Any) -> Any:
        return other % self.expression

    def __ge__(self, other: int) -> bool:
        """Whether it is at least a number whatever the lengths are, none of which is 0."""
        factors = [factor for product, factor in self.terms if product]
        return min(factors) >= 0 and int(self.at(dict.fromkeys(self.names, 1))) >= other

    def __lt__(self, other: Any) -> bool:
        raise UnknownSizeError(f"a kernel has to know whether {self} is less than {other}")

    def __gt__(self, other: Any) -> bool:
        raise UnknownSizeError(f"a kernel has to know whether {self} is more than {other}")

    def __le__(self, other: Any) -> bool:
        raise UnknownSizeError(f"a kernel has to know whether {self} is at most {other}")

    def __index__(self) -> int:
        raise UnknownSizeError(f"a kernel has to know the size {self}")


Size = int | SymExpr
# Sizes; of what certainly has one size, numbers.
Shape = tuple[Any, ...]


@contextmanager
def with_lengths(lengths: Mapping[str, Any]) -> Iterator[None]:
    """Meanwhile lengths have these values where sizes meet something else."""
    token = _LENGTHS.set(lengths)
    try:
        yield
    finally:
        _LENGTHS.reset(token)


def size_of(terms: Terms) -> Any:
    """A size that these terms add up to: a number where no length is left."""
    sym_expr = SymExpr(terms)
    return sym_expr if sym_expr.names else sum(factor for _, factor in sym_expr.terms)


def of_length(name: str) -> SymExpr:
    """The size that is a length."""
    return SymExpr({(name,): 1})


def at(size: Size, lengths: Mapping[str, int]) -> int:
    """A size, for lengths."""
    return int(size.at(lengths)) if isinstance(size, SymExpr) else size


def hint(size: Size) -> int:
    """A size, where lengths are as usual."""
    return size.hint if isinstance(size, SymExpr) else size


@dataclass(frozen=True)
class Limit:
    """A size that may not be larger than a number, as the places of a table that has no more rows."""

    size: Size
    most: int

    def allows(self, lengths: Mapping[str, int]) -> bool:
        """Whether the size is within the limit."""
        return at(self.size, lengths) <= self.most

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Limit":
        """Inverse of `to_json`."""
        return cls(read(entry["size"]), int(entry["most"]))

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {"size": written(self.size), "most": self.most}


def narrowest(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Of several limits of one size the narrowest."""
    result: dict[Size, int] = {}
    for limit in limits:
        result[limit.size] = min(limit.most, result.get(limit.size, limit.most))
    return tuple(Limit(size, most) for size, most in result.items())


def names_of(sizes: Sequence[Any]) -> set[str]:
    """The lengths that sizes are made of."""
    return {name for size in sizes if isinstance(size, SymExpr) for name in size.names}


def varies(sizes: Sequence[Any]) -> bool:
    """Whether any of the sizes varies."""
    return any(isinstance(size, SymExpr) for size in sizes)


def written(size: Size) -> int | str:
    """A size for a document."""
    return str(size) if isinstance(size, SymExpr) else size


def read(entry: Any) -> Any:
    """Inverse of `written`. Raises ValueError where it is none."""
    if not isinstance(entry, str):
        return entry
    terms: dict[Product, int] = {}
    for part in entry.replace(" - ", " + -").split(" + "):
        text = part.removeprefix("-")
        match = _TERM.fullmatch(text)
        if match is None or not text:
            raise ValueError(f"{entry!r} is no size")
        number, names = match.groups()
        factor = int(number or 1) * (-1 if part != text else 1)
        terms = _sum(terms, {tuple(sorted(names.split("*"))) if names else (): factor})
    return size_of(terms)


def bound(shapes: Sequence[tuple[Sequence[Any], Sequence[int]]]) -> dict[str, int]:
    """The lengths that arrays of these sizes have, which are axes of their own. shapes: declared, and found."""
    result: dict[str, int] = {}
    for declared, sizes in shapes:
        for size, number in zip(declared, sizes, strict=True):
            if isinstance(size, SymExpr) and (name := size.length) is not None:
                result.setdefault(name, number)
    return result


def _terms(other: Any) -> dict[Product, int] | None:
    """The terms of a number or a size; None of anything else."""
    if isinstance(other, SymExpr):
        return dict(other.terms)
    return {(): int(other)} if isinstance(other, int) else None


def _plain(other: Any) -> Any:
    return other.expression if isinstance(other, SymExpr) else other


def _sum(one: Terms, other: Terms) -> dict[Product, int]:
    return {product: one.get(product, 0) + other.get(product, 0) for product in (*one, *other)}


def _ratio(terms: Terms, divisor: Terms) -> dict[Product, int] | None:
    """The polynomial that times the divisor gives the terms; None where there is none."""
    ratio: dict[Product, int] = {}
    dividend = {product: factor for product, factor in terms.items() if factor}
    leading = max((product for product, factor in divisor.items() if factor), key=_degree)
    while dividend:
        product = max(dividend, key=_degree)
        left = list(product)
        for name in leading:
            if name not in left:
                return None
            left.remove(name)
        factor, remainder = divmod(dividend[product], divisor[leading])
        if remainder:
            return None
        ratio = _sum(ratio, {tuple(left): factor})
        part = {tuple(sorted((*left, *other))): -factor * number for other, number in divisor.items()}
        dividend = {term: number for term, number in _sum(dividend, part).items() if number}
    return ratio


def _degree(product: Product) -> tuple[int, Product]:
    return len(product), product


def _shown(product: Product, factor: int) -> str:
    if not product:
        return str(factor)
    return "*".join(product) if factor == 1 else "*".join((str(factor), *product))


_LENGTHS: ContextVar[Mapping[str, Any]] = ContextVar("lengths", default={})  # noqa: B039
