"""Probes for mistakes that no mutant can match: inputs on which one mistake has a known result.

Two functions with the same rounding mistake still round differently, so that their outputs are as
far from each other as from the exact result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from harness.inputs import make_inputs
from harness.numerics.bound_ratio import bound_ratios
from harness.numerics.bounds import guarantee_of
from harness.numerics.computed import (
    ContractViolationError,
    ImplementationError,
    checked,
    guarded,
)
from harness.numerics.outputs import GRADIENTS, OUTPUTS
from harness.numerics.rounding import unit_roundoff
from harness.numerics.verdict import status_of
from harness.records import Case, Direction, Status
from harness.verify.checks.outputs import compute
from harness.verify.findings import Suspect
from harness.verify.mutants.mutant import as_if_contiguous
from harness.verify.scope import fitted, scope_of
from harness.verify.trial import Trial, exact_of, first_case, outputs_of, try_case
from harness.verify.unexplained import MATCH_RATIO, unexplained
from implementations.contract import Algorithm, Implementation, Reduction
from implementations.targets.recognise import measured_eps

__all__ = [
    "cancelling_variance",
    "computed_in_float32",
    "constant_eps",
    "missing_gradient",
    "narrow_sums",
    "strided_read_as_dense",
]

_ROWS = 4100  # more ones than bfloat16 (256) and float16 (2048) can count
_FAR_RATIO = 1e4  # times the float64 bound; float32 rounds 5e8 times as coarsely
_CLEAR_RATIO = 10  # times the bound, as in diagnosis.py
_MOST_JUDGED = 6  # the smallest failures; a mistake that explains them explains the others
_DENSE_COPIES = 3  # of the smallest failures; of a mistake in all layouts, the first copy fails
_EPS = (1e-3, 1e-7)
_NEAR = 1e-3  # of the norm of y; a LayerNorm with the measured eps is closer
_HALVES = {"float16", "bfloat16"}


def cancelling_variance(
    implementation: Implementation, failures: Sequence[Trial]
) -> Iterator[Suspect]:
    """Test for E[x^2] - E[x]^2, whose errors are large only where the mean is large.

    It matches if every failed case is within the bound of a one-pass algorithm, one of them with
    a finite bound, and one clearly beyond the target's own bound.
    """
    measured = [each for each in failures if each.ratios]
    if not any(each.outputs_beyond(_CLEAR_RATIO) for each in measured):
        return
    small = sorted(measured, key=lambda each: each.case.rows * each.case.hidden)[:_MOST_JUDGED]
    if len(measured) < len(failures) or not small:
        return
    one_pass = replace(implementation, algorithm=Algorithm.ONE_PASS, reduction=Reduction.SEQUENTIAL)
    found = []
    for each in small:
        outputs = outputs_of(implementation, each.case)
        if outputs is None:
            return
        inputs, reference = exact_of(replace(each.case, implementation=""))
        guarantee = guarantee_of(one_pass, each.case)
        found.append(status_of(bound_ratios(outputs, inputs, each.case, guarantee, reference)))
    if Status.WRONG not in found and Status.OK in found:
        yield Suspect(
            name="one_pass_statistics",
            mistake="computes the variance as E[x^2] - E[x]^2, which cancels where the mean is "
            "large beside the deviations",
            dtypes=(small[0].case.dtype,),
            outputs=OUTPUTS,
        )


def constant_eps(implementation: Implementation, case: Case) -> Iterator[Suspect]:
    """Pass two values of eps, and measure which are added."""
    scope = scope_of(implementation)
    if scope.eps is not None:
        return
    probe = _probe(implementation, case, (6, 32))
    inputs = make_inputs(replace(probe, direction=Direction.FORWARD))
    weight, bias = (  # on the CPU, as the x by which eps is measured
        None if each is None else each.cpu().double().flatten()
        for each in (inputs.weight, inputs.bias)
    )

    def y_of(x: Tensor, eps: float) -> Tensor:
        given = x.to(inputs.x).reshape(inputs.x.shape)
        shape = probe.normalized_shape
        y = guarded(implementation.function, given, shape, inputs.weight, inputs.bias, eps)()
        return checked("y", y, given).reshape(x.shape).cpu()

    x = inputs.x.cpu().double().reshape(probe.rows, probe.hidden)
    try:
        with torch.no_grad():
            first, second = (
                measured_eps(partial(y_of, eps=eps), tuple(x.shape), -1, weight, bias)
                for eps in _EPS
            )
            y = y_of(x, _EPS[0]).double()
    except (ImplementationError, ContractViolationError):
        return
    if first is None or second is None or abs(first - second) > 0.01 * max(first, second):
        return
    like = functional.layer_norm(x, x.shape[-1:], weight, bias, first)
    if (y - like).norm() <= _NEAR * like.norm():
        yield Suspect(
            name="constant_eps",
            mistake=f"adds an eps of {first:.3g} for every eps that is passed",
            dtypes=(case.dtype,),
            outputs=OUTPUTS,
        )


def missing_gradient(failures: Sequence[Trial]) -> Iterator[Suspect]:
    """Name the gradients that are None."""
    names = {
        name
        for name in GRADIENTS
        if any(each.reason.startswith(f"{name} is None") for each in failures)
    }
    if names:
        yield Suspect(
            name="missing_gradient",
            mistake=f"gives no gradient ({', '.join(sorted(names))} is None)",
            dtypes=(failures[0].case.dtype,),
            outputs=tuple(sorted(names)),
        )


def strided_read_as_dense(
    implementation: Implementation, failures: Sequence[Trial]
) -> Iterator[Suspect]:
    """Test whether arguments that are not contiguous are read as if they were.

    Results are then right with dense copies, and a wrong result is the one for arguments that hold
    what lies in memory in place of their values.
    """
    layouts = {each.case.layout for each in failures if each.case.layout != "contiguous"}
    dense = [
        each
        for each in failures
        if each.case.layout == "contiguous" and each.case.parameters != "transposed"
    ]
    if dense or not failures:
        return
    smallest = sorted(failures, key=lambda each: each.case.rows * each.case.hidden)[:_DENSE_COPIES]
    for each in smallest:
        parameters = each.case.parameters.replace("transposed", "normal")
        plain = replace(each.case, layout="contiguous", parameters=parameters)
        if try_case(implementation, plain).status is Status.WRONG:
            return  # wrong in any layout, on other conditions
    left = [_left_by_dense_read(implementation, each) for each in smallest]
    explained = [each for each in left if each is not None and each < MATCH_RATIO]
    if not explained:
        return
    what = "an x" if layouts else "a weight or bias"
    yield Suspect(
        name="strided_read_as_dense",
        mistake=f"reads {what} that is not contiguous as if it were"
        + (f" (layouts: {', '.join(sorted(layouts))})" if layouts else ""),
        dtypes=(failures[0].case.dtype,),
        outputs=OUTPUTS,
        unexplained_ratio=min(explained),
    )


def _left_by_dense_read(implementation: Implementation, trial: Trial) -> float | None:
    """Return the part of the error that reading memory in order leaves unexplained, if known."""
    measured = trial.errors.outputs if trial.errors else ()
    wrong = [
        each.output
        for each in measured
        if each.bound_ratio is not None and not each.bound_ratio <= 1
    ]
    outputs = outputs_of(implementation, trial.case)
    if outputs is None or not wrong:
        return None
    inputs = make_inputs(trial.case)
    read = inputs.at([as_if_contiguous(each) for each in inputs.tensors])
    try:
        predicted = compute(implementation, replace(trial.case, layout="contiguous"), read)
    except (ImplementationError, ContractViolationError):
        return None
    return unexplained(outputs, predicted, trial.case, (wrong[0],))


def narrow_sums(implementation: Implementation, case: Case) -> Iterator[Suspect]:
    """Test how dweight and dbias are summed over the rows, using dbias.

    When counting to 4100, a narrow accumulator stops where adding 1 no longer changes it. If
    partial sums over portions of the rows are rounded, a 1 is lost between two large numbers of
    other portions.
    """
    counting = _probe(implementation, case, (_ROWS, 24))
    outputs = outputs_of(implementation, replace(counting, grad_output="ones"))
    if outputs is None or outputs.dbias is None:
        return
    counted = float(outputs.dbias.double().max())
    name = None
    if counted < 0.9 * _ROWS:
        name = f"narrow_sums_in_{case.dtype}"
        how = f"over the rows in {case.dtype} itself: {_ROWS} ones came to {counted:g}"
    elif case.dtype in _HALVES and _portions_lose_a_one(implementation, counting):
        name = "portions_added_in_parameter_dtype"
        how = f"in portions of the rows, and rounds to {case.dtype} after each"
    if name is not None:
        yield Suspect(
            name=name,
            mistake=f"adds up dweight and dbias {how}",
            dtypes=(case.dtype,),
            outputs=("dweight", "dbias"),
        )


def computed_in_float32(implementation: Implementation, case: Case) -> Iterator[Suspect]:
    """Test whether the error in float64 is that of float32.

    The test uses eps = 0, since a slightly wrong eps causes an error of the same size.
    """
    if case.dtype != "float64":
        return
    probe = _probe(implementation, case, (16, 64))
    if scope_of(implementation).eps is None:
        probe = replace(probe, eps=0.0)
    outputs = outputs_of(implementation, probe)
    if outputs is None:
        return
    inputs, reference = exact_of(replace(probe, implementation=""))
    wide = guarantee_of(implementation, probe)
    narrow = replace(wide, accumulate_dtype=torch.float32)
    by_wide, by_narrow = (
        bound_ratios(outputs, inputs, probe, each, reference) for each in (wide, narrow)
    )
    found = tuple(
        one.output
        for one, other in zip(by_wide, by_narrow, strict=True)
        if (one.bound_ratio or 0) > _FAR_RATIO and (other.bound_ratio or 0) <= 1
    )
    if found:
        yield Suspect(
            name="float64_in_float32",
            mistake="computes float64 in float32",
            dtypes=(case.dtype,),
            outputs=found,
        )


def _probe(implementation: Implementation, case: Case, shape: tuple[int, ...]) -> Case:
    first = first_case(implementation.name, case.dtype, case.device)
    direction = Direction.FORWARD if implementation.forward_only else Direction.BACKWARD
    return fitted(implementation, first, shape=shape, direction=direction)


def _portions_lose_a_one(implementation: Implementation, case: Case) -> bool:
    """Sum a large number, 1 and minus the large number, in the first, middle and last row."""
    inputs, _ = exact_of(replace(case, implementation=""))
    assert inputs.dy is not None  # of a backward case
    # 1 is a quarter of its spacing: it is rounded away beside it, above and below
    large = 2 / unit_roundoff(inputs.dy.dtype) * 2
    dy = torch.zeros_like(inputs.dy)
    dy[0], dy[case.rows // 2], dy[-1] = large, 1, -large
    try:
        found = compute(implementation, case, replace(inputs, dy=dy))
    except (ImplementationError, ContractViolationError):
        exact_of.cache_clear()
        return False
    return found.dbias is not None and bool((found.dbias == 0).all())
