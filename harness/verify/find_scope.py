"""Find a target's scope: the part of the contract that it takes, found by calling it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.inputs import LAYOUT_OF, LAYOUTS, make_inputs
from harness.numerics.computed import ImplementationError
from harness.records import Affine, Case, Direction, Status
from harness.records.text import shape_text
from harness.verify.findings import Remark, RemarkKind
from harness.verify.identify import normalises_the_last_alone, scope_from_meaning
from harness.verify.scope import AFFINE_WORDS, RICHEST_FIRST, Scope, adapter_of
from harness.verify.trial import first_case
from implementations.contract import Implementation, UnsupportedError
from implementations.targets.from_function import NamedFunction
from implementations.targets.from_module import ModuleFunction
from implementations.targets.meaning import CallOptions, Meaning

__all__ = ["find_scope"]

_WIDTH = 32  # of the first case
_RANKS = (2, 3, 4, 1, 5)  # numbers of axes of x, the most usual first
_LEADING = (2, 3, 2, 2)  # sizes of the other axes
_SEVERAL = (2, 3, 5, 7)  # all different, so that no axis is taken for another
_EPS = (0.0, 1e-12, 0.5)  # the extremes of the catalogue
_HALVES = {"float16", "bfloat16"}

TryOne = Callable[[Implementation, Case], ImplementationError | None]
"""Runs a case and returns what was raised; None if a result came back, even a wrong one."""


def find_scope(
    implementation: Implementation,
    meaning: Meaning | None,
    dtypes: tuple[str, ...],
    device: str,
    options: CallOptions,
    try_one: TryOne,
) -> tuple[Scope, tuple[Remark, ...]]:
    """Return the target's scope, and remarks on what lies outside it.

    Args:
        implementation: not yet wrapped in :class:`InScope`.
        meaning: what the target computes, if known.
        dtypes: names, tried in this order up to the first that does not raise.
        device: device kind.
        options: how the target is to be called.
        try_one: runs a case and returns what was raised, or None.

    Raises:
        UnsupportedError: the target raises in every form; the message has the first reason.
    """
    scope = scope_from_meaning(implementation, meaning, options)
    case, scope = _first_accepted(implementation, scope, dtypes, device, try_one)
    finder = _Finder(implementation, case, scope, try_one)
    finder.find_ranks()
    finder.find_affines()
    finder.find_gradients()
    if scope.channels_first and meaning is not None:
        finder.add_spatial_axes(meaning.spatial_counts)
    finder.find_normalized_dims(options)
    finder.find_least_eps()
    finder.find_empty()
    finder.find_layouts()
    for dtype in dtypes:
        if dtype in _HALVES:
            finder.find_mixed_dtypes(dtype)
    scope = replace(finder.scope, reasons=tuple(finder.reasons))
    if scope.fit(first_case(implementation.name, dtypes[0], device)) is None:
        raise UnsupportedError(f"it raises in the first case: {'; '.join(scope.reasons)}")
    return scope, tuple(finder.remarks)


def _first_accepted(
    implementation: Implementation,
    scope: Scope,
    dtypes: tuple[str, ...],
    device: str,
    try_one: TryOne,
) -> tuple[Case, Scope]:
    """Return the first case that does not raise, and the scope with its affine and rank."""
    first: ImplementationError | None = None
    for dtype in dtypes:
        for affine in RICHEST_FIRST:
            for rank in _RANKS:
                case = _case_of_rank(implementation, rank, dtype, device)
                some = replace(scope, affines=(affine,), ranks=(rank,))
                nearest = some.fit(case)
                if nearest is None:
                    continue
                raised = try_one(implementation, nearest)
                if raised is None:
                    return nearest, some
                first = first or raised
    raise UnsupportedError(f"it raises in every form tried; first: {first}")


def _case_of_rank(implementation: Implementation, rank: int, dtype: str, device: str) -> Case:
    case = first_case(implementation.name, dtype, device)
    return replace(case, shape=(*_LEADING[: rank - 1], _WIDTH))


class _Finder:
    """Tries one part of the contract after another, and narrows the scope by what raises."""

    def __init__(
        self,
        implementation: Implementation,
        case: Case,
        scope: Scope,
        try_one: TryOne,
    ) -> None:
        self.implementation, self.case, self.scope = implementation, case, scope
        self.backward: Case | None = None  # one that does not raise, if any
        self.reasons: list[str] = []
        self.remarks: list[Remark] = []
        self._try_one = try_one

    def _declines(self, case: Case) -> ImplementationError | None:
        """Return what the target raises for a case and for the same case of other sizes.

        None if one of them returns, even a wrong result: cases outside the scope are never tried,
        so that a mistake there would be missed.
        """
        raised = self._try_one(self.implementation, case)
        other = self._with_other_sizes(case)
        if raised is None or raised.status is Status.UNSUPPORTED or other is None:
            return raised
        return raised if self._try_one(self.implementation, other) is not None else None

    def _with_other_sizes(self, case: Case) -> Case | None:
        """Return the case with odd sizes; None for an empty x, which is about its size."""
        if 0 in case.shape:
            return None
        leading = tuple(size + 1 for size in case.shape[: len(case.shape) - case.normalized_dims])
        axes = case.normalized_shape
        if self.scope.normalized_shape is None:
            axes = tuple(size + 4 for size in axes)
        return replace(case, shape=(*leading, *axes))

    def find_ranks(self) -> None:
        taken = []
        for rank, case in self._by_rank().items():
            if (reason := self._declines(case)) is None:
                taken.append(rank)
            elif rank > case.normalized_dims:
                self.reasons.append(f"x of {rank} axes: {reason}")
        self.scope = replace(self.scope, ranks=tuple(taken or [len(self.case.shape)]))

    def _by_rank(self) -> dict[int, Case]:
        """Return a case for each number of axes of x."""
        cases = (
            _case_of_rank(self.implementation, rank, self.case.dtype, self.case.device)
            for rank in sorted(_RANKS)
        )
        fitted = (self.scope.fit(case) or case for case in cases)
        return {len(case.shape): case for case in fitted}

    def add_spatial_axes(self, taken: tuple[int, ...]) -> None:
        """Add to the reasons the numbers of axes that a channels-first target does not take."""
        declined = [str(each + 2) for each in (1, 2, 3) if each not in taken]
        if declined:
            self.reasons.append(f"x of {' or '.join(declined)} axes, channels first: it raises")

    def find_affines(self) -> None:
        taken = []
        for affine in RICHEST_FIRST:
            case = replace(self.case, affine=affine)
            if (reason := self._declines(case)) is None:
                taken.append(affine)
            elif reason.status is not Status.UNSUPPORTED:
                self.reasons.append(f"{AFFINE_WORDS[affine]}: {reason}")
        self.scope = replace(self.scope, affines=tuple(taken) or self.scope.affines)

    def find_normalized_dims(self, options: CallOptions) -> None:
        """Try several normalized axes on a target that may take them."""
        if options.normalized_dims is not None or self.scope.normalized_shape is not None:
            return
        if self.scope.normalized_dims == (1,):
            adapter = adapter_of(self.implementation)
            if isinstance(adapter, ModuleFunction | NamedFunction):
                self.reasons.append("several normalized axes: it takes one size")
            return
        taken = [1]
        for dims in (2, 3, 4):
            case = replace(self.case, shape=_SEVERAL, normalized_dims=dims)
            if self.scope.ranks and 4 not in self.scope.ranks:
                case = replace(case, shape=_SEVERAL[-max(self.scope.ranks) :])
            if len(case.shape) < dims:
                continue
            reason = self._declines(case)
            if reason is None and normalises_the_last_alone(self.implementation, case):
                self.remarks.append(
                    Remark(
                        kind=RemarkKind.SEVERAL_AXES_IGNORED,
                        text=f"accepts a normalized_shape of {dims} axes, such as "
                        f"{list(case.normalized_shape)}, but normalises only the last axis",
                    )
                )
                break
            if reason is not None:
                self.reasons.append(f"{dims} normalized axes: {reason}")
                break
            taken.append(dims)
        if len(taken) == 4:
            taken.append(5)
        self.scope = replace(self.scope, normalized_dims=tuple(taken))

    def find_least_eps(self) -> None:
        if self.scope.eps is not None:
            return
        for eps in _EPS:
            if (reason := self._declines(replace(self.case, eps=eps))) is not None:
                self.reasons.append(f"eps = {eps:g}: {reason}")
                if eps < 1e-5:
                    self.scope = replace(self.scope, least_eps=1e-8 if eps else 1e-12)

    def find_gradients(self) -> None:
        """Find which numbers of axes and which combinations of parameters have a backward."""
        if self.implementation.forward_only:
            return
        self.backward, reason = self._first_backward()
        if self.backward is None:
            self.reasons.append(f"gradients: {reason}")
            self.scope = replace(self.scope, has_gradient=False)
            return
        affines, ranks = list[Affine](), list[int]()
        for affine in self.scope.affines:
            if (reason := self._declines(replace(self.backward, affine=affine))) is not None:
                affines.append(affine)
                self.reasons.append(f"gradients with {AFFINE_WORDS[affine]}: {reason}")
        for rank, case in self._by_rank().items():
            if rank in self.scope.ranks:
                case = replace(self.backward, shape=case.shape)
                if (reason := self._declines(case)) is not None:
                    ranks.append(rank)
                    self.reasons.append(f"gradients of an x of {rank} axes: {reason}")
        self.scope = replace(
            self.scope, affines_without_gradient=tuple(affines), ranks_without_gradient=tuple(ranks)
        )

    def _first_backward(self) -> tuple[Case | None, ImplementationError | None]:
        """Return a backward that does not raise, if any, and what the first one raises."""
        first = None
        by_rank = self._by_rank()
        for shape in (self.case.shape, *(by_rank[rank].shape for rank in self.scope.ranks)):
            for affine in self.scope.affines:
                case = replace(self.case, shape=shape, affine=affine, direction=Direction.BACKWARD)
                if (reason := self._declines(case)) is None:
                    return case, first
                first = first or reason
        return None, first

    def find_empty(self) -> None:
        if (reason := self._declined_empty(self.case)) is not None:
            self.scope = replace(self.scope, takes_empty=False)
            text = f"declines an empty x {reason}"
        elif self.backward and (reason := self._declined_empty(self.backward)) is not None:
            self.scope = replace(self.scope, takes_empty_backward=False)
            text = f"declines the gradients of an empty x {reason}"
        else:
            return
        self.remarks.append(Remark(kind=RemarkKind.DECLINES_EMPTY, text=text))

    def _declined_empty(self, case: Case) -> str | None:
        """Return the first empty shape that is declined, and why; None if each is taken."""
        shape = case.shape
        empty = [(0, *shape[1:])] if len(shape) > case.normalized_dims else []
        if self.scope.normalized_shape is None:
            empty.append((*shape[:-1], 0))
        for shape in empty:
            if (reason := self._declines(replace(case, shape=shape))) is not None:
                return f"({shape_text(shape)}): {reason}"
        return None

    def find_layouts(self) -> None:
        declined = []
        for layout in LAYOUTS:
            if (reason := self._declines(self._in_layout(layout))) is not None:
                declined.append(layout)
                self._add_declined_layout(f"an x in the layout {layout}", reason)
        self.scope = replace(self.scope, declined_layouts=tuple(declined))
        self._find_layouts_of_dy()
        self._find_layouts_of_parameters()

    def _in_layout(self, layout: str) -> Case:
        """Return a case in the layout, with axes enough that x is not contiguous, if any are."""
        of_ranks = (
            _case_of_rank(self.implementation, rank, self.case.dtype, self.case.device)
            for rank in sorted(self.scope.ranks)
        )
        usual = replace(self.case, layout=layout)
        for case in (usual, *filter(None, map(self.scope.fit, of_ranks))):
            strided = replace(case, layout=layout)
            if not make_inputs(strided).x.is_contiguous():
                return strided
        return usual

    def _find_layouts_of_dy(self) -> None:
        """Try each output gradient that has a layout of its own."""
        if self.backward is None:
            return
        declined = []
        for name in LAYOUT_OF:
            if (reason := self._declines(replace(self.backward, grad_output=name))) is not None:
                declined.append(name)
                self._add_declined_layout(f"a dy in the layout of {name}", reason)
        self.scope = replace(self.scope, declined_grad_outputs=tuple(declined))

    def _find_layouts_of_parameters(self) -> None:
        """Try a weight and bias of two axes that are transposed."""
        case = replace(self.case, parameters="transposed")
        if self.scope.normalized_shape is None and 2 in self.scope.normalized_dims:
            case = replace(case, shape=_SEVERAL[-max(self.scope.ranks) :], normalized_dims=2)
        if case.affine is Affine.NONE or case.normalized_dims < 2:
            return
        if (reason := self._declines(case)) is not None:
            self.scope = replace(self.scope, declined_parameters=("transposed",))
            self._add_declined_layout("a weight or bias in the layout transposed", reason)

    def _add_declined_layout(self, what: str, reason: ImplementationError) -> None:
        text = f"declines {what}: {reason}"
        self.remarks.append(Remark(kind=RemarkKind.DECLINES_LAYOUT, text=text))

    def find_mixed_dtypes(self, dtype: str) -> None:
        """Try x in half precision with parameters in float32, as in mixed-precision training."""
        case = replace(self.case, dtype=dtype, param_dtype="float32")
        if case.affine is Affine.NONE or self._declines(replace(case, param_dtype=dtype)):
            return
        if (reason := self._declines(case)) is not None:
            self.reasons.append(f"{dtype} x with float32 parameters: {reason}")
            self.scope = replace(self.scope, takes_mixed_dtypes=False)
            return
        inputs = make_inputs(case)
        call: Any = self.implementation.function
        with torch.no_grad():
            y = call(inputs.x, case.normalized_shape, inputs.weight, inputs.bias, case.eps)
        if isinstance(y, Tensor) and y.dtype == torch.float32:
            self.scope = replace(self.scope, promotes=True)
            self.remarks.append(
                Remark(
                    kind=RemarkKind.PROMOTES,
                    text="returns float32 for a half-precision x with float32 parameters; torch "
                    "returns x's dtype",
                    dtypes=(dtype,),
                )
            )
