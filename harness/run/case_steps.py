"""The steps of one case: verify it on the timed inputs, time it, and count its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter

from harness.inputs import Inputs
from harness.measure.device import Device
from harness.measure.latency import Sampled
from harness.numerics.bounds import guarantee_of
from harness.numerics.completeness import SETTLE_S
from harness.numerics.computed import function_of, run_once
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.numerics.verdict import verdict_of
from harness.records import (
    Budget,
    Cache,
    Case,
    Cost,
    Measurement,
    MeasurementWarning,
    Mode,
    Record,
    Status,
    WarningKind,
)
from harness.run.integrity import Trusted
from harness.run.memory import CountedMemory, count_memory
from harness.run.recheck import Timed, reuse, wrong_again
from harness.run.resources import Resources
from harness.run.timing import time_case
from implementations.contract import Implementation, LayerNormFunction

__all__ = ["CaseRun"]

_SETTLED_RUNS = 3  # on a busy machine a thread may end before the outputs are copied


class CaseRun:
    """The steps of one case: ``verify`` comes first, the others are optional.

    Each step adds to ``record``. An exception of the implementation ends the steps (see
    :meth:`CaseRunner.begin`), and the record keeps what was added before.
    """

    device: Device  # this and the next two are set by verify
    function: LayerNormFunction
    """The implementation's function, compiled if the case says so."""
    inputs: Inputs

    def __init__(
        self, case: Case, environment: str, resources: Resources, trusted: Trusted
    ) -> None:
        self.record = Record(case=case, environment=environment, status=Status.OK)
        self._resources, self.trusted = resources, trusted
        self._began = perf_counter()
        self._implementation_s = self._oracle_s = self._sampling_s = 0.0

    def verify(self, implementation: Implementation) -> None:
        """Run the case once; add its errors and status to the record.

        Raises:
            ImplementationError: the implementation cannot run the case, or raised.
            ContractViolationError: its result breaks the contract, such as by another shape.
            UnrepresentableError: the dtype cannot hold the inputs.
        """
        case = self.record.case
        self._implementation = implementation
        self.device = self._resources.ready_device(case, implementation)
        self.inputs, _ = self._resources.inputs(case)
        with self._in_implementation():  # torch.compile imports its compiler
            self.function = function_of(implementation, case.mode)
        self.trusted.mark_state()
        check = partial(self.trusted.check, quick=True)
        run = partial(
            run_once,
            self.function,
            case,
            self.inputs,
            is_judged=True,
            on_copies=True,
            after_call=check,
        )
        with self._in_implementation():
            began = perf_counter()
            self._outputs = run()
            self._compile_s: float | None = None
            if case.mode is Mode.COMPILED:
                first_s, began = perf_counter() - began, perf_counter()
                self._outputs = run()
                self._compile_s = max(first_s - (perf_counter() - began), 0.0)
        self.record = self._judged(self.record, self._outputs)
        if self.record.status is Status.WRONG:
            with self._in_implementation():
                for _ in range(_SETTLED_RUNS):  # raises if it leaves work to a thread
                    run(settle_s=SETTLE_S)

    def time(
        self,
        budget: Budget,
        measurement: Measurement = Measurement.LATENCY,
        reference: Implementation | None = None,
    ) -> None:
        """Add a latency to the record.

        Args:
            budget: when to stop.
            measurement: LATENCY or COLD.
            reference: timed in turn with the case, alone; None for the usual reference and copies.

        Raises:
            ImplementationError: the implementation raised.
            ContractViolationError: it broke its contract after the timing.
        """
        case = self.record.case
        self._resources.fault_in(case)
        cache = Cache.WARM
        if measurement is Measurement.COLD:
            cache = Cache.ROTATE if case.device == "cpu" else Cache.FLUSHED
        sampled = time_case(
            self.function,
            case,
            self.inputs,
            self.device,
            budget,
            allocation=self._resources.allocation,
            compile_s=self._compile_s,
            cache=cache,
            reference=reference,
        )
        self.add_timing(sampled, measurement)

    def add_timing(self, sampled: Sampled, measurement: Measurement = Measurement.LATENCY) -> None:
        """Add a latency to the record, and check the results again.

        Raises:
            ImplementationError: the implementation raised.
            ContractViolationError: it broke its contract.
        """
        self._sampling_s += sampled.sampling_s
        self._implementation_s += sampled.warming_s
        if measurement is Measurement.COLD:
            advice = [replace(each, advice=f"cold: {each.advice}") for each in sampled.warnings]
            warnings = (*self.record.warnings, *advice)
            self.record = replace(self.record, cold=sampled.latency, warnings=warnings)
        else:
            warnings = (*self.record.warnings, *sampled.warnings)
            self.record = replace(self.record, latency=sampled.latency, warnings=warnings)
        self._check_after_timing(sampled)

    def count_memory(self) -> None:
        """Add what one call allocates, what its forward keeps, and its operators to the record.

        If torch does not see all of the memory, the record gets a warning with the reason instead.

        Raises:
            ImplementationError: the implementation raised.
        """
        name = self._implementation.name
        counted: CountedMemory | str = f"{name} takes memory that torch does not see"
        if not self._implementation.outside_torch:
            with self._in_implementation():
                counted = count_memory(self.function, self.record.case, self.inputs)
        if isinstance(counted, str):
            kind = WarningKind.MEMORY_NOT_COUNTED
            warning = MeasurementWarning(kind=kind, advice=counted)
            self.record = replace(self.record, warnings=(*self.record.warnings, warning))
        else:
            self.record = replace(self.record, memory=counted.memory, operators=counted.operators)

    def end(self, status: Status | None = None, reason: str = "") -> None:
        """Add the cost to the record and, if the steps ended early, the status and the reason."""
        if status is not None:
            self.record = replace(self.record, status=status, reason=reason)
        cost = Cost(
            total_s=perf_counter() - self._began,
            implementation_s=self._implementation_s,
            oracle_s=self._oracle_s,
            sampling_s=self._sampling_s,
        )
        self.record = replace(self.record, cost=cost)

    def _judged(self, record: Record, outputs: Outputs, given: Inputs | None = None) -> Record:
        """Return the record with the errors, the status and the reason of ``outputs``.

        Args:
            record: its case says what was run.
            outputs: to judge.
            given: what it was run on, if not the inputs of the case.
        """
        case = record.case
        inputs, oracle = self._resources.inputs(case)
        if given is not None and given is not inputs:
            inputs, oracle = given, Reference(given, case)
        before_s = oracle.spent_s
        guarantee = guarantee_of(self._implementation, case)
        errors = self._resources.errors(outputs, inputs, case, guarantee, oracle)
        self._oracle_s += oracle.spent_s - before_s
        status, reason = verdict_of(errors, case, guarantee)
        return replace(record, status=status, reason=reason, errors=errors)

    def _check_after_timing(self, sampled: Sampled) -> None:
        """Check again with new values at the timed addresses, to catch cached results.

        Finds results that were cached by address, by shape, by the number of calls or by the values
        of the inputs, and calls that do something else when they are timed.
        """
        self.trusted.check()
        record = self.record
        if not sampled.tensors or sampled.subject is None or record.status is Status.WRONG:
            return
        placed = self.inputs.at(sampled.tensors)
        timed = Timed(record.case, self.function, sampled.subject, placed, self.inputs)
        with self._in_implementation():
            wrong = wrong_again(timed, self._outputs, self._draw, self._judged_on)
            if sampled.latency is not None:
                wrong = wrong or reuse(timed, sampled.latency.per_call_s.value)
            self.trusted.check()
            if wrong is None:
                return
            run_once(self.function, record.case, placed, is_judged=True, settle_s=SETTLE_S)
        warning = MeasurementWarning(
            kind=WarningKind.CACHED_RESULT,
            advice="its results after the timing do not belong to its inputs, or come without "
            "their work: look for results that it caches by address, shape, number of calls or "
            "values, and for calls that differ while they are timed",
        )
        self.record = replace(
            record, status=Status.WRONG, reason=wrong, warnings=(*record.warnings, warning)
        )

    def _draw(self, case: Case) -> Inputs:
        return self._resources.inputs(case)[0]

    def _judged_on(self, case: Case, outputs: Outputs, inputs: Inputs) -> Record:
        return self._judged(replace(self.record, case=case), outputs, inputs)

    @contextmanager
    def _in_implementation(self) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self._implementation_s += perf_counter() - began
