"""Find out what of the contract a target takes, by calling it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.inputs import LAYOUTS, make_inputs
from harness.numerics.computed import ImplementationError
from harness.records import Affine, Case, Direction, Status
from harness.verify.findings import Remark, RemarkKind
from harness.verify.identify import normalises_the_last_alone
from harness.verify.scope import RICHEST_FIRST, Scope, adapter_of
from harness.verify.trial import first_case
from implementations.contract import Implementation, UnsupportedError
from implementations.targets.from_function import NamedFunction
from implementations.targets.from_module import ModuleFunction
from implementations.targets.meaning import CallOptions, Meaning

__all__ = ["find_scope"]

_WIDTH = 32
_RANKS = (2, 3, 4, 1, 5)  # the number of axes of x, the most usual first
_LEADING = (2, 3, 2, 2)
_SEVERAL = (2, 3, 5, 7)
_EPS = (0.0, 1e-12, 0.5)
_HALVES = {"float16", "bfloat16"}

TryOne = Callable[[Implementation, Case], ImplementationError | None]
"""Runs a case, and returns what was raised; None if it was answered, however wrong."""


def find_scope(
    implementation: Implementation,
    meaning: Meaning | None,
    dtypes: tuple[str, ...],
    device: str,
    options: CallOptions,
    try_one: TryOne,
) -> tuple[Scope, tuple[Remark, ...]]:
    """Find out by calling the target what it takes.

    Args:
        implementation: not yet wrapped in :class:`InScope`.
        meaning: what it computes, if that was found out.
        dtypes: names, tried in this order until it answers in one.
        device: device kind.
        options: what the user says of it.
        try_one: runs a case, and returns what was raised, or None.

    Raises:
        UnsupportedError: it answers in no form; the message has the first reason.
    """
    scope = _from_meaning(implementation, meaning, options)
    case, scope = _first_answered(implementation, scope, dtypes, device, try_one)
    found = _Finder(implementation, case, scope, try_one)
    found.look_at_ranks()
    found.look_at_affines()
    if scope.channels_first and meaning is not None:
        found.tell_spatial_axes(meaning.spatial_counts)
    found.look_at_axes(options)
    found.look_at_eps()
    found.look_at_gradients()
    found.look_at_empty()
    found.look_at_layouts()
    for dtype in dtypes:
        if dtype in _HALVES:
            found.look_at_mixed_dtypes(dtype)
    scope = replace(found.scope, reasons=tuple(found.reasons))
    if scope.fit(first_case(implementation.name, dtypes[0], device)) is None:
        raise UnsupportedError(f"it answers only in part: {'; '.join(scope.reasons)}")
    return scope, tuple(found.remarks)


def _from_meaning(
    implementation: Implementation, meaning: Meaning | None, options: CallOptions
) -> Scope:
    adapter = adapter_of(implementation)
    scope = Scope(eps=options.eps)
    if meaning is not None:
        eps = meaning.eps if meaning.eps is not None else options.eps
        scope = replace(scope, eps=eps, default_eps=meaning.default_eps)
    if adapter is not None and meaning is not None:
        shape = adapter.normalized_shape
        dims = scope.normalized_dims if adapter.takes_several_axes else (1,)
        scope = replace(
            scope,
            normalized_shape=shape,
            normalized_dims=dims if shape is None else (len(shape),),
            channels_first=meaning.channels_first,
        )
    if meaning is not None and meaning.width is not None:
        scope = replace(scope, normalized_shape=(meaning.width,), normalized_dims=(1,))
    if options.normalized_dims is not None:
        scope = replace(scope, normalized_dims=(options.normalized_dims,))
    return scope


def _first_answered(
    implementation: Implementation,
    scope: Scope,
    dtypes: tuple[str, ...],
    device: str,
    try_one: TryOne,
) -> tuple[Case, Scope]:
    """Return the first case that the target answers, and its scope with that affine and rank."""
    first: ImplementationError | None = None
    for dtype in dtypes:
        for affine in RICHEST_FIRST:
            for rank in _RANKS:
                case = _case_of_rank(implementation, rank, dtype, device)
                some = replace(scope, affines=(affine,), ranks=(rank,))
                asked = some.fit(case)
                if asked is None:
                    continue
                raised = try_one(implementation, asked)
                if raised is None:
                    return asked, some
                first = first or raised
    raise UnsupportedError(f"it answers in no form tried; first: {first}")


def _case_of_rank(implementation: Implementation, rank: int, dtype: str, device: str) -> Case:
    return Case(
        implementation=implementation.name,
        shape=(*_LEADING[: rank - 1], _WIDTH),
        dtype=dtype,
        param_dtype=dtype,
        device=device,
        direction=Direction.FORWARD,
    )


class _Finder:
    """Asks one question after another, and keeps what was found."""

    def __init__(
        self,
        implementation: Implementation,
        case: Case,
        scope: Scope,
        try_one: TryOne,
    ) -> None:
        self.implementation, self.case, self.scope = implementation, case, scope
        self.reasons: list[str] = []
        self.remarks: list[Remark] = []
        self._try_one = try_one

    def _declines(self, case: Case) -> ImplementationError | None:
        """Return what the target raises for a case, and for one of other sizes.

        None if it answers either, however wrong: what is outside the scope is never tried.
        """
        raised = self._try_one(self.implementation, case)
        other = self._of_other_sizes(case)
        if raised is None or raised.status is Status.UNSUPPORTED or other is None:
            return raised
        return raised if self._try_one(self.implementation, other) is not None else None

    def _of_other_sizes(self, case: Case) -> Case | None:
        """Return the case with an odd width and odd batches; None if it is about its sizes."""
        if 0 in case.shape:
            return None
        leading = tuple(size + 1 for size in case.shape[: len(case.shape) - case.normalized_dims])
        axes = case.normalized_shape
        if self.scope.normalized_shape is None:
            axes = tuple(size + 4 for size in axes)
        return replace(case, shape=(*leading, *axes))

    def look_at_ranks(self) -> None:
        taken = []
        for rank in sorted(_RANKS):
            asked = _case_of_rank(self.implementation, rank, self.case.dtype, self.case.device)
            asked = self.scope.fit(asked) or asked
            if (reason := self._declines(asked)) is None:
                taken.append(len(asked.shape))
            elif rank > 1:
                self.reasons.append(f"x of {len(asked.shape)} axes: {reason}")
        self.scope = replace(self.scope, ranks=tuple(taken or [len(self.case.shape)]))

    def tell_spatial_axes(self, taken: tuple[int, ...]) -> None:
        """Say which images of channels first it does not take."""
        declined = [str(each + 2) for each in (1, 2, 3) if each not in taken]
        if declined:
            self.reasons.append(f"x of {' or '.join(declined)} axes, channels first: it raises")

    def look_at_affines(self) -> None:
        taken = []
        for affine in RICHEST_FIRST:
            asked = replace(self.case, affine=affine)
            if (reason := self._declines(asked)) is None:
                taken.append(affine)
            elif reason.status is not Status.UNSUPPORTED:
                self.reasons.append(f"{_AFFINE_WORDS[affine]}: {reason}")
        self.scope = replace(self.scope, affines=tuple(taken) or self.scope.affines)

    def look_at_axes(self, options: CallOptions) -> None:
        """Try several normalized axes, on a target that claims to take them."""
        if options.normalized_dims is not None or self.scope.normalized_shape is not None:
            return
        if self.scope.normalized_dims == (1,):
            adapter = adapter_of(self.implementation)
            if isinstance(adapter, ModuleFunction | NamedFunction):
                self.reasons.append("several normalized axes: it takes one size")
            return
        taken = [1]
        for dims in (2, 3, 4):
            asked = replace(self.case, shape=_SEVERAL, normalized_dims=dims)
            if self.scope.ranks and 4 not in self.scope.ranks:
                asked = replace(asked, shape=_SEVERAL[-max(self.scope.ranks) :])
            if len(asked.shape) < dims:
                continue
            reason = self._declines(asked)
            if reason is None and normalises_the_last_alone(self.implementation, asked):
                self.remarks.append(
                    Remark(
                        kind=RemarkKind.SEVERAL_AXES_IGNORED,
                        text=f"accepts a normalized_shape of {dims} axes, such as "
                        f"{list(asked.normalized_shape)}, and normalises the last axis alone",
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

    def look_at_eps(self) -> None:
        if self.scope.eps is not None:
            return
        for eps in _EPS:
            if (reason := self._declines(replace(self.case, eps=eps))) is not None:
                self.reasons.append(f"eps = {eps:g}: {reason}")
                if eps < 1e-5:
                    self.scope = replace(self.scope, least_eps=1e-8 if eps else 1e-12)

    def look_at_gradients(self) -> None:
        if self.implementation.forward_only:
            return
        reason = self._declines(replace(self.case, direction=Direction.BACKWARD))
        if reason is not None:
            self.reasons.append(f"gradients: {reason}")
            self.scope = replace(self.scope, has_gradient=False)

    def look_at_empty(self) -> None:
        shape = self.case.shape
        empty = [(0, *shape[1:])] if len(shape) > self.case.normalized_dims else []
        if self.scope.normalized_shape is None:
            empty.append((*shape[:-1], 0))
        for each in empty:
            reason = self._declines(replace(self.case, shape=each))
            if reason is not None:
                self.scope = replace(self.scope, takes_empty=False)
                self._remark(RemarkKind.DECLINES_EMPTY, f"an empty x ({_text(each)}): {reason}")
                return

    def look_at_layouts(self) -> None:
        declined = []
        for layout in LAYOUTS:
            asked = replace(self.case, layout=layout)
            if (reason := self._declines(asked)) is not None:
                declined.append(layout)
                self._remark(RemarkKind.DECLINES_LAYOUT, f"an x in the layout {layout}: {reason}")
        self.scope = replace(self.scope, declined_layouts=tuple(declined))

    def look_at_mixed_dtypes(self, dtype: str) -> None:
        """Try x in half precision with parameters in float32, as in mixed-precision training."""
        asked = replace(self.case, dtype=dtype, param_dtype="float32")
        if asked.affine is Affine.NONE or self._declines(replace(asked, param_dtype=dtype)):
            return
        if (reason := self._declines(asked)) is not None:
            self.reasons.append(f"{dtype} x with float32 parameters: {reason}")
            self.scope = replace(self.scope, takes_mixed_dtypes=False)
            return
        inputs = make_inputs(asked)
        call: Any = self.implementation.function
        with torch.no_grad():
            y = call(inputs.x, asked.normalized_shape, inputs.weight, inputs.bias, asked.eps)
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

    def _remark(self, kind: RemarkKind, declined: str) -> None:
        self.remarks.append(Remark(kind=kind, text=f"declines {declined}"))


_AFFINE_WORDS = {
    Affine.BOTH: "weight and bias",
    Affine.WEIGHT: "weight without bias",
    Affine.BIAS: "bias without weight",
    Affine.NONE: "neither weight nor bias",
}


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
