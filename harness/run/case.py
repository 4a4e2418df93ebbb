"""Run one case to its record: verify it on the timed inputs, time it and count its memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from random import Random
from time import perf_counter

import torch

import implementations
from harness.cases.inputs import Inputs
from harness.measure import (
    Device,
    Sampled,
    count_allocations,
    device_of,
    fault_in,
    relocate,
    uncountable,
    undercounted,
    use_steady_allocation,
)
from harness.numerics import (
    SETTLE_S,
    Outputs,
    Reference,
    error_bound_of,
    measure_errors,
)
from harness.records import (
    Allocation,
    Budget,
    Cache,
    Case,
    Cost,
    Direction,
    Measurement,
    MeasurementWarning,
    Memory,
    Record,
    Status,
    WarningKind,
)
from harness.records.text import bytes_text
from harness.run.attempt import (
    FAILURES,
    ExactResults,
    Judged,
    Stopwatch,
    attempt,
    failure_of,
    judge,
)
from harness.run.call import (
    ImplementationError,
    bind,
    bind_recording_forward,
    grad_mode,
    run_once,
)
from harness.run.integrity import Trusted
from harness.run.recheck import (
    Draws,
    Timed,
    all_follow,
    reuse,
    run_again,
    shifted_or_negated,
)
from harness.run.state import settings_restored
from harness.run.timing import refusal, result_bytes, time_case
from implementations.contract import Implementation

_SETTLED_RUNS = 3  # on a busy machine a thread may end before the outputs are copied
# Tensors of x's size that a case holds at most, beside float64 copies and the exact values, bounds
# and errors of a block of rows. A forward holds x and y, their relocated copies, the inputs of the
# check after the timing, and the implementation's intermediate tensors. A backward holds the same
# for dy and dx, and the tensors that its forward saved.
_HELD_COPIES = {Direction.FORWARD: 8, Direction.BACKWARD: 16, Direction.FORWARD_BACKWARD: 16}
_DRAWN_BYTES = 8  # per element: inputs are drawn in float64


class CaseRunner:
    """Runs cases one after the other in this process, and keeps what they have in common.

    Args:
        environment: fingerprint, for the records.
        allocation: how the process gets memory; None has the allocator reuse pages.
        trusted: taken before any target was imported; None for one per case, which shows only what
            changes during the case.
        report: sends an update to the parent of this process.
    """

    def __init__(
        self,
        environment: str,
        allocation: Allocation | None = None,
        trusted: Trusted | None = None,
        report: Callable[[object], None] = lambda update: None,
    ) -> None:
        self.environment, self._trusted, self.report = environment, trusted, report
        self.allocation = allocation or use_steady_allocation()
        self.exact = ExactResults()
        self._faulted_in_bytes = 0

    @property
    def trusted(self) -> Trusted:
        """What measures and judges the targets of this process."""
        return self._trusted or Trusted()

    def run(
        self,
        case: Case,
        measurements: Collection[Measurement],
        budget: Budget,
        find: Callable[[str], Implementation] = implementations.find,
        time: Callable[..., Sampled] = time_case,
    ) -> Record:
        """Run ``case`` to its record; errors are always measured, the rest only if asked for.

        An exception of the implementation becomes the record's status, which keeps what was
        measured before. An exception in the harness is a bug and propagates.

        Args:
            case: what to run.
            measurements: what to measure.
            budget: of each timing.
            find: returns the implementation.
            time: times it, with the arguments of :func:`harness.run.timing.time_case`.
        """
        run = _CaseRun(case, self)
        try:
            with settings_restored(), grad_mode(case):
                run.verify(run.trusted.imported(case.implementation, find))
                asked = measurements if run.judged.outputs else ()
                for timing in (Measurement.LATENCY, Measurement.COLD):
                    if timing in asked:
                        run.time(budget, timing, time)
                if Measurement.MEMORY in asked:
                    run.count_memory()
        except FAILURES as error:
            status, reason = failure_of(error)
            run.record = replace(run.record, status=status, reason=reason)
        record = run.finished()
        del run
        if case.device == "cuda" and torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # workers of one GPU run in turn, and all stay alive
        return record

    def ready_device(self, case: Case, implementation: Implementation) -> Device:
        """Return the case's device, with as many threads as the case asks for.

        Raises:
            ImplementationError: the case cannot run here, for a reason known beforehand.
        """
        device = device_of(case.device, case.threads)
        if why := device.unavailable() or refusal(implementation, case):
            raise ImplementationError(Status.UNSUPPORTED, why)
        needed = case.rows * case.hidden * _DRAWN_BYTES + _held_bytes(case)
        free = device.free_bytes()
        if free is not None and case.device == "cpu":
            free += self._faulted_in_bytes  # the system counts it as used
        if free is not None and needed > free:
            raise ImplementationError(
                Status.OUT_OF_MEMORY,
                f"needs about {bytes_text(needed)}, {bytes_text(free)} are free",
            )
        torch.set_num_threads(case.threads)
        return device

    def fault_in(self, case: Case) -> None:
        """Have the allocator hold as much memory as a case of this size needs at most."""
        needed = _held_bytes(case)
        is_steady = self.allocation is Allocation.STEADY and case.device == "cpu"
        if is_steady and needed > self._faulted_in_bytes:
            fault_in(needed)
            self._faulted_in_bytes = needed


def _held_bytes(case: Case) -> int:
    dtype: torch.dtype = getattr(torch, case.dtype)
    return _HELD_COPIES[case.direction] * case.rows * case.hidden * dtype.itemsize


class _CaseRun:
    """The steps of one case, each of which adds to its record: ``verify`` comes first."""

    device: Device  # this and the next two are set by verify
    judged: Judged
    inputs: Inputs

    def __init__(self, case: Case, runner: CaseRunner) -> None:
        self.record = Record(case=case, environment=runner.environment, status=Status.OK)
        self._runner, self.trusted = runner, runner.trusted
        self._began = perf_counter()
        self._spent = Stopwatch()
        self._oracle_s = self._sampling_s = 0.0

    def finished(self) -> Record:
        cost = Cost(
            total_s=perf_counter() - self._began,
            implementation_s=self._spent.seconds,
            oracle_s=self._oracle_s,
            sampling_s=self._sampling_s,
        )
        return replace(self.record, cost=cost)

    def verify(self, implementation: Implementation) -> None:
        """Run the case once; add its errors and status to the record."""
        case = self.record.case
        self._implementation = implementation
        self.device = self._runner.ready_device(case, implementation)
        self.judged = judged = attempt(
            implementation,
            case,
            self.trusted,
            exact=self._runner.exact,
            measure=measure_errors,
            settled_runs=_SETTLED_RUNS,
        )
        self._spent.seconds += judged.implementation_s
        self._oracle_s += judged.oracle_s
        status, reason, errors = judged.status, judged.reason, judged.errors
        self.record = replace(self.record, status=status, reason=reason, errors=errors)
        if judged.outputs is not None:
            self.inputs = self._runner.exact(case)[0]

    def time(self, budget: Budget, measurement: Measurement, time: Callable[..., Sampled]) -> None:
        """Add a latency to the record, and check the results again."""
        case = self.record.case
        self._runner.fault_in(case)
        cache = Cache.WARM
        if measurement is Measurement.COLD:
            cache = Cache.ROTATE if case.device == "cpu" else Cache.FLUSHED
        wrong_in_timing = partial(self._wrong, "right before the timing, wrong in it", case)
        draws = Draws(case, self.judged.outputs, self.inputs, wrong_in_timing)
        sampled = time(
            self.judged,
            self.inputs,
            self.device,
            budget,
            allocation=self._runner.allocation,
            cache=cache,
            draw=draws,
        )
        self._sampling_s += sampled.sampling_s
        self._spent.seconds += sampled.warming_s
        warnings, latency = sampled.warnings, sampled.latency
        if latency is not None:
            latency = replace(latency, compile_s=self.judged.compile_s)
        if measurement is Measurement.COLD:
            warnings = tuple(replace(row, advice=f"cold: {row.advice}") for row in warnings)
            self.record = replace(self.record, cold=latency)
        else:
            self.record = replace(self.record, latency=latency)
        self._warn(*warnings)
        self._check_after_timing(sampled, draws)

    def count_memory(self) -> None:
        """Add what one call allocates, what its forward keeps, and its operators to the record.

        If torch does not see all of the memory, the record gets a warning with the reason instead.
        """
        with self._spent:
            why = self._count_memory()
        if why is not None:
            self._warn(MeasurementWarning(kind=WarningKind.MEMORY_NOT_COUNTED, advice=why))

    def _count_memory(self) -> str | None:
        """Add the memory and the operators of a call; or return why they cannot be counted."""
        case, inputs, function = self.record.case, self.inputs, self.judged.called
        if self._implementation.outside_torch:
            return f"{self._implementation.name} takes memory that torch does not see"
        if why := uncountable(case.device):
            return why
        # copies: the function may write to its inputs
        tensors = [relocate(tensor, Random(case.id)) for tensor in inputs.tensors]
        call = bind(function, case, tensors)
        call()  # creates caches and workspaces, which are not part of a call
        counted, y_bytes = count_allocations(call, case.device), inputs.x.nbytes
        minimum_bytes = result_bytes(case, inputs)
        if why := undercounted(counted, minimum_bytes - _not_held_bytes(case, inputs)):
            return why
        saved_bytes = None
        if case.direction is not Direction.FORWARD:
            forward = bind_recording_forward(function, case, tensors)
            forward_counted = count_allocations(forward, case.device)
            if why := undercounted(forward_counted, y_bytes):
                return f"in the forward {why}"
            saved_bytes = forward_counted.held_bytes - y_bytes
        memory = Memory(
            peak_extra_bytes=counted.peak_bytes,
            allocated_bytes=counted.total_bytes,
            allocations=counted.count,
            saved_bytes=saved_bytes,
            minimum_bytes=minimum_bytes,
        )
        self.record = replace(self.record, memory=memory, operators=counted.operators)
        return None

    def _warn(self, *warnings: MeasurementWarning) -> None:
        self.record = replace(self.record, warnings=(*self.record.warnings, *warnings))

    def _check_after_timing(self, sampled: Sampled, draws: Draws) -> None:
        """Check again with new values at the timed addresses, to catch cached results.

        Finds results that were cached by address, by shape, by the number of calls or by the values
        of the inputs, and calls that do something else when they are timed.
        """
        self.trusted.check(kernels=False)
        case, outputs = self.record.case, self.judged.outputs
        is_wrong = self.record.status is Status.WRONG
        if not sampled.tensors or sampled.subject is None or outputs is None or is_wrong:
            return
        placed = self.inputs.at(sampled.tensors)
        timed = Timed(case, self.judged.called, sampled.subject, placed, self.inputs)
        wrong = draws.wrong or self._wrong_again(timed, outputs)
        if sampled.latency is not None:
            with self._spent:
                wrong = wrong or reuse(timed, sampled.latency.per_call_s.value)
        self.trusted.check(kernels=False)
        if wrong is None:
            return
        with self._spent:
            run_once(timed.function, case, placed, is_judged=True, settle_s=SETTLE_S)
        self.record = replace(self.record, status=Status.WRONG, reason=wrong)
        self._warn(
            MeasurementWarning(
                kind=WarningKind.CACHED_RESULT,
                advice="its results after the timing do not belong to its inputs, or come without "
                "their work: look for results that it caches by address, shape, number of calls or "
                "values, and for calls that differ while they are timed",
            )
        )

    def _wrong_again(self, timed: Timed, first: Outputs) -> str | None:
        """Return what is wrong with calls on new values at the timed addresses, or None.

        ``first`` are the outputs of a call before the timing.
        """
        case = timed.case
        other = shifted_or_negated(timed.inputs, case)
        if other is not None:
            with self._spent:
                again = run_again(timed, other)
            if all_follow(first, *again, case):
                return None
        # a right result may depend on a row's index or sign: judge results of new values
        fresh = replace(case, seed=case.seed + 1)
        inputs, _ = self._runner.exact(fresh)
        with self._spent:
            in_timer, alone = run_again(timed, inputs)
        if wrong := self._wrong("right before the timing, wrong after it", fresh, alone, inputs):
            return wrong
        # a timed backward returns no y, and alone its graph is of the first x
        y = {Direction.BACKWARD: first.y, Direction.FORWARD_BACKWARD: alone.y}.get(case.direction)
        if case.direction is Direction.BACKWARD:
            inputs = replace(timed.inputs, dy=inputs.dy)
        for outputs in in_timer:
            if y is not None:
                outputs = replace(outputs, y=y)
            when = "right in a call by itself, wrong in a timed call"
            if wrong := self._wrong(when, fresh, outputs, inputs):
                return wrong
        return None

    def _wrong(self, when: str, case: Case, outputs: Outputs, inputs: Inputs) -> str | None:
        """Return when and how outputs are wrong, of inputs that may be others than the case's."""
        own, exact = self._runner.exact(case)
        exact = exact if inputs is own else Reference(inputs, case)
        bound = error_bound_of(self._implementation, case)
        judged = judge(outputs, case, bound, inputs, exact)
        self._oracle_s += judged.oracle_s
        return f"{when}: {judged.reason}" if judged.status is Status.WRONG else None


def _not_held_bytes(case: Case, inputs: Inputs) -> int:
    """Return the bytes of results that a call need not hold at its end."""
    if case.direction is Direction.FORWARD:
        return 0
    y_bytes = inputs.x.nbytes if case.direction is Direction.FORWARD_BACKWARD else 0
    # of a single row, dbias is dy: torch's autograd returns the dy that it was given
    dbias_bytes = inputs.bias.nbytes if inputs.bias is not None and case.rows == 1 else 0
    return y_bytes + dbias_bytes  # a training step returns gradients, but not y
