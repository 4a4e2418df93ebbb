"""One case to its record: verify first, on the inputs that are timed, then measure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch

import implementations
from harness.inputs import Inputs, UnrepresentableError, make_inputs
from harness.measure.allocator import fault_in, use_steady_allocation
from harness.measure.device import Device
from harness.measure.devices import device_of
from harness.measure.latency import Sampled
from harness.measure.memory import uncountable
from harness.measure.placement import overwrite
from harness.numerics.bounds import guarantee_of
from harness.numerics.computed import (
    ContractViolationError,
    ImplementationError,
    function_of,
    run_once,
)
from harness.numerics.error_measurement import Outputs, measure_errors
from harness.numerics.oracle import Reference
from harness.numerics.verdict import verdict_of
from harness.records import (
    Allocation,
    Budget,
    Cache,
    Case,
    Cost,
    Direction,
    Measurement,
    MeasurementWarning,
    Mode,
    Record,
    Status,
    WarningKind,
)
from harness.run.timed_calls import refusal
from harness.run.timing import time_case
from harness.run.turning import is_turned, turned
from harness.run.weighing import weigh
from implementations.contract import Implementation, LayerNormFunction

__all__ = ["CaseRunner"]

# float64 copies, exact values, bounds and errors of a block of rows aside, a forward holds x and y,
# their relocated copies, the inputs of the check after the timing and what the implementation
# computes with: eight of x at most; a backward the same of dy and dx, and what is saved for it
_HELD_COPIES = {Direction.FORWARD: 8, Direction.BACKWARD: 16, Direction.FORWARD_BACKWARD: 16}
_DRAWN_BYTES = 8  # inputs are drawn in float64


@dataclass(slots=True)
class _Stopwatch:
    """Seconds spent so far, by what they were spent on."""

    implementation_s: float = 0.0
    oracle_s: float = 0.0
    sampling_s: float = 0.0

    @contextmanager
    def implementation(self) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self.implementation_s += perf_counter() - began


@dataclass(slots=True)
class CaseRunner:
    """Runs cases one after the other in this process."""

    environment: str
    """Fingerprint, for the records."""
    allocation: Allocation = field(default_factory=use_steady_allocation)
    find: Callable[[str], Implementation] = implementations.find
    """Which implementation a case names."""
    _shared: dict[Case, tuple[Inputs, Reference]] = field(default_factory=dict)
    """Inputs and exact results that consecutive cases have in common."""
    _faulted_in_bytes: int = 0
    """Memory that the allocator has in hand."""

    def run(
        self,
        case: Case,
        measurements: Collection[Measurement],
        budget: Budget,
        timer: Callable[..., Sampled] | None = None,
    ) -> Record:
        """Run ``case`` to its record. Errors are always measured; the rest as asked.

        What the implementation raises becomes the record's status; an exception in the harness
        is a bug and propagates. A ``timer`` is called in the place of :func:`time_case`, with what
        that is called with, and only for a case that is ok.
        """
        began = perf_counter()
        watch = _Stopwatch()
        record = begun = Record(case=case, environment=self.environment, status=Status.OK)
        try:
            with torch.set_grad_enabled(case.direction is not Direction.FORWARD):
                for known in self._measured(begun, measurements, budget, watch, timer):
                    record = known  # kept, should what comes next fail
        except UnrepresentableError as why:
            record = replace(record, status=Status.UNSUPPORTED, reason=str(why))
        except implementations.TargetError as why:
            record = replace(record, status=Status.ERROR, reason=str(why))
        except ImplementationError as ended:
            self._shared.clear()  # it may have written to its inputs before it raised
            record = replace(record, status=ended.status, reason=ended.reason)
        except ContractViolationError as broken:
            self._shared.clear()  # its inputs may be the very thing that was modified
            record = replace(record, status=Status.WRONG, reason=str(broken))
        cost = Cost(
            total_s=perf_counter() - began,
            implementation_s=watch.implementation_s,
            oracle_s=watch.oracle_s,
            sampling_s=watch.sampling_s,
        )
        return replace(record, cost=cost)

    def _measured(
        self,
        record: Record,
        measurements: Collection[Measurement],
        budget: Budget,
        watch: _Stopwatch,
        timer: Callable[..., Sampled] | None,
    ) -> Iterator[Record]:
        """Yield the record again and again, with all that is known so far."""
        case = record.case
        device = self._ready_device(case)
        inputs, _ = self._inputs(case)
        implementation = self.find(case.implementation)
        function, outputs, compile_s = _first_run(implementation, case, inputs, watch)
        record = self._judged(record, implementation, outputs, watch)
        yield record
        if timer and record.status is not Status.OK:
            return
        for measurement in (Measurement.LATENCY, Measurement.COLD):
            if measurement not in measurements:
                continue
            self._fault_in(case)
            cache = Cache.WARM
            if measurement is Measurement.COLD:
                cache = Cache.ROTATE if case.device == "cpu" else Cache.FLUSHED
            sampled = (timer or time_case)(
                function,
                case,
                inputs,
                device,
                budget,
                allocation=self.allocation,
                compile_s=compile_s,
                cache=cache,
            )
            watch.sampling_s += sampled.sampling_s
            watch.implementation_s += sampled.warming_s
            warnings = sampled.warnings
            if measurement is Measurement.COLD:
                warnings = tuple(replace(each, advice=f"cold: {each.advice}") for each in warnings)
            warnings = record.warnings + warnings
            if measurement is Measurement.LATENCY:
                record = replace(record, latency=sampled.latency, warnings=warnings)
            else:
                record = replace(record, cold=sampled.latency, warnings=warnings)
            yield record
            record = self._checked_again(record, implementation, function, outputs, sampled, watch)
            yield record
        if Measurement.MEMORY in measurements:
            if why := uncountable(case.device) or _unseen(implementation):
                warning = MeasurementWarning(kind=WarningKind.NOT_COUNTED, advice=why)
                yield replace(record, warnings=(*record.warnings, warning))
                return
            with watch.implementation():
                memory, operators = weigh(function, case, inputs)
            yield replace(record, memory=memory, operators=operators)

    def _judged(
        self, record: Record, implementation: Implementation, outputs: Outputs, watch: _Stopwatch
    ) -> Record:
        """Add errors and verdict of ``outputs``, results for the inputs of the record's case."""
        inputs, reference = self._inputs(record.case)
        oracle_before = reference.spent_s
        guarantee = guarantee_of(implementation, record.case)
        errors = measure_errors(outputs, inputs, record.case, guarantee, reference)
        watch.oracle_s += reference.spent_s - oracle_before
        status, reason = verdict_of(errors, record.case, guarantee)
        return replace(record, status=status, reason=reason, errors=errors)

    def _checked_again(
        self,
        record: Record,
        implementation: Implementation,
        function: LayerNormFunction,
        first: Outputs,
        sampled: Sampled,
        watch: _Stopwatch,
    ) -> Record:
        """Ask once more after the timing, for other numbers where the timed inputs lay.

        What was remembered of the timed calls, by address, by shape or by count, is found out.
        """
        if not sampled.tensors or record.status is Status.WRONG:
            return record
        inputs, _ = self._inputs(record.case)
        other = turned(inputs, record.case)
        if other is not None:
            with watch.implementation():
                again = _asked_at(function, record.case, other, sampled)
            if is_turned(again, first, record.case):
                return record
        # other numbers altogether: not every right result turns bit by bit
        fresh = replace(record.case, seed=record.case.seed + 1)
        inputs, _ = self._inputs(fresh)
        with watch.implementation():
            again = _asked_at(function, fresh, inputs, sampled)
        judged = self._judged(replace(record, case=fresh), implementation, again, watch)
        if judged.status is not Status.WRONG:
            return record
        warning = MeasurementWarning(
            kind=WarningKind.CACHED_RESULT,
            advice="its results after the timing are not those of the inputs it was given: look "
            "for what it remembers, by address, by shape or by the number of calls",
        )
        return replace(
            record,
            status=Status.WRONG,
            reason=f"right at first, and after the timing: {judged.reason}",
            warnings=(*record.warnings, warning),
        )

    def _ready_device(self, case: Case) -> Device:
        """Return the case's device.

        Raises:
            ImplementationError: the case cannot run here, for a reason known beforehand.
        """
        device = device_of(case.device, case.threads)
        if why := device.unavailable():
            raise ImplementationError(Status.UNSUPPORTED, why)
        if why := refusal(self.find(case.implementation), case):
            raise ImplementationError(Status.UNSUPPORTED, why)
        needed = case.rows * case.hidden * _DRAWN_BYTES + _held_bytes(case)
        free = device.free_bytes()
        if free is not None and case.device == "cpu":
            free += self._faulted_in_bytes  # it is not free, and at hand
        if free is not None and needed > free:
            raise ImplementationError(
                Status.OUT_OF_MEMORY,
                f"needs about {needed / 2**30:.3g} GiB, {free / 2**30:.3g} GiB are free",
            )
        torch.set_num_threads(case.threads)
        return device

    def _fault_in(self, case: Case) -> None:
        """Have the allocator hold what a case of this size needs at most, if it holds anything."""
        if self.allocation is not Allocation.STEADY:
            return
        needed = _held_bytes(case)
        if case.device == "cpu" and needed > self._faulted_in_bytes:
            fault_in(needed)
            self._faulted_in_bytes = needed

    def _inputs(self, case: Case) -> tuple[Inputs, Reference]:
        """Draw the inputs, or take those of a case before if they are the same."""
        backward = case.direction is not Direction.FORWARD
        direction = Direction.BACKWARD if backward else Direction.FORWARD
        asked = replace(case, implementation="", mode=Mode.EAGER, direction=direction, threads=1)
        if asked not in self._shared:
            # of a case only those for the time and for the check after it are kept
            for old in list(self._shared):
                near = abs(old.seed - asked.seed) <= 1
                if not near or replace(old, seed=asked.seed) != asked:
                    del self._shared[old]
            inputs = make_inputs(case)
            self._shared[asked] = inputs, Reference(inputs, case)
        return self._shared[asked]


def _unseen(implementation: Implementation) -> str | None:
    """Why what an implementation allocates cannot be counted, as far as it declares it."""
    if not implementation.outside_torch:
        return None
    return f"{implementation.name} takes memory that torch does not see"


def _held_bytes(case: Case) -> int:
    dtype: torch.dtype = getattr(torch, case.dtype)
    return _HELD_COPIES[case.direction] * case.rows * case.hidden * dtype.itemsize


def _asked_at(function: LayerNormFunction, case: Case, inputs: Inputs, sampled: Sampled) -> Outputs:
    """Run once on the numbers of ``inputs``, where the timed ones lay."""
    for placed, new in zip(sampled.tensors, inputs.tensors, strict=True):
        overwrite(placed, new)
    return run_once(function, case, inputs.at(sampled.tensors))


def _first_run(
    implementation: Implementation, case: Case, inputs: Inputs, watch: _Stopwatch
) -> tuple[LayerNormFunction, Outputs, float | None]:
    """Run a case for the first time: the function, its outputs, and seconds to compile it."""
    function = function_of(implementation, case.mode)
    with watch.implementation():
        began = perf_counter()
        outputs = run_once(function, case, inputs)
        first_s = perf_counter() - began
        if case.mode is Mode.EAGER:
            return function, outputs, None
        began = perf_counter()
        outputs = run_once(function, case, inputs)
        return function, outputs, max(first_s - (perf_counter() - began), 0.0)
