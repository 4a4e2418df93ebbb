"""Find which part of its scope a target takes in a backward, and whether it takes an empty x."""

from __future__ import annotations

from dataclasses import replace

from harness.numerics.computed import ImplementationError
from harness.records import Affine, Case, Direction
from harness.records.text import shape_text
from harness.verify.findings import Remark, RemarkKind
from harness.verify.scope import AFFINE_WORDS
from harness.verify.scope_finder import ScopeFinder

__all__ = ["find_empty", "find_gradients"]


def find_gradients(finder: ScopeFinder) -> None:
    """Find which numbers of axes and which combinations of parameters have a backward."""
    if finder.implementation.forward_only:
        return
    finder.backward, reason = _first_backward(finder)
    if finder.backward is None:
        finder.reasons.append(f"gradients: {reason}")
        finder.scope = replace(finder.scope, has_gradient=False)
        return
    affines, ranks = list[Affine](), list[int]()
    for affine in finder.scope.affines:
        if (reason := finder.declines(replace(finder.backward, affine=affine))) is not None:
            affines.append(affine)
            finder.reasons.append(f"gradients with {AFFINE_WORDS[affine]}: {reason}")
    for rank, case in finder.by_rank().items():
        if rank in finder.scope.ranks:
            case = replace(finder.backward, shape=case.shape)
            if (reason := finder.declines(case)) is not None:
                ranks.append(rank)
                finder.reasons.append(f"gradients of an x of {rank} axes: {reason}")
    finder.scope = replace(
        finder.scope, affines_without_gradient=tuple(affines), ranks_without_gradient=tuple(ranks)
    )


def _first_backward(finder: ScopeFinder) -> tuple[Case | None, ImplementationError | None]:
    """Return a backward that does not raise, if any, and what the first one raises."""
    first = None
    by_rank = finder.by_rank()
    for shape in (finder.case.shape, *(by_rank[rank].shape for rank in finder.scope.ranks)):
        for affine in finder.scope.affines:
            case = replace(finder.case, shape=shape, affine=affine, direction=Direction.BACKWARD)
            if (reason := finder.declines(case)) is None:
                return case, first
            first = first or reason
    return None, first


def find_empty(finder: ScopeFinder) -> None:
    """Find whether an x without elements is taken, and in a backward."""
    if (reason := _declined_empty(finder, finder.case)) is not None:
        finder.scope = replace(finder.scope, takes_empty=False)
        text = f"declines an empty x {reason}"
    elif finder.backward and (reason := _declined_empty(finder, finder.backward)) is not None:
        finder.scope = replace(finder.scope, takes_empty_backward=False)
        text = f"declines the gradients of an empty x {reason}"
    else:
        return
    finder.remarks.append(Remark(kind=RemarkKind.DECLINES_EMPTY, text=text))


def _declined_empty(finder: ScopeFinder, case: Case) -> str | None:
    """Return the first empty shape that is declined, and why; None if each is taken."""
    shape = case.shape
    empty = [(0, *shape[1:])] if len(shape) > case.normalized_dims else []
    if finder.scope.normalized_shape is None:
        empty.append((*shape[:-1], 0))
    for shape in empty:
        if (reason := finder.declines(replace(case, shape=shape))) is not None:
            return f"({shape_text(shape)}): {reason}"
    return None
