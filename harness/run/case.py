"""Run one case to its record: verify it on the timed inputs, time it and count its memory.

After the timing the implementation is checked again, in a call like those that were timed.
New values are written where the timed inputs lie. A timed call must then return their result:
results that were cached by address, by shape or by the number of calls, and those of calls that
know that they are timed, are wrong. It must also take as long as with the timed values: a result
that was cached by its inputs' values is found by the time. The last of several calls without a
pause must return that result too.

The new values are such that their exact results follow bit by bit from those of the timed values
(the equivariance check). In a forward pass the rows are shifted by one, and the rows of y with
them. In a backward pass x and dy are negated: this negates dx and dbias and leaves dweight as it
is. Rounding is the same either way, unless the result of a row depends on its position or its sign.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from random import Random
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

import implementations
from harness.cases.inputs import LAYOUTS, Inputs
from harness.measure import (
    Device,
    Sampled,
    Sampler,
    count_allocations,
    device_of,
    fault_in,
    overwrite,
    relocate,
    uncountable,
    undercounted,
    use_steady_allocation,
)
from harness.numerics import (
    GRADIENTS,
    SETTLE_S,
    Outputs,
    Reference,
    copies_of,
    error_bound_of,
    fill_free_memory,
    incomplete_output,
    measure_errors,
    named_outputs,
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
    Mode,
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
    ContractViolationError,
    ImplementationError,
    bind,
    bind_recording_forward,
    checked,
    grad_mode,
    run_once,
)
from harness.run.integrity import Trusted, observed
from harness.run.state import settings_restored
from harness.run.timing import refusal, result_bytes, time_case
from implementations.contract import Implementation, LayerNormFunction

_SETTLED_RUNS = 3  # on a busy machine a thread may end before the outputs are copied
# Tensors of x's size that a case holds at most, beside float64 copies and the exact values, bounds
# and errors of a block of rows. A forward holds x and y, their relocated copies, the inputs of the
# check after the timing, and the implementation's intermediate tensors. A backward holds the same
# for dy and dx, and the tensors that its forward saved.
_HELD_COPIES = {Direction.FORWARD: 8, Direction.BACKWARD: 16, Direction.FORWARD_BACKWARD: 16}
_DRAWN_BYTES = 8  # per element: inputs are drawn in float64
_REUSED = 1.25  # trade-off: from this ratio of times on, results count as reused
_SIGNS = {"dx": -1, "dweight": 1, "dbias": -1}
_NEGATED = dict.fromkeys(GRADIENTS, -1)  # where dy alone is
_PAIRS = 7  # of samples; the fastest with new values is compared with the median of the others
_MOST_JUDGED = 2  # results in the timing; of a target whose results vary, all would have to be
# of the values of a row, in turn: their product is 1, but few values become what they were before
_FACTORS = tuple(f for k in range(1, 33) for f in (1 - k / 64, 1 / (1 - k / 64)))
_SURE = 28  # pairs that results are called reused after: other processes slow down seven by chance


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
        time: Callable[..., Sampled] | None = None,
    ) -> Record:
        """Run ``case`` to its record; errors are always measured, the rest only if asked for.

        An exception of the implementation becomes the record's status, which keeps what was
        measured before. An exception in the harness is a bug and propagates.

        Args:
            case: what to run.
            measurements: what to measure.
            budget: of each timing.
            find: returns the implementation.
            time: times it instead of :func:`harness.run.timing.time_case`, with its arguments.
        """
        run = _CaseRun(case, self)
        try:
            with settings_restored(), grad_mode(case):
                run.verify(run.trusted.imported(case.implementation, find))
                for measurement in Measurement if run.judged.outputs else ():
                    if measurement not in measurements:
                        continue
                    if measurement in {Measurement.LATENCY, Measurement.COLD}:
                        run.time(budget, measurement, time or time_case)
                    elif measurement is Measurement.MEMORY:
                        run.count_memory()
        except FAILURES as error:
            status, reason = failure_of(error)
            run.record = replace(run.record, status=status, reason=reason)
        return run.finished()

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
        draws = Draws(case, self.judged.outputs, self.inputs, self._wrong_in_timing)
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
        if self._implementation.outside_torch:
            why: str | None = f"{self._implementation.name} takes memory that torch does not see"
        else:
            with self._spent:
                why = self._count_memory()
        if why is not None:
            self._warn(MeasurementWarning(kind=WarningKind.MEMORY_NOT_COUNTED, advice=why))

    def _count_memory(self) -> str | None:
        """Add the memory and the operators of a call; or return why they cannot be counted."""
        case, inputs, function = self.record.case, self.inputs, self.judged.called
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
        self.trusted.check()
        case, outputs = self.record.case, self.judged.outputs
        is_wrong = self.record.status is Status.WRONG
        if not sampled.tensors or sampled.subject is None or outputs is None or is_wrong:
            return
        placed = self.inputs.at(sampled.tensors)
        timed = Timed(case, self.judged.called, sampled.subject, placed, self.inputs)
        with self._spent:
            wrong = draws.wrong or self._wrong_again(timed, outputs)
            if sampled.latency is not None:
                wrong = wrong or reuse(timed, sampled.latency.per_call_s.value)
            self.trusted.check(kernels=False)
            if wrong is None:
                return
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
            in_timer, alone = run_again(timed, other)
            signs = _NEGATED if case.direction is Direction.BACKWARD else _SIGNS
            is_same = all(are_equivariant(first, outputs, case, signs) for outputs in in_timer)
            if is_same and are_equivariant(first, alone, case):
                return None
        # a right result may depend on a row's index or sign: judge results of new values
        fresh = replace(case, seed=case.seed + 1)
        inputs, _ = self._runner.exact(fresh)
        in_timer, alone = run_again(timed, inputs)
        judged = self._judge(fresh, alone, inputs)
        if judged.status is Status.WRONG:
            return f"right before the timing, wrong after it: {judged.reason}"
        # a timed backward returns no y, and alone its graph is of the first x
        y = {Direction.BACKWARD: first.y, Direction.FORWARD_BACKWARD: alone.y}.get(case.direction)
        if case.direction is Direction.BACKWARD:
            inputs = replace(timed.inputs, dy=inputs.dy)
        for outputs in in_timer:
            if y is not None:
                outputs = replace(outputs, y=y)
            judged = self._judge(fresh, outputs, inputs)
            if judged.status is Status.WRONG:
                return f"right in a call by itself, wrong in a timed call: {judged.reason}"
        return None

    def _wrong_in_timing(self, outputs: Outputs, inputs: Inputs) -> str | None:
        judged = self._judge(self.record.case, outputs, inputs)
        is_wrong = judged.status is Status.WRONG
        return f"right before the timing, wrong in it: {judged.reason}" if is_wrong else None

    def _judge(self, case: Case, outputs: Outputs, inputs: Inputs) -> Judged:
        """Judge outputs of inputs that may be others than those of the case."""
        own, exact = self._runner.exact(case)
        exact = exact if inputs is own else Reference(inputs, case)
        bound = error_bound_of(self._implementation, case)
        judged = judge(outputs, case, bound, inputs, exact)
        self._oracle_s += judged.oracle_s
        return judged


def _not_held_bytes(case: Case, inputs: Inputs) -> int:
    """Return the bytes of results that a call need not hold at its end."""
    if case.direction is Direction.FORWARD:
        return 0
    y_bytes = inputs.x.nbytes if case.direction is Direction.FORWARD_BACKWARD else 0
    # of a single row, dbias is dy: torch's autograd returns the dy that it was given
    dbias_bytes = inputs.bias.nbytes if inputs.bias is not None and case.rows == 1 else 0
    return y_bytes + dbias_bytes  # a training step returns gradients, but not y


# --- the check during the timing ---------------------------------------------------------------


class Draws:
    """Judges the results of calls that are drawn at random inside the timing.

    Before such a call a row of x gets the values of another one, and so does dy; in a backward
    pass, whose graph belongs to the first x, a row of dy is negated. The result of this row then
    follows bit by bit from that of the judged call. Results that do not are judged.
    """

    wrong: str | None = None
    """What is wrong with a result."""

    def __init__(
        self,
        case: Case,
        first: Outputs | None,
        inputs: Inputs,
        judge: Callable[[Outputs, Inputs], str | None],
    ) -> None:
        """Judge with ``judge``, which returns what is wrong with outputs of inputs."""
        self._case, self._first, self._inputs, self._judge = case, first, inputs, judge
        self._random = Random()  # with a seed that no target knows
        self._left = _MOST_JUDGED if case.rows and case.hidden else 0

    def __call__(self, subject: Sampler, tensors: Sequence[Tensor]) -> None:
        """Draw one call of a sample that does not count."""
        if self._first is None or not self._left:
            return
        case, placed, random = self._case, self._inputs.at(tensors), self._random
        is_backward = case.direction is Direction.BACKWARD
        changed = [placed.dy] if is_backward else [placed.x, placed.dy]
        memory = [_written(_rows(tensor, case)) for tensor in changed if tensor is not None]
        at, other = (random.randrange(memory[0].shape[0]) for _ in range(2))
        before = [rows[at].clone() for rows in memory]
        kept: list[Outputs] = []

        def change(all_rows: Sequence[Tensor]) -> None:
            for rows in all_rows:
                rows[at].neg_() if is_backward else rows[at].copy_(rows[other])

        def keep(result: object) -> None:
            kept[:] = [copies_of(_outputs_of(result, case, placed))]

        try:
            subject.drawn_result(random.randrange(subject.calls), partial(change, memory), keep)
            if not self._follows(kept[0], at, other):
                y = self._first.y.clone()
                if not is_backward:
                    change([_rows(y, case)])
                self._judge_drawn(kept[0], y, placed)
        finally:
            for rows, old in zip(memory, before, strict=True):
                rows[at].copy_(old)

    def _follows(self, found: Outputs, at: int, other: int) -> bool:
        """Whether outputs follow from those of the judged call, but for dweight and dbias."""
        case, first = self._case, self._first
        assert first is not None  # by __call__
        name = "y" if case.direction is Direction.FORWARD else "dx"
        now, then = getattr(found, name), getattr(first, name)
        if now is None or then is None:
            return True
        now, then = _rows(now, case), _rows(then, case)
        moved = -then[at] if case.direction is Direction.BACKWARD else then[other]
        rest = slice(at), slice(at + 1, None)
        return torch.equal(now[at], moved) and all(torch.equal(now[i], then[i]) for i in rest)

    def _judge_drawn(self, found: Outputs, y: Tensor, placed: Inputs) -> None:
        """Judge outputs of what lies at the timed addresses, with a right y if they have none."""
        if self._case.direction is not Direction.FORWARD:
            found = replace(found, y=y)
        self._left -= 1
        if wrong := self._judge(found, placed):
            self.wrong, self._left = wrong, 0


# --- the check after the timing ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timed:
    """What was timed."""

    case: Case
    function: LayerNormFunction
    """The implementation's, or its compiled version."""
    subject: Sampler
    """The timed calls, on ``placed``."""
    placed: Inputs
    """The inputs, at the timed addresses."""
    inputs: Inputs
    """The values that were timed."""


def run_again(timed: Timed, new: Inputs) -> tuple[tuple[Outputs, ...], Outputs]:
    """Make timed calls, then an untimed one, with the values of ``new`` at the timed addresses.

    A timed backward goes through the graph of the first x, so that only dy is new to it.

    Returns:
        The outputs of a timed call and of the last of several, without y of a backward; and the
        outputs of the untimed call.

    Raises:
        ImplementationError: the implementation raised.
        ContractViolationError: it violated its contract.
    """
    case, placed = timed.case, timed.placed
    # first the timed calls: an untimed one would fill a cache of results
    is_backward = case.direction is Direction.BACKWARD
    _write(placed, replace(timed.inputs, dy=new.dy) if is_backward else new)
    in_timer = _timed_outputs(timed, 1)
    # a sample has many calls without a pause; an implementation may know how many
    most = max(2, timed.subject.calls)
    last = _timed_outputs(timed, Random().randint(max(2, most // 2), most))
    _write(placed, new)
    # torch's compiler reads frames and files
    with nullcontext() if case.mode is Mode.COMPILED else observed():
        alone = run_once(timed.function, case, placed, is_judged=True)
    return (in_timer, last), alone


def _write(placed: Inputs, new: Inputs) -> None:
    """Write the values of ``new`` to the memory of ``placed``."""
    for old, tensor in zip(placed.tensors, new.tensors, strict=True):
        overwrite(old, tensor)


def _timed_outputs(timed: Timed, calls: int) -> Outputs:
    """Make calls as the timing does; return the outputs of the last, without y of a backward."""
    case, placed = timed.case, timed.placed
    fill_free_memory(placed.tensors)
    result, _ = timed.subject.timed_result(calls)
    returned = _outputs_of(result, case, placed)
    outputs = copies_of(returned)
    if incomplete := incomplete_output(outputs, returned):
        raise ContractViolationError(f"in a timed call, {incomplete}")
    return outputs


def _outputs_of(result: object, case: Case, placed: Inputs) -> Outputs:
    """Return what a timed call returned as outputs; y of a backward is x, and not to be used."""
    if case.direction is Direction.FORWARD:
        return Outputs(y=checked("y", result, placed.x))
    assert isinstance(result, tuple)  # the type that autograd.grad returns
    given = [name for name in ("x", "weight", "bias") if getattr(placed, name) is not None]
    leaves = [name for name in given if name in case.differentiated]
    gradients = {
        f"d{name}": checked(f"d{name}", gradient, getattr(placed, name))
        for name, gradient in zip(leaves, result, strict=True)
    }
    return Outputs(y=placed.x, **gradients)


def reuse(timed: Timed, per_call_s: float = 0.0) -> str | None:
    """Return a text if calls take longer with new values in their inputs; None if they do not.

    Args:
        timed: what was timed.
        per_call_s: seconds per timed call, with the same values in each; if the first calls with
            new values take about as long, the check ends there.

    Raises:
        ImplementationError: the implementation raised.
    """
    case, placed, subject = timed.case, timed.placed, timed.subject
    # the graph that a timed backward goes through belongs to the first x: dy alone may change
    changed = placed.dy if case.direction is Direction.BACKWARD else placed.x
    if changed is None or not changed.numel():
        return None
    rows, random = _written(_rows(changed, case)), Random()

    def seconds(factors: Iterable[float]) -> float:
        row = rows[random.randrange(rows.shape[0])]
        scale = partial(next, map(row.mul_, cycle(factors)))
        return subject.timed_result(subject.calls, scale)[1]

    if seconds(_FACTORS) <= _REUSED * per_call_s:
        return None
    new_s, old_s = list[float](), list[float]()
    for pair in range(_SURE):
        sides = (new_s, _FACTORS), (old_s, (1.0,))
        # in turn first: the first is slower, since other code ran before it
        for used_s, factors in reversed(sides) if pair % 2 else sides:
            used_s.append(seconds(factors))
        again_s, fresh_s = median(old_s), min(new_s)
        if pair + 1 >= _PAIRS and not fresh_s > _REUSED * again_s:
            return None
    return (
        "returns results of earlier calls whose inputs had the same values: with new values a "
        f"call takes {fresh_s / max(again_s, 1e-9):.1f} times as long"
    )


def _rows(tensor: Tensor, case: Case) -> Tensor:
    """Return a tensor whose changes autograd does not notice, in the same memory.

    Its first axis is not normalised: it has one index if all axes of ``tensor`` are.
    """
    place = tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    alias = tensor.new_empty(0).set_(*place)
    return alias if tensor.dim() > len(case.normalized_shape) else alias[None]


def _written(rows: Tensor) -> Tensor:
    """Return a view in which no two elements of a row share memory, as in expanded axes."""
    lasting = [slice(None) if stride else slice(1) for stride in rows.stride()[1:]]
    return rows[(slice(None), *lasting)]


def shifted_or_negated(inputs: Inputs, case: Case) -> Inputs | None:
    """Return the inputs of the check, in the layout of ``inputs``; None if they would be equal."""
    if case.direction is not Direction.FORWARD:
        assert inputs.dy is not None  # a backward case has one
        return replace(inputs, x=LAYOUTS[case.layout](-inputs.x), dy=-inputs.dy)
    if case.layout.startswith("expanded") or case.rows < 2 or case.shape[0] < 2:
        return None
    return replace(inputs, x=LAYOUTS[case.layout](inputs.x.roll(1, 0)))


def are_equivariant(
    first: Outputs, outputs: Outputs, case: Case, signs: Mapping[str, int] = _SIGNS
) -> bool:
    """Whether ``outputs``, of shifted or negated inputs, follow from ``first``; False if NaN."""
    if case.direction is Direction.FORWARD:
        return torch.equal(outputs.y, first.y.roll(1, 0))
    earlier = dict(named_outputs(first))
    return all(
        torch.equal(output, signs[name] * earlier[name])
        for name, output in named_outputs(outputs)
        if name in signs
    )
