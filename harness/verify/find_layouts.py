"""Find the layouts of x, dy and the parameters that a target declines."""

from __future__ import annotations

from dataclasses import replace

from harness.inputs import LAYOUT_OF, LAYOUTS, make_inputs
from harness.numerics.computed import ImplementationError
from harness.records import Affine, Case
from harness.verify.findings import Remark, RemarkKind
from harness.verify.scope_finder import SEVERAL, ScopeFinder, case_of_rank

__all__ = ["find_layouts"]


def find_layouts(finder: ScopeFinder) -> None:
    """Try each layout of x, of dy, and of the parameters."""
    declined = []
    for layout in LAYOUTS:
        if (reason := finder.declines(_in_layout(finder, layout))) is not None:
            declined.append(layout)
            _add_declined_layout(finder, f"an x in the layout {layout}", reason)
    finder.scope = replace(finder.scope, declined_layouts=tuple(declined))
    _find_layouts_of_dy(finder)
    _find_layouts_of_parameters(finder)


def _in_layout(finder: ScopeFinder, layout: str) -> Case:
    """Return a case in the layout, with axes enough that x is not contiguous, if any are."""
    of_ranks = (
        case_of_rank(finder.implementation, rank, finder.case.dtype, finder.case.device)
        for rank in sorted(finder.scope.ranks)
    )
    usual = replace(finder.case, layout=layout)
    for case in (usual, *filter(None, map(finder.scope.fit, of_ranks))):
        strided = replace(case, layout=layout)
        if not make_inputs(strided).x.is_contiguous():
            return strided
    return usual


def _find_layouts_of_dy(finder: ScopeFinder) -> None:
    """Try each output gradient that has a layout of its own."""
    if finder.backward is None:
        return
    declined = []
    for name in LAYOUT_OF:
        if (reason := finder.declines(replace(finder.backward, grad_output=name))) is not None:
            declined.append(name)
            _add_declined_layout(finder, f"a dy in the layout of {name}", reason)
    finder.scope = replace(finder.scope, declined_grad_outputs=tuple(declined))


def _find_layouts_of_parameters(finder: ScopeFinder) -> None:
    """Try a weight and bias of two axes that are transposed."""
    case = replace(finder.case, parameters="transposed")
    if finder.scope.normalized_shape is None and 2 in finder.scope.normalized_dims:
        case = replace(case, shape=SEVERAL[-max(finder.scope.ranks) :], normalized_dims=2)
    if case.affine is Affine.NONE or case.normalized_dims < 2:
        return
    if (reason := finder.declines(case)) is not None:
        finder.scope = replace(finder.scope, declined_parameters=("transposed",))
        _add_declined_layout(finder, "a weight or bias in the layout transposed", reason)


def _add_declined_layout(finder: ScopeFinder, what: str, reason: ImplementationError) -> None:
    text = f"declines {what}: {reason}"
    finder.remarks.append(Remark(kind=RemarkKind.DECLINES_LAYOUT, text=text))
