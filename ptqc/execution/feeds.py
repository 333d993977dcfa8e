"""What a caller gives to a compiled network: every error says what was given, what is expected, and what to do."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ptqc.errors import UsageError
from ptqc.utils.arguments import meant, shown

Dim = int | str | None

# Types of ONNX that NumPy has; of the others ONNX Runtime alone knows what it takes.
_DTYPES: dict[str, type[np.generic]] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bool": np.bool_,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_TEXT = "tensor(string)"


def check_mapping(feeds: object) -> None:
    """Raises UsageError for what has no names of inputs."""
    if not isinstance(feeds, Mapping):
        raise UsageError(f"the inputs are {shown(feeds)}; give a dict of arrays by the names of the inputs")


def check_names(texts: Collection[str], expected: Sequence[str], others: Collection[str] = ()) -> None:
    """Raises UsageError where an input is missing, or is none. others: may be left out."""
    if len(texts) == len(expected) and all(name in texts for name in expected):
        return
    missing = [name for name in expected if name not in texts]
    surplus = [name for name in texts if name not in expected and name not in others]
    if missing or surplus:
        result = [f"give {', '.join(map(repr, missing))}"] if missing else []
        result += [f"leave out {', '.join(map(repr, surplus))}{meant(surplus, missing)}"] if surplus else []
        raise UsageError(
            f"inputs {', '.join(map(repr, texts)) or 'none'} were given; the model takes {list(expected)}: "
            f"{' and '.join(result)}"
        )


def not_an_array(name: str, value: object, expected: str, dtype: np.dtype[Any] | None) -> UsageError:
    """The error for an input that is something else. expected: as text; dtype: of its numbers."""
    kind = "" if dtype is None else f", np.{dtype.name}"
    return UsageError(
        f"input {name!r} is a {type(value).__name__}; expected a numpy array, {expected}: give np.asarray(value{kind})"
    )


class Expected(Protocol):
    """An input as a message tells it; a dimension that is no number is of any size."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its numbers."""

    @property
    def shape(self) -> Sequence[Dim]:
        """Sizes, names of sizes, or None."""

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Whether numbers of a type are what is expected."""


def does_not_fit(expected: Expected, dtype: np.dtype[Any], shape: Sequence[int]) -> UsageError:
    """The error for an array of another type, rank or size. dtype, shape: of what was given."""
    text = f"input {expected.name!r} is {dtype} {list(shape)}; expected {expected}"
    if not expected.takes(dtype):
        kind = "str_" if expected.dtype.kind == "U" else expected.dtype.name
        return UsageError(f"{text}: convert it with .astype(np.{kind})")
    if len(shape) == len(expected.shape) - 1 and _fit(shape, expected.shape[1:]):
        return UsageError(f"{text}: the axis of samples is missing, add it with value[np.newaxis]")
    if len(shape) != len(expected.shape):
        return UsageError(f"{text}: give {_axes(len(expected.shape))} in place of {len(shape)}")
    if len(shape) == 4 and _fit([shape[place] for place in (0, 3, 1, 2)], expected.shape):
        return UsageError(f"{text}: channels come first, value.transpose(0, 3, 1, 2)")
    wrong = [axis for axis, pair in enumerate(zip(shape, expected.shape, strict=True)) if not _fits(*pair)]
    message = " and ".join(f"{expected.shape[axis]} along axis {axis}, where it has {shape[axis]}" for axis in wrong)
    return UsageError(f"{text}: give {message}")


def _axes(count: int) -> str:
    return f"{count} axis" if count == 1 else f"{count} axes"


def _fits(size: int, expected: Dim) -> bool:
    return not isinstance(expected, int) or size == expected


def _fit(shape: Sequence[int], expected: Sequence[Dim]) -> bool:
    return len(shape) == len(expected) and all(map(_fits, shape, expected))


@dataclass(frozen=True)
class SessionInput:
    """An input of an ONNX Runtime session. kind: its type in ONNX; dtype: in NumPy, void where NumPy has no such type.

    is_array: whether it is a tensor, and no sequence or map.
    """

    name: str
    kind: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...]
    is_array: bool

    @classmethod
    def of(cls, declared: Any) -> "SessionInput":
        """What `get_inputs` tells of it."""
        inner = declared.type.removeprefix("tensor(").removesuffix(")")
        kind = np.str_ if declared.type == _TEXT else _DTYPES.get(inner, np.void)
        dtype: np.dtype[Any] = np.dtype(kind)
        return cls(declared.name, inner, dtype, tuple(declared.shape or ()), declared.type.startswith("tensor("))

    def __str__(self) -> str:
        return f"{self.dtype if self._is_of_numpy else self.kind} [{', '.join(map(_dim, self.shape))}]"

    @property
    def _is_of_numpy(self) -> bool:
        return self.dtype.kind not in "UV"

    def check(self, value: Any) -> None:
        """Raises UsageError for what the session would refuse. An OrtValue is left to it."""
        if not isinstance(value, np.ndarray):
            if self.is_array and not hasattr(value, "data_ptr"):
                raise not_an_array(self.name, value, str(self), self.dtype if self._is_of_numpy else None)
            return
        if not self.takes(value.dtype) or not _fit(value.shape, self.shape):
            raise does_not_fit(self, value.dtype, value.shape)

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Whether the session takes numbers of a type, or texts; of types that NumPy lacks it finds out itself."""
        if self.kind == "string":
            return dtype.kind in "UOS"
        return dtype == self.dtype or not self._is_of_numpy


class CheckedSession:
    """A session that is given nothing that it would refuse. where: its file, for messages."""

    def __init__(self, session: Any, where: str) -> None:
        self._session, self._where = session, where
        self._inputs = {one.name: SessionInput.of(one) for one in session.get_inputs()}
        self._optional = {one.name: SessionInput.of(one) for one in session.get_overridable_initializers()}
        self._outputs = [value.name for value in session.get_outputs()]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """All outputs by name. Raises UsageError for what does not fit, or cannot be computed."""
        check_mapping(feeds)
        check_names(feeds, list(self._inputs), self._optional)
        for name, value in feeds.items():
            self._input(name).check(value)
        self._check_sizes(feeds)
        try:
            result = self._session.run(self._outputs, dict(feeds))
        except Exception as error:  # ONNX Runtime raises a dozen types of its own
            raise UsageError(
                f"{self._where} does not run on these inputs ({_listed(feeds)}): {error}; compare them with those that "
                "the original model takes"
            ) from error
        return dict(zip(self._outputs, result, strict=True))

    def _input(self, name: str) -> SessionInput:
        return self._inputs.get(name) or self._optional[name]

    def _check_sizes(self, feeds: Mapping[str, Any]) -> None:
        """Raises UsageError where what the model declares to be one size, such as the batch, differs."""
        sizes: dict[str, list[tuple[str, int]]] = {}
        for name, value in feeds.items():
            if isinstance(value, np.ndarray):
                for size, declared in zip(value.shape, self._input(name).shape, strict=True):
                    if isinstance(declared, str):
                        sizes.setdefault(declared, []).append((name, size))
        for declared, named_sizes in sizes.items():
            if len({size for _, size in named_sizes}) > 1:
                each = ", ".join(f"{name!r} has {size}" for name, size in named_sizes)
                raise UsageError(
                    f"inputs differ in {declared!r}, which the model declares to be one size: {each}; give the same"
                )


def _listed(feeds: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {list(value.shape)}" for name, value in feeds.items() if isinstance(value, np.ndarray))


def _dim(size: Dim) -> str:
    return "N" if size is None else str(size)
