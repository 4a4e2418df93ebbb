"""Which implementation a module runs: one, or one of a table by shape, dtype, device, direction.

A table never tries one implementation after another: an entry or the default decides, and what
that refuses stays refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import implementations
from implementations.contract import Implementation, UnsupportedError

__all__ = [
    "DIRECTIONS",
    "Dispatch",
    "DispatchKey",
    "ImplementationLike",
    "name_of",
    "reference_to",
    "resolve",
]

DIRECTIONS = ("forward", "forward+backward")
"""Without and with gradient recording, in the words of a measured case."""


class DispatchKey(NamedTuple):
    """What an entry of a :class:`Dispatch` is for; a plain tuple in this order will do."""

    hidden: int
    """Elements normalised together: the product of ``normalized_shape``."""
    dtype: str
    """Name of the dtype of x: ``"bfloat16"``."""
    device: str
    """Kind of the device of x: ``"cuda"``."""
    rows: int = 0
    """The fewest rows it is for."""
    direction: str | None = None
    """One of :data:`DIRECTIONS`; None is either."""


class Dispatch:
    """A table of implementations, looked up at every call; hashable and picklable.

    Of the entries whose ``hidden``, ``dtype`` and ``device`` are the call's, whose ``rows`` are
    not more and whose ``direction`` is not another, the one with the most rows is taken; at equal
    rows, the one that names the direction. Under ``torch.compile`` with static shapes this is
    done while tracing; with dynamic shapes it adds a guard on the number of rows.

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
            entries: from a :class:`DispatchKey`, or a tuple of its first 3 to 5 fields, to a name, a
                target
                as :func:`implementations.find` takes it, or an implementation.
            default: for what no entry is for; without one, that is refused.

        Raises:
            TargetError: a name or target finds nothing.
            ValueError: a key is malformed, or two say the same.
        """
        keys = [_checked(each) for each in entries]
        if len(set(keys)) < len(keys):
            raise ValueError("two entries of the table have the same key; keep one of them")
        found = [_one(each) for each in entries.values()]
        self.entries = tuple(zip(keys, found, strict=True))
        self.default = None if default is None else _one(default)
        # best first: the first that fits a call is the one to take
        ranked = sorted(
            self.entries, key=lambda entry: (-entry[0].rows, entry[0].direction is None)
        )
        self._by_problem: dict[tuple[int, str, str], list[tuple[DispatchKey, Implementation]]] = {}
        for key, each in ranked:
            self._by_problem.setdefault(key[:3], []).append((key, each))

    def choose(
        self, x: Tensor, normalized_shape: Sequence[int], *, gradient: bool
    ) -> Implementation:
        """Return the implementation for one call.

        Args:
            x: any shape that ends in ``normalized_shape``.
            normalized_shape: the trailing axes that are normalised.
            gradient: whether the call is recorded for a backward.

        Raises:
            UnsupportedError: no entry is for this, and there is no default.
        """
        hidden = math.prod(normalized_shape)
        rows = math.prod(x.shape[: x.dim() - len(normalized_shape)])
        dtype, device = str(x.dtype).removeprefix("torch."), x.device.type
        direction = DIRECTIONS[gradient]
        for key, each in self._by_problem.get((hidden, dtype, device), ()):
            if key.rows <= rows and key.direction in {None, direction}:
                return each
        if self.default is None:
            raise UnsupportedError(
                f"the dispatch table has no entry for {hidden} elements in {dtype} on {device}, "
                f"{rows} rows, {direction}; add one, or give the table a default"
            )
        return self.default

    def _plain(self) -> tuple[dict[DispatchKey, str | Implementation], str | Implementation | None]:
        """Return the arguments to make an equal table from: names, where they find it again."""
        table = {key: reference_to(each) for key, each in self.entries}
        return table, None if self.default is None else reference_to(self.default)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._plain()

    def __repr__(self) -> str:
        entries = ", ".join(f"{tuple(key)}: {each.name!r}" for key, each in self.entries)
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
"""What a module can be told to run; a mapping is a :class:`Dispatch` without default."""


def resolve(choice: ImplementationLike) -> Implementation | Dispatch:
    """Return what ``choice`` names.

    Raises:
        TargetError: a name or target finds nothing.
        TypeError: it is none of the kinds of :data:`ImplementationLike`.
        ValueError: a mapping has a malformed key.
    """
    if isinstance(choice, Dispatch):
        return choice
    return Dispatch(choice) if isinstance(choice, Mapping) else _one(choice)


def reference_to(implementation: Implementation) -> str | Implementation:
    """Return a name or target that finds ``implementation`` again, or itself if none does.

    A decorated function cannot be pickled: under its name its module has the implementation.
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
    """Return what to call it in one word."""
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
    """Return a key of the table with its fields named, after checking each."""
    text = f"key {entry!r} of the dispatch table"
    if not isinstance(entry, tuple) or not 3 <= len(entry) <= len(DispatchKey._fields):
        raise ValueError(
            f"{text}: expected a tuple of {', '.join(DispatchKey._fields)}, of which the last two may be "
            "left out"
        )
    key = DispatchKey(*entry)  # type: ignore[arg-type]  # checked below
    if not _is_count(key.hidden) or not _is_count(key.rows):
        raise ValueError(f"{text}: hidden and rows must be whole numbers, 0 or more")
    if type(getattr(torch, str(key.dtype), None)) is not torch.dtype:
        raise ValueError(f"{text}: no dtype {key.dtype!r}; write it as 'bfloat16'")
    if not str(key.device).isalpha():
        raise ValueError(f"{text}: {key.device!r} is no kind of device; write it as 'cuda'")
    if key.direction not in {None, *DIRECTIONS}:
        raise ValueError(f"{text}: no direction {key.direction!r}; known: {', '.join(DIRECTIONS)}")
    return key


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
