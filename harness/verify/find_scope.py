"""Find a target's scope: the part of the contract that it takes, found by calling it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.inputs import make_inputs
from harness.numerics.computed import ImplementationError
from harness.records import Affine, Case, Status
from harness.verify.find_gradients import find_empty, find_gradients
from harness.verify.find_layouts import find_layouts
from harness.verify.findings import Remark, RemarkKind
from harness.verify.identify import normalises_the_last_alone, scope_from_meaning
from harness.verify.scope import AFFINE_WORDS, RICHEST_FIRST, Scope, adapter_of
from harness.verify.scope_finder import RANKS, SEVERAL, ScopeFinder, TryOne, case_of_rank
from harness.verify.trial import first_case
from implementations.contract import Implementation, UnsupportedError
from implementations.targets.from_function import NamedFunction
from implementations.targets.from_module import ModuleFunction
from implementations.targets.meaning import CallOptions, Meaning

__all__ = ["find_scope"]

_EPS = (0.0, 1e-12, 0.5)  # the extremes of the catalogue
_HALVES = {"float16", "bfloat16"}


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
    finder = ScopeFinder(implementation, case, scope, try_one)
    _find_ranks(finder)
    _find_affines(finder)
    find_gradients(finder)
    if scope.channels_first and meaning is not None:
        _add_spatial_axes(finder, meaning.spatial_counts)
    _find_normalized_dims(finder, options)
    _find_least_eps(finder)
    find_empty(finder)
    find_layouts(finder)
    for dtype in dtypes:
        if dtype in _HALVES:
            _find_mixed_dtypes(finder, dtype)
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
            for rank in RANKS:
                case = case_of_rank(implementation, rank, dtype, device)
                some = replace(scope, affines=(affine,), ranks=(rank,))
                nearest = some.fit(case)
                if nearest is None:
                    continue
                raised = try_one(implementation, nearest)
                if raised is None:
                    return nearest, some
                first = first or raised
    raise UnsupportedError(f"it raises in every form tried; first: {first}")


def _find_ranks(finder: ScopeFinder) -> None:
    taken = []
    for rank, case in finder.by_rank().items():
        if (reason := finder.declines(case)) is None:
            taken.append(rank)
        elif rank > case.normalized_dims:
            finder.reasons.append(f"x of {rank} axes: {reason}")
    finder.scope = replace(finder.scope, ranks=tuple(taken or [len(finder.case.shape)]))


def _add_spatial_axes(finder: ScopeFinder, taken: tuple[int, ...]) -> None:
    """Add to the reasons the numbers of axes that a channels-first target does not take."""
    declined = [str(each + 2) for each in (1, 2, 3) if each not in taken]
    if declined:
        finder.reasons.append(f"x of {' or '.join(declined)} axes, channels first: it raises")


def _find_affines(finder: ScopeFinder) -> None:
    taken = []
    for affine in RICHEST_FIRST:
        case = replace(finder.case, affine=affine)
        if (reason := finder.declines(case)) is None:
            taken.append(affine)
        elif reason.status is not Status.UNSUPPORTED:
            finder.reasons.append(f"{AFFINE_WORDS[affine]}: {reason}")
    finder.scope = replace(finder.scope, affines=tuple(taken) or finder.scope.affines)


def _find_normalized_dims(finder: ScopeFinder, options: CallOptions) -> None:
    """Try several normalized axes on a target that may take them."""
    if options.normalized_dims is not None or finder.scope.normalized_shape is not None:
        return
    if finder.scope.normalized_dims == (1,):
        adapter = adapter_of(finder.implementation)
        if isinstance(adapter, ModuleFunction | NamedFunction):
            finder.reasons.append("several normalized axes: it takes one size")
        return
    taken = [1]
    for dims in (2, 3, 4):
        case = replace(finder.case, shape=SEVERAL, normalized_dims=dims)
        if finder.scope.ranks and 4 not in finder.scope.ranks:
            case = replace(case, shape=SEVERAL[-max(finder.scope.ranks) :])
        if len(case.shape) < dims:
            continue
        reason = finder.declines(case)
        if reason is None and normalises_the_last_alone(finder.implementation, case):
            finder.remarks.append(
                Remark(
                    kind=RemarkKind.SEVERAL_AXES_IGNORED,
                    text=f"accepts a normalized_shape of {dims} axes, such as "
                    f"{list(case.normalized_shape)}, but normalises only the last axis",
                )
            )
            break
        if reason is not None:
            finder.reasons.append(f"{dims} normalized axes: {reason}")
            break
        taken.append(dims)
    if len(taken) == 4:
        taken.append(5)
    finder.scope = replace(finder.scope, normalized_dims=tuple(taken))


def _find_least_eps(finder: ScopeFinder) -> None:
    if finder.scope.eps is not None:
        return
    for eps in _EPS:
        if (reason := finder.declines(replace(finder.case, eps=eps))) is not None:
            finder.reasons.append(f"eps = {eps:g}: {reason}")
            if eps < 1e-5:
                finder.scope = replace(finder.scope, least_eps=1e-8 if eps else 1e-12)


def _find_mixed_dtypes(finder: ScopeFinder, dtype: str) -> None:
    """Try x in half precision with parameters in float32, as in mixed-precision training."""
    case = replace(finder.case, dtype=dtype, param_dtype="float32")
    if case.affine is Affine.NONE or finder.declines(replace(case, param_dtype=dtype)):
        return
    if (reason := finder.declines(case)) is not None:
        finder.reasons.append(f"{dtype} x with float32 parameters: {reason}")
        finder.scope = replace(finder.scope, takes_mixed_dtypes=False)
        return
    inputs = make_inputs(case)
    call: Any = finder.implementation.function
    with torch.no_grad():
        y = call(inputs.x, case.normalized_shape, inputs.weight, inputs.bias, case.eps)
    if isinstance(y, Tensor) and y.dtype == torch.float32:
        finder.scope = replace(finder.scope, promotes=True)
        finder.remarks.append(
            Remark(
                kind=RemarkKind.PROMOTES,
                text="returns float32 for a half-precision x with float32 parameters; torch "
                "returns x's dtype",
                dtypes=(dtype,),
            )
        )
