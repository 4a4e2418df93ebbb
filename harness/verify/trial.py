"""One case tried on a function: run it, check what came back, judge its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from time import perf_counter

import torch

from harness.inputs import Inputs, UnrepresentableError, make_inputs
from harness.numerics.bounds import guarantee_of
from harness.numerics.computed import ContractViolationError, ImplementationError, run_once
from harness.numerics.error_measurement import Outputs, measure_errors
from harness.numerics.oracle import Reference
from harness.numerics.verdict import verdict_of
from harness.records import Case, Direction, Errors, Status
from harness.verify.undeclared import in_case
from implementations.contract import Algorithm, Implementation

__all__ = ["Trial", "exact_of", "first_case", "outputs_of", "try_case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one case."""

    case: Case
    status: Status
    reason: str = ""
    """Why the status is not ok; empty when it is."""
    errors: Errors | None = None
    """None where there are no outputs to measure."""
    oracle_s: float = 0.0
    """Seconds spent in the exact reference."""
    implementation_s: float = 0.0
    """Seconds spent in the function."""
    again: dict[Algorithm, Trial] = field(default_factory=dict, repr=False)
    """The same outputs by the bounds of other claims, where they are wrong by the first alone."""


def try_case(
    implementation: Implementation, case: Case, claims: Sequence[Implementation] = ()
) -> Trial:
    """Try ``implementation`` on the inputs of ``case``, as float64 rows on the CPU see them.

    A distribution that the dtype cannot hold is UNSUPPORTED: there is nothing to try. What is wrong
    by what ``implementation`` declares is judged again by what each of ``claims`` does.
    """
    try:
        inputs, reference = exact_of(_without_name(case))
    except UnrepresentableError as error:
        return Trial(case=case, status=Status.UNSUPPORTED, reason=str(error))
    oracle_before = reference.spent_s
    began = perf_counter()
    try:
        with torch.set_grad_enabled(case.direction is not Direction.FORWARD):
            outputs = run_once(implementation.function, case, inputs)
    except ImplementationError as ended:
        return Trial(case=case, status=ended.status, reason=ended.reason)
    except ContractViolationError as broken:
        exact_of.cache_clear()  # its inputs may be the very thing that was modified
        return Trial(case=case, status=Status.WRONG, reason=str(broken))
    implementation_s = perf_counter() - began
    found = _judged(implementation, outputs, inputs, case, reference)
    again = {}
    if found.status is Status.WRONG and not _is_nonfinite(found):
        by_claim = {
            each.algorithm: _judged(in_case(each, case), outputs, inputs, case, reference)
            for each in claims
        }
        again = {name: each for name, each in by_claim.items() if each.status is not Status.WRONG}
    oracle_s = reference.spent_s - oracle_before
    return replace(found, oracle_s=oracle_s, implementation_s=implementation_s, again=again)


def _judged(
    implementation: Implementation,
    outputs: Outputs,
    inputs: Inputs,
    case: Case,
    reference: Reference,
) -> Trial:
    """Judge outputs by what ``implementation`` declares."""
    guarantee = guarantee_of(implementation, case)
    errors = measure_errors(outputs, inputs, case, guarantee, reference)
    status, reason = verdict_of(errors, case, guarantee)
    return Trial(case=case, status=status, reason=reason, errors=errors)


def _is_nonfinite(trial: Trial) -> bool:
    """Whether NaN or infinity came out: no shape of the sums excuses it."""
    outputs = trial.errors.outputs if trial.errors else ()
    return any(each.unexpected_nonfinite for each in outputs)


@lru_cache(maxsize=2)
def exact_of(case: Case) -> tuple[Inputs, Reference]:
    """Inputs of a case and their exact result; the last ones are kept for the next question."""
    inputs = make_inputs(case)
    return inputs, Reference(inputs, case)


def first_case(target: str, dtype: str, device: str) -> Case:
    """The case that every verification begins with: what is remembered is remembered of it."""
    return Case(implementation=target, shape=(6, 32), dtype=dtype, param_dtype=dtype, device=device)


def outputs_of(implementation: Implementation, case: Case) -> Outputs | None:
    """What ``implementation`` returns for ``case``, or None if it returns nothing usable."""
    inputs, _ = exact_of(_without_name(case))
    try:
        with torch.set_grad_enabled(case.direction is not Direction.FORWARD):
            return run_once(implementation.function, case, inputs)
    except (ImplementationError, ContractViolationError):
        exact_of.cache_clear()
        return None


def _without_name(case: Case) -> Case:
    """The same case of any implementation, so that its inputs are found again."""
    return replace(case, implementation="")
