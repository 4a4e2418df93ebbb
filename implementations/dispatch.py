"""Choose the implementation that a module runs by shape, dtype, device and direction.

A table never tries one implementation after another. An entry or the default decides, and if that
implementation refuses the call, the call is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import implementations
from implementations.contract import Implementation, UnsupportedError

DIRECTIONS = ("forward", "forward+backward")
"""Without and with gradient recording, as in a measured case."""


class DispatchKey(NamedTuple):
    """The calls that an entry of a :class:`Dispatch` is for; a plain tuple is accepted too."""

    hidden: int
    """Elements normalised together: the product of ``normalized_shape``."""
    dtype: str
    """Name of the dtype of x: ``"bfloat16"``."""
    device: str
    """Kind of the device of x: ``"cuda"``."""
    rows: int = 0
    """The smallest number of rows that the entry is for."""
    direction: str | None = None
    """One of :data:`DIRECTIONS`; None matches both."""


class Dispatch:
    """A table of implementations, looked up at every call; hashable and picklable.

    An entry matches a call with the same ``hidden``, ``dtype`` and ``device``, at least its
    ``rows`` and, if it names one, its ``direction``. Of the matching entries, the one with the most
    rows is used; at equal rows, the one that names the direction. Under ``torch.compile``, the
    lookup is traced: with dynamic shapes it adds a guard on the number of rows.

        Dispatch({(1024, "bfloat16", "cuda", 1): "native",
                  (1024, "bfloat16", "cuda", 4096): "two_pass"}, default="native")
    """

    def __init__(
        self,
        entries: Mapping[tuple[object, ...], str | Implementation],
        default: str | Implementation | None = None,
    ) -> None:
        """Look up every name of the table.

        Args:
            entries: from a :class:`DispatchKey`, or a tuple of its first 3 to 5 fields, to an
                implementation, or a name or target that :func:`implementations.find` accepts.
            default: for calls that match no entry; without one, they are refused.

        Raises:
            TargetError: a name or target finds nothing.
            ValueError: a key is malformed, or two keys are equal.
        """
        keys = [_checked(key) for key in entries]
        if len(set(keys)) < len(keys):
            raise ValueError("two entries of the table have the same key; keep one of them")
        self.entries = tuple(zip(keys, map(_one, entries.values()), strict=True))
        self.default = None if default is None else _one(default)
        # best first, so that the first match of a call is the one to use
        ranked = sorted(
            self.entries, key=lambda entry: (-entry[0].rows, entry[0].direction is None)
        )
        self._by_problem: dict[tuple[int, str, str], list[tuple[DispatchKey, Implementation]]] = {}
        for key, implementation in ranked:
            self._by_problem.setdefault(key[:3], []).append((key, implementation))

    def choose(
        self, x: Tensor, normalized_shape: Sequence[int], *, gradient: bool
    ) -> Implementation:
        """Return the implementation for one call.

        Args:
            x: any shape that ends in ``normalized_shape``.
            normalized_shape: the trailing axes that are normalised.
            gradient: whether the call is recorded for a backward.

        Raises:
            UnsupportedError: no entry matches, and there is no default.
        """
        hidden = math.prod(normalized_shape)
        rows = math.prod(x.shape[: x.dim() - len(normalized_shape)])
        dtype, device = str(x.dtype).removeprefix("torch."), x.device.type
        direction = DIRECTIONS[gradient]
        for key, implementation in self._by_problem.get((hidden, dtype, device), ()):
            if key.rows <= rows and key.direction in {None, direction}:
                return implementation
        if self.default is None:
            raise UnsupportedError(
                f"the dispatch table has no entry for {hidden} elements in {dtype} on {device}, "
                f"{rows} rows, {direction}; add one, or give the table a default"
            )
        return self.default

    def __reduce__(self) -> tuple[object, ...]:
        """Store the arguments of an equal table, as names where possible."""
        table = {key: reference_to(chosen) for key, chosen in self.entries}
        default = None if self.default is None else reference_to(self.default)
        return type(self), (table, default)

    def __repr__(self) -> str:
        entries = ", ".join(f"{tuple(key)}: {chosen.name!r}" for key, chosen in self.entries)
        default = None if self.default is None else self.default.name
        return f"{type(self).__name__}({{{entries}}}, default={default!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dispatch):
            return NotImplemented
        return (dict(self.entries), self.default) == (dict(other.entries), other.default)

    def __hash__(self) -> int:
        return hash((frozenset(self.entries), self.default))


ImplementationLike = (
    str | Implementation | Dispatch | Mapping[tuple[object, ...], str | Implementation]
)
"""The values that a module accepts as its implementation; a mapping becomes a ``Dispatch``."""


def resolve(choice: ImplementationLike) -> Implementation | Dispatch:
    """Return the implementation or table for any value of :data:`ImplementationLike`.

    Raises:
        TargetError: a name or target finds nothing.
        TypeError: ``choice`` has another type.
        ValueError: a mapping has a malformed key.
    """
    if isinstance(choice, Dispatch):
        return choice
    return Dispatch(choice) if isinstance(choice, Mapping) else _one(choice)


def reference_to(implementation: Implementation) -> str | Implementation:
    """Return a name or target that finds ``implementation`` again, or itself if none does.

    The function itself cannot be pickled: its name in its module refers to the implementation.
    """
    function = implementation.function
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    for target in (implementation.name, f"{module}:{name}"):
        try:
            if implementations.find(target) == implementation:
                return target
        except implementations.TargetError:
            continue
    return implementation


def name_of(chosen: Implementation | Dispatch) -> str:
    """Return the name of an implementation, or "dispatch"."""
    return chosen.name if isinstance(chosen, Implementation) else "dispatch"


def _one(choice: object) -> Implementation:
    if isinstance(choice, Implementation):
        return choice
    if isinstance(choice, str):
        return implementations.find(choice)
    raise TypeError(
        f"implementation is of type {type(choice).__name__}, expected a name, an Implementation "
        "or a Dispatch; implementations.adopt(function, 'a_name') makes one of a function"
    )


def _checked(entry: tuple[object, ...]) -> DispatchKey:
    """Return a key of the table as a :class:`DispatchKey`, after checking each field."""
    text = f"key {entry!r} of the dispatch table"
    fields = DispatchKey._fields
    if not isinstance(entry, tuple) or not 3 <= len(entry) <= len(fields):
        raise ValueError(
            f"{text}: expected a tuple of {', '.join(fields)}; the last two are optional"
        )
    key = DispatchKey(*entry)  # type: ignore[arg-type]  # checked below
    if not _is_count(key.hidden) or not _is_count(key.rows):
        raise ValueError(f"{text}: hidden and rows must be whole numbers, 0 or more")
    if type(getattr(torch, str(key.dtype), None)) is not torch.dtype:
        raise ValueError(f"{text}: no dtype {key.dtype!r}; write it as 'bfloat16'")
    if not str(key.device).isalpha():
        raise ValueError(f"{text}: {key.device!r} is not a device kind; write it as 'cuda'")
    if key.direction not in {None, *DIRECTIONS}:
        raise ValueError(f"{text}: no direction {key.direction!r}; known: {', '.join(DIRECTIONS)}")
    return key


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
