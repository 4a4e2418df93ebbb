"""Call a target once on the inputs of a case, and judge what it returns.

Runs, verification with its checks, tests of pytest, counts of instructions and comparisons of two
revisions call targets here, so that a target's failure has the same status and reason everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import torch

from harness.cases.inputs import Inputs, UnrepresentableError, make_inputs
from harness.numerics import (
    SETTLE_S,
    BoundRatio,
    ErrorBound,
    Inaccuracy,
    Outputs,
    Reference,
    bound_ratios,
    error_bound_of,
    explained_reason,
    explanations,
    is_beyond,
    looser_bounds,
    measure_errors,
    status_of,
    verdict_of,
)
from harness.records import Case, Direction, Errors, Mode, OutputErrors, Status
from harness.run.call import (
    ContractViolationError,
    ImplementationError,
    function_of,
    grad_mode,
    run_once,
)
from harness.run.integrity import Trusted
from implementations import TargetError
from implementations.contract import Implementation, LayerNormFunction

FAILURES = (ImplementationError, ContractViolationError, UnrepresentableError, TargetError)
"""The exceptions that end a case and leave the harness as it is; others are bugs."""

_LARGE = 1 << 22  # elements: inputs and exact values of such a case take more than 300 MB

Measure = Callable[[Outputs, Inputs, Case, ErrorBound, Reference], Errors]


class ExactResults:
    """Inputs of cases and their exact results; those of the last two cases are kept."""

    def __init__(self) -> None:
        self._kept: dict[Case, tuple[Inputs, Reference]] = {}

    def __call__(self, case: Case) -> tuple[Inputs, Reference]:
        """Return the inputs of a case and their exact results, which equal inputs share.

        Raises:
            UnrepresentableError: the dtype cannot hold the inputs.
        """
        key = inputs_key(case)
        if key not in self._kept:
            for old in [*self._kept][:-1]:
                del self._kept[old]
            for old in [*self._kept]:  # the check after the timing needs the next seed too
                if old.rows * old.hidden >= _LARGE and replace(old, seed=key.seed) != key:
                    del self._kept[old]
            inputs = make_inputs(case)
            self._kept[key] = inputs, Reference(inputs, case)
        self._kept[key] = self._kept.pop(key)  # the last one used is the last to go
        return self._kept[key]


exact_of = ExactResults()


def inputs_key(case: Case) -> Case:
    """Return the same case for all that have the same inputs and exact results."""
    backward = case.direction is not Direction.FORWARD
    direction = Direction.BACKWARD if backward else Direction.FORWARD
    return replace(case, implementation="", mode=Mode.EAGER, direction=direction, threads=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How one call of a target on the inputs of a case ended."""

    case: Case
    status: Status
    reason: str = ""
    """Why the status is not ok, or that results are rounded again; empty otherwise."""
    explained_by: Mapping[str, Inaccuracy] = field(default_factory=dict)
    """By output beyond its bound: the strictest explanation. Empty if one output has none."""
    is_representable: bool = True
    """Whether the dtype can represent the inputs; False is no limit of the target."""
    ratios: tuple[BoundRatio | OutputErrors, ...] = ()
    """Of each output, its errors over their bounds; empty if there are no outputs."""
    errors: Errors | None = None
    """Measured if the status is WRONG, or if asked for."""
    outputs: Outputs | None = field(default=None, repr=False)
    """None if the target raised or violated its contract."""
    function: LayerNormFunction | None = field(default=None, repr=False)
    """What was called: the target's function, or its compiled form."""
    implementation_s: float = 0.0
    """Seconds spent in the function."""
    compile_s: float | None = None
    """Seconds that its compilation took."""
    oracle_s: float = 0.0
    """Seconds spent in the exact reference."""

    @property
    def called(self) -> LayerNormFunction:
        """The function; only where there are outputs."""
        assert self.function is not None
        return self.function

    def outputs_beyond(self, ratio: float = 1.0) -> set[str]:
        """Return the names of outputs with NaN, or an error over ``ratio`` times its bound."""
        return {output.output for output in self.ratios if is_beyond(output, ratio)}


def attempt(
    target: Implementation,
    case: Case,
    trusted: Trusted | None = None,
    *,
    exact: Callable[[Case], tuple[Inputs, Reference]] = exact_of,
    is_judged: bool = True,
    measure: Measure | None = None,
    settled_runs: int = 0,
) -> Judged:
    """Call ``target`` once on copies of the inputs of ``case``, and judge what it returns.

    A compiled case is called twice, since the first call compiles.

    Args:
        target: what to call, in the mode of the case.
        case: what to run.
        trusted: what a call must not change; it is restored before the outputs are judged.
        exact: inputs and exact results.
        is_judged: False returns the outputs as they are, with the status OK.
        measure: measures the errors, at twice the cost; None measures those of wrong outputs only.
        settled_runs: further calls if the outputs are wrong, each of which leaves a thread that is
            still at work the time to write to the outputs.
    """
    judged, spent = Judged(case=case, status=Status.OK), Stopwatch()
    try:
        inputs, reference = exact(case)
        with spent, grad_mode(case), threads(case.threads):
            function = function_of(target, case.mode)
            call = partial(run_once, function, case, inputs, is_judged=is_judged, on_copies=True)
            if trusted is not None:
                trusted.mark_state()
                call = partial(call, after_call=partial(trusted.check, quick=True))
            began, compile_s = perf_counter(), None
            outputs = call()
            if case.mode is Mode.COMPILED:
                first_s, began = perf_counter() - began, perf_counter()
                outputs = call()
                compile_s = max(first_s - (perf_counter() - began), 0.0)
        if is_judged:
            bound = error_bound_of(target, case)
            judged = judge(outputs, case, bound, inputs, reference, measure)
        judged = replace(judged, outputs=outputs, function=function, compile_s=compile_s)
        if judged.status is Status.WRONG:
            with spent, grad_mode(case), threads(case.threads):
                for _ in range(settled_runs):
                    call(settle_s=SETTLE_S)
    except FAILURES as error:
        status, reason = failure_of(error)
        judged = replace(
            judged,
            status=status,
            reason=reason,
            outputs=None,
            is_representable=not isinstance(error, UnrepresentableError),
        )
    return replace(judged, implementation_s=spent.seconds)


def judge(
    outputs: Outputs,
    case: Case,
    bound: ErrorBound,
    inputs: Inputs,
    exact: Reference,
    measure: Measure | None = None,
) -> Judged:
    """Judge outputs of a case by an error bound, and those beyond it by looser ones.

    Args:
        outputs: of a call on ``inputs``.
        case: what was run.
        bound: of the target.
        inputs: of the case, or others of its shape.
        exact: results of ``inputs``.
        measure: measures the errors; None measures those of outputs beyond the bound only.
    """
    before_s = exact.spent_s
    errors = measure and measure(outputs, inputs, case, bound, exact)
    ratios = errors.outputs if errors else bound_ratios(outputs, inputs, case, bound, exact)
    status, reason = status_of(ratios), ""
    explained: dict[str, Inaccuracy] = {}
    if status is Status.WRONG:
        errors = errors or measure_errors(outputs, inputs, case, bound, exact)
        beyond = [row.output for row in ratios if is_beyond(row)]
        explained = explanations(outputs, inputs, case, bound, exact, beyond)
    if errors is not None:
        reason = verdict_of(errors, case, bound)[1]
    if errors is not None and explained:
        status, reason = Status.INACCURATE, explained_reason(errors, case, explained)
        if {*explained.values()} == {Inaccuracy.ROUNDED_AGAIN}:
            again = next(looser_bounds(bound, case)).bound
            errors = measure_errors(outputs, inputs, case, again, exact)
            status, ratios = status_of(errors.outputs), errors.outputs
    return Judged(
        case=case,
        status=status,
        reason=reason,
        explained_by=explained,
        ratios=ratios,
        errors=errors,
        outputs=outputs,
        oracle_s=exact.spent_s - before_s,
    )


def failure_of(error: Exception) -> tuple[Status, str]:
    """Return the status of a case that one of FAILURES ended, and the reason."""
    if isinstance(error, ImplementationError):
        return error.status, error.reason
    if isinstance(error, ContractViolationError):
        return Status.WRONG, str(error)
    is_unrepresentable = isinstance(error, UnrepresentableError)
    return Status.UNSUPPORTED if is_unrepresentable else Status.ERROR, str(error)


class Stopwatch:
    """Adds up the seconds of the blocks that it is the context of."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads."""
    before = torch.get_num_threads()
    if count == before:  # to set them takes longer than to read them
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
