"""Try one case: run the function, check its outputs, and judge their errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from time import perf_counter

import torch

from harness.inputs import Inputs, UnrepresentableError, make_inputs
from harness.numerics.bound_ratio import BoundRatio, bound_ratios
from harness.numerics.bounds import Guarantee, guarantee_of
from harness.numerics.computed import (
    ContractViolationError,
    ImplementationError,
    grad_mode,
    run_once,
)
from harness.numerics.error_measurement import measure_errors
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.numerics.verdict import is_beyond, status_of, verdict_of
from harness.records import Case, Errors, Status
from harness.run.integrity import Trusted
from harness.verify.running_sums import claimed_guarantee
from implementations.contract import Algorithm, Implementation

__all__ = ["Trial", "exact_of", "first_case", "outputs_of", "try_case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one case ended."""

    case: Case
    status: Status
    reason: str = ""
    """Why the status is not ok; empty if it is, or if the errors were not measured."""
    is_representable: bool = True
    """Whether the dtype can represent the inputs; False is no limit of the target."""
    ratios: tuple[BoundRatio, ...] = ()
    """Of each output, its errors over their bounds; empty if there are no outputs."""
    errors: Errors | None = None
    """Measured if the status is WRONG, or if asked for."""
    oracle_s: float = 0.0
    """Seconds spent in the exact reference."""
    implementation_s: float = 0.0
    """Seconds spent in the function."""
    again: dict[Algorithm, Trial] = field(default_factory=dict, repr=False)
    """The outputs judged by the claims that explain them; only if the first claim fails them."""

    def outputs_beyond(self, ratio: float = 1.0) -> set[str]:
        """Return the names of outputs with NaN, or an error over ``ratio`` times its bound."""
        return {each.output for each in self.ratios if is_beyond(each, ratio)}


def try_case(
    implementation: Implementation,
    case: Case,
    claims: Sequence[Implementation] = (),
    trusted: Trusted | None = None,
    *,
    measure: bool = False,
) -> Trial:
    """Try ``implementation`` on the inputs of ``case``.

    A distribution that the dtype cannot represent is UNSUPPORTED: there is nothing to try. Outputs
    that are wrong by the declaration of ``implementation`` are judged again by each of ``claims``.
    What the call changes of what is ``trusted`` is put back before its outputs are judged. Errors
    are measured where a bound is broken, and everywhere if ``measure``, at twice the cost.
    """
    try:
        inputs, reference = exact_of(_without_name(case))
    except UnrepresentableError as error:
        return Trial(
            case=case, status=Status.UNSUPPORTED, reason=str(error), is_representable=False
        )
    oracle_before = reference.spent_s
    began = perf_counter()
    try:
        with grad_mode(case), _threads(case.threads):
            run = partial(
                run_once, implementation.function, case, inputs, is_judged=True, on_copies=True
            )
            if trusted is not None:
                trusted.mark_state()
                run = partial(run, after_call=partial(trusted.check, quick=True))
            outputs = run()
    except ImplementationError as raised:
        return Trial(case=case, status=raised.status, reason=raised.reason)
    except ContractViolationError as violation:
        return Trial(case=case, status=Status.WRONG, reason=str(violation))
    implementation_s = perf_counter() - began
    judged = partial(_judged, outputs, inputs, case, reference)
    held = guarantee_of(implementation, case)
    trial = judged(held)
    if measure or trial.status is Status.WRONG:
        errors = measure_errors(outputs, inputs, case, held, reference)
        trial = replace(trial, errors=errors, reason=verdict_of(errors, case, held)[1])
    again = {}
    # no order of sums explains an unexpected NaN or infinity
    if trial.status is Status.WRONG and not any(each.unexpected_nonfinite for each in trial.ratios):
        by_claim = {claim.algorithm: judged(claimed_guarantee(claim, case)) for claim in claims}
        again = {name: each for name, each in by_claim.items() if _explains(each, trial)}
    oracle_s = reference.spent_s - oracle_before
    return replace(trial, oracle_s=oracle_s, implementation_s=implementation_s, again=again)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _judged(
    outputs: Outputs,
    inputs: Inputs,
    case: Case,
    reference: Reference,
    guarantee: Guarantee,
) -> Trial:
    """Judge outputs by a guarantee."""
    ratios = bound_ratios(outputs, inputs, case, guarantee, reference)
    return Trial(case=case, status=status_of(ratios), ratios=ratios)


def _explains(claimed: Trial, trial: Trial) -> bool:
    """Whether all outputs of a wrong case are within a claim's bound.

    A bound that is infinite where the first one is not explains nothing.
    """
    return claimed.status is not Status.WRONG and all(
        looser.vacuous_elements <= first.vacuous_elements
        for looser, first in zip(claimed.ratios, trial.ratios, strict=True)
    )


@lru_cache(maxsize=2)
def exact_of(case: Case) -> tuple[Inputs, Reference]:
    """Return the inputs of a case and their exact outputs; the last two cases are kept."""
    inputs = make_inputs(case)
    return inputs, Reference(inputs, case)


def first_case(target: str, dtype: str, device: str) -> Case:
    """Return the case that every verification begins with, which a faulty cache would keep."""
    return Case(implementation=target, shape=(6, 32), dtype=dtype, param_dtype=dtype, device=device)


def outputs_of(implementation: Implementation, case: Case) -> Outputs | None:
    """Return the outputs for ``case``; None if the target raises or breaks its contract."""
    inputs, _ = exact_of(_without_name(case))
    try:
        with grad_mode(case), _threads(case.threads):
            return run_once(implementation.function, case, inputs, on_copies=True)
    except (ImplementationError, ContractViolationError):
        return None


def _without_name(case: Case) -> Case:
    """Return the case without an implementation, so that all share its inputs."""
    return replace(case, implementation="")
