"""Is this a LayerNorm, of what scope, how good a one, and if it is none, which mistake is it?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

import implementations
from harness.counting import count
from harness.records import Case, Direction, Status
from harness.verify.answers import is_same_answer
from harness.verify.catalogue import FULL, QUICK, Group, cases_of
from harness.verify.contract import contract_findings
from harness.verify.diagnosis import diagnose
from harness.verify.errors import Outputs
from harness.verify.findings import (
    Declined,
    Instead,
    Property,
    Remark,
    RemarkKind,
    Violation,
)
from harness.verify.grade import Grade, grade
from harness.verify.guest import GuestError, Unmet, run_once
from harness.verify.huge import huge_findings
from harness.verify.identities import identities_of
from harness.verify.pace import Pace
from harness.verify.properties import properties_of
from harness.verify.result import Verdict
from harness.verify.scope import InScope, Scope, find_scope, fitted, meaning_of, scope_of
from harness.verify.state import State
from harness.verify.trial import Trial, exact_of, first_case, outputs_of, try_case
from harness.verify.undeclared import running_sums
from implementations import CallOptions
from implementations.contract import Implementation, UnsupportedError
from implementations.recognise import LAYER_NORM

__all__ = ["DTYPES", "assert_layer_norm", "verify", "verify_case"]

DTYPES = ("float32", "bfloat16", "float16", "float64")
_USUAL_EPS = 1e-5  # of torch.nn.functional.layer_norm
_CASES_SHARE = 0.7  # of a time budget; the rest is for contract checks
_CALLS_TO_INSPECT = 100  # of about 64x257 elements, for grades, properties and identities
_FAILING_ENOUGH = 8  # cases of another known function: more of them say nothing new

Target = str | Implementation | Callable[..., Any]


def verify(
    target: Target,
    *,
    quick: bool = False,
    dtypes: Sequence[str] = DTYPES,
    directions: Sequence[Direction] = tuple(Direction),
    device: str = "cpu",
    eps: float | None = None,
    normalized_dims: int | None = None,
    channels_first: bool = False,
    init: Mapping[str, object] | None = None,
    fail_fast: bool = False,
    time_budget_s: float | None = None,
    huge_bytes: int | None = None,
    crashed: Mapping[Case, str] | None = None,
    on_case: Callable[[Case], None] = lambda case: None,
    on_progress: Callable[[Callable[[], Verdict]], None] = lambda verdict: None,
) -> Verdict:
    """Verify one LayerNorm on the whole catalogue, within what it takes.

    Args:
        target: an implementation, a function, a ``torch.nn.Module`` class or instance, a
            ``torch.autograd.Function`` class, or what :func:`implementations.find` finds. What
            declares nothing is held to what PyTorch's own kernel keeps or, if running sums explain
            all that is beyond, to those.
        quick: take the short catalogue (seconds) instead of the full one (minutes).
        dtypes: of x, by name.
        directions: passes to try; without a backward one, gradients are not looked at.
        device: device kind.
        eps: the only eps to verify, of a target that takes none or whose eps cannot be measured.
        normalized_dims: the only number of trailing axes to normalise over.
        channels_first: whether x is (batch, channels, ...) and the channels are normalised.
        init: arguments of the target's constructor, or of the function, by name.
        fail_fast: stop at the first failure: it says whether, not which mistake or how good.
        time_budget_s: seconds after which no case is begun; the most telling come first.
        huge_bytes: also try more elements than 31 bits count, where there is so much memory: it
            takes 10 GiB for a forward, 20 for a backward; None leaves them out.
        crashed: cases that have ended a process, with how; they are not tried again, and wrong.
        on_case: called with each case before it is tried.
        on_progress: called after each case with what makes a verdict of what was found so far.

    Raises:
        implementations.TargetError: ``target`` is a text that names nothing.
    """
    options = CallOptions(
        eps=eps, normalized_dims=normalized_dims, channels_first=channels_first, init=init or {}
    )
    implementation = as_implementation(target, options)
    forward_only = implementation.forward_only or not {*directions} - {Direction.FORWARD}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    verification = _Verification(
        implementation=replace(implementation, forward_only=forward_only),
        handle=repr(target) if isinstance(target, str) else implementation.name,
        dtypes=tuple(dtypes),
        device=device,
        options=options,
        fail_fast=fail_fast,
        pace=Pace(time_budget_s),
        crashed=crashed or {},
        on_case=on_case,
        on_progress=on_progress,
    )
    try:
        verification.run(QUICK if quick else FULL, huge_bytes)
    finally:
        torch.set_num_threads(before)
    return verification.verdict()


def verify_case(
    target: Target,
    shape: tuple[int, ...],
    *,
    options: CallOptions | None = None,
    **axes: Any,
) -> Trial:
    """Try one case, given as the fields of :class:`harness.records.Case`; plain texts will do.

    Args:
        target: as :func:`verify` takes it.
        shape: of x, its last axes normalised.
        options: what the user says of the target.
        **axes: other fields of the case.

    Raises:
        implementations.TargetError: ``target`` is a text that names nothing.
    """
    options = options or CallOptions()
    implementation = as_implementation(target, options)
    if "direction" in axes:
        axes["direction"] = Direction(axes["direction"])
    case = Case(implementation=implementation.name, shape=shape, **axes)
    meaning = meaning_of(implementation, case.device)
    scope, _ = find_scope(
        implementation, meaning, (case.dtype,), case.device, options, _what_is_raised
    )
    function: Any = InScope(implementation.function, scope)
    return try_case(replace(implementation, function=function), case)


def assert_layer_norm(
    target: Target,
    *,
    quick: bool = True,
    strict: bool = False,
    dtypes: Sequence[str] = DTYPES,
    directions: Sequence[Direction] = tuple(Direction),
    device: str = "cpu",
    eps: float | None = None,
    normalized_dims: int | None = None,
    channels_first: bool = False,
    init: Mapping[str, object] | None = None,
) -> None:
    """Fail, saying which mistake it is, unless ``target`` is a LayerNorm; for test suites.

    Args:
        target: as :func:`verify` takes it, and the other arguments.
        quick: take the short catalogue.
        strict: fail for remarks too.
        dtypes: of x, by name.
        directions: passes to try.
        device: device kind.
        eps: the only eps to verify.
        normalized_dims: the only number of trailing axes.
        channels_first: whether axis 1 of x is normalised.
        init: arguments of the target's constructor.

    Raises:
        AssertionError: it is not one.
    """
    from harness.verify.text import verdict_lines

    verdict = verify(
        target,
        quick=quick,
        dtypes=dtypes,
        directions=directions,
        device=device,
        eps=eps,
        normalized_dims=normalized_dims,
        channels_first=channels_first,
        init=init,
    )
    if not verdict.passed or (strict and verdict.remarks):
        raise AssertionError("\n".join(verdict_lines(verdict)))


def as_implementation(target: Target, options: CallOptions | None = None) -> Implementation:
    """Return ``target`` as an implementation.

    Raises:
        implementations.TargetError: it is a text that names nothing.
    """
    if isinstance(target, str):
        return implementations.find(target, options)
    name = getattr(target, "__name__", None) or type(target).__name__
    return implementations.adopt(target, name, options)


class _Verification:
    """One target, and what is found of it step by step."""

    def __init__(
        self,
        *,
        implementation: Implementation,
        handle: str,
        dtypes: tuple[str, ...],
        device: str,
        options: CallOptions,
        fail_fast: bool,
        pace: Pace,
        crashed: Mapping[Case, str],
        on_case: Callable[[Case], None],
        on_progress: Callable[[Callable[[], Verdict]], None],
    ) -> None:
        self.implementation, self.handle = implementation, handle
        self.dtypes, self.device, self.options = dtypes, device, options
        self.fail_fast, self.pace, self.crashed = fail_fast, pace, crashed
        self.on_case, self.on_progress = on_case, on_progress
        self.began = perf_counter()
        self.state = State(claims=running_sums(implementation))
        self.scope: Scope | None = None
        self.instead: Instead | None = None
        self.remarks: list[Remark] = []
        self.violations: list[Violation] = []
        self.grades: list[Grade] = []
        self.properties: list[Property] = []
        self.suspects: tuple[Any, ...] = ()
        self.left = 0

    def run(self, groups: Sequence[Group], huge_bytes: int | None) -> None:
        """Find out what the target is, try the cases, check the contract, and explain failures."""
        if not self._find_scope():
            return
        start = {each: self._first_answer(each) for each in self.dtypes}
        self._try_cases(groups)
        if not (self.fail_fast and self.state.unexplained) and self.instead is None:
            self._check_contract(start, huge_bytes)
        if self.state.unexplained and not self.fail_fast and self.instead is None:
            self.suspects = diagnose(self.implementation, self.state.unexplained)

    # --- what it is ---------------------------------------------------------------------------

    def _find_scope(self) -> bool:
        """Find out what the target computes and takes; False if it answers nothing."""
        self.on_case(first_case(self.implementation.name, self.dtypes[0], self.device))
        try:
            meaning = meaning_of(self.implementation, self.device)
            scope, remarks = find_scope(
                self.implementation,
                meaning,
                self.dtypes,
                self.device,
                self.options,
                self._what_is_raised,
            )
        except UnsupportedError as error:
            self.state.declined.append(
                Declined(what="every call", cases=0, reason=str(error), raised=False)
            )
            return False
        if self.implementation.forward_only:
            scope = replace(scope, has_gradient=False)
        function: Any = InScope(self.implementation.function, scope)
        self.scope = scope
        self.implementation = replace(
            self.implementation, function=function, forward_only=not scope.has_gradient
        )
        self.state.claims = running_sums(self.implementation)
        self.remarks += remarks
        if scope.default_eps is not None and scope.default_eps != _USUAL_EPS:
            self.remarks.append(
                Remark(
                    kind=RemarkKind.DEFAULT_EPS,
                    text=f"adds an eps of {scope.default_eps:g} where none is given; "
                    f"torch adds {_USUAL_EPS:g}",
                )
            )
        name = None if meaning is None else meaning.normalization
        if name not in {None, LAYER_NORM}:
            self.instead = Instead(name=str(name), axes=scope.axes)
        return True

    def _what_is_raised(self, implementation: Implementation, case: Case) -> GuestError | None:
        if case in self.crashed:
            return GuestError(Status.CRASHED, self.crashed[case])
        self.on_case(case)
        return _what_is_raised(implementation, case)

    def _first_answer(self, dtype: str) -> Outputs | None:
        """y of the first case of all, which is asked again at the end."""
        case = self._case(dtype)
        if case in self.crashed:
            return None
        self.on_case(case)
        outputs = outputs_of(self.implementation, case)
        return None if outputs is None else Outputs(y=outputs.y.clone())

    def _case(self, dtype: str) -> Case:
        """The first case, in what the target takes."""
        case = first_case(self.implementation.name, dtype, self.device)
        return fitted(self.implementation, case)

    # --- cases --------------------------------------------------------------------------------

    def _try_cases(self, groups: Sequence[Group]) -> None:
        for case, reason in self.crashed.items():
            if case.dtype in self.dtypes:
                trial = Trial(case=case, status=Status.CRASHED, reason=reason)
                self.state.add(trial, groups[0])
        planned = list(self._planned(groups))
        budget_s = self.pace.left_s
        stop_at_s = 0.0 if budget_s == float("inf") else (1 - _CASES_SHARE) * budget_s
        for place, (group, case) in enumerate(planned):
            enough = self.instead is not None and len(self.state.unexplained) >= _FAILING_ENOUGH
            if enough or (self.fail_fast and self.state.unexplained):
                return
            if self.pace.left_s <= stop_at_s:
                self.left = len(planned) - place
                return
            self._try(case, group)
            self.on_progress(self.verdict)

    def _planned(self, groups: Sequence[Group]) -> Iterator[tuple[Group, Case]]:
        """Yield each case of the catalogue once, fitted to the scope.

        With a time budget the most telling come first: of each group one, then of each another.
        """
        scope = scope_of(self.implementation)
        seen: set[Case] = set(self.crashed)
        turns: list[tuple[int, Group, Case]] = []
        for dtype in self.dtypes:
            for group in groups:
                asked = cases_of(
                    group,
                    self.implementation.name,
                    dtype,
                    self.device,
                    self.implementation.forward_only,
                )
                fits = (scope.fit(each) for each in asked)
                new = [each for each in fits if each is not None and each not in seen]
                new = list(dict.fromkeys(new))
                seen.update(new)
                turns += [(turn, group, case) for turn, case in enumerate(new)]
        if self.pace.left_s != float("inf"):
            turns.sort(key=lambda each: each[0])
        for _, group, case in turns:
            yield group, case

    def _try(self, case: Case, group: Group) -> None:
        if self.pace.is_too_slow(case):
            reason = f"it would take about {self.pace.predicted_s(case):.0f} s"
            self.state.declined.append(
                Declined(what=case.id, cases=1, reason=reason, by_target=False)
            )
            return
        self.on_case(case)
        trial = try_case(self.implementation, case, self.state.claims_left(case.dtype))
        # a distribution that the dtype cannot hold is no limit of the target
        if trial.status is Status.UNSUPPORTED and "beyond the largest" in trial.reason:
            return
        self.pace.add(trial)
        if trial.status is Status.WRONG and self._is_misread_negation(case):
            self._add_finding(_NEGATED, case.dtype)
            return
        self.state.add(trial, group)

    def _is_misread_negation(self, case: Case) -> bool:
        """Whether a wrong result is of an x kept negated, and right without that."""
        if case.layout != "negated":
            return False
        plain = try_case(self.implementation, replace(case, layout="contiguous"))
        return plain.status is Status.OK

    # --- the contract -------------------------------------------------------------------------

    def _check_contract(self, start: Mapping[str, Outputs | None], huge_bytes: int | None) -> None:
        for dtype in self.state.answered:
            case, held = self._case(dtype), self.state.held(dtype, self.implementation)
            for finding in contract_findings(held, case, lambda: self.pace.left_s <= 0):
                self._add_finding(finding, dtype)
                self.on_progress(self.verdict)
                if self.fail_fast and self.violations:
                    return
            again = self._first_answer(dtype)
            if not is_same_answer(held, case, start[dtype], again):
                self._add_finding(_CHANGED, dtype)
            if not self.fail_fast and self._has_time_to_inspect(case):
                self._inspect(held, dtype)
        if huge_bytes is not None and self.state.answered:
            self._try_huge(huge_bytes)

    def _has_time_to_inspect(self, case: Case) -> bool:
        """Whether the calls of grades, properties and identities fit into what is left."""
        of_one = self.pace.predicted_s(replace(case, shape=(64, 257), normalized_dims=1))
        return _CALLS_TO_INSPECT * of_one < self.pace.left_s

    def _add_finding(self, finding: str | Remark, dtype: str) -> None:
        if isinstance(finding, str):
            self.violations.append(Violation(dtype=dtype, text=finding))
            return
        for place, known in enumerate(self.remarks):
            if (known.kind, known.text) == (finding.kind, finding.text):
                dtypes = tuple(dict.fromkeys((*known.dtypes, dtype)))
                self.remarks[place] = replace(known, dtypes=dtypes)
                return
        self.remarks.append(replace(finding, dtypes=(dtype,)))

    def _inspect(self, held: Implementation, dtype: str) -> None:
        """Add what is reported and never failed."""
        case = self._case(dtype)
        self.grades.append(grade(self.implementation, dtype, self.device))
        self.properties += [
            Property(name=name, dtype=dtype, holds=holds)
            for name, holds in properties_of(self.implementation, case).items()
        ]
        self.properties += [
            Property(name=name, dtype=dtype, holds=holds, is_identity=True)
            for name, holds in identities_of(held, case).items()
        ]

    def _try_huge(self, memory_bytes: int) -> None:
        """Try more elements than 31 bits count, in the narrowest dtype that was answered."""
        dtype = min(self.state.answered, key=lambda each: getattr(torch, each).itemsize)
        held = self.state.held(dtype, self.implementation)
        for found in huge_findings(held, self._case(dtype), memory_bytes):
            if isinstance(found, Declined):
                self.state.declined.append(found)
            else:
                self.violations.append(Violation(dtype=dtype, text=found))

    # --- the verdict --------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Return what was found so far."""
        state = self.state
        sums = state.running_sums()
        remarks = list(self.remarks)
        if sums is not None:
            remarks.append(
                Remark(
                    kind=RemarkKind.LESS_ACCURATE,
                    text="is less accurate than PyTorch's own, as plain running sums are",
                    dtypes=sums.dtypes,
                )
            )
        if raised := [each for each in state.declined if each.raised]:
            example = f"{raised[0].what}: {raised[0].reason}"
            text = f"raises in {count(len(raised), 'case')}, such as {example}"
            remarks.append(Remark(kind=RemarkKind.RAISES, text=text))
        failed = len(state.unexplained)
        return Verdict(
            target=self.implementation.name,
            handle=self.handle,
            algorithm=self.implementation.algorithm,
            instead=self.instead if failed else None,
            scope=self.scope,
            remarks=tuple(remarks),
            ok=state.ok_count(),
            out_of_guarantee=state.out_of_guarantee_count(),
            failed=failed,
            left=self.left,
            counts=state.counts(),
            running_sums=sums,
            failures=state.failures(),
            violations=tuple(self.violations),
            declined=tuple(state.declined),
            extents=state.extents(self.dtypes),
            suspects=self.suspects,
            grades=tuple(self.grades),
            properties=tuple(self.properties),
            options=_as_source(self.options),
            wall_s=perf_counter() - self.began,
            oracle_s=state.oracle_s,
            guest_s=state.guest_s,
        )


_NEGATED = Remark(
    kind=RemarkKind.NEGATED_MISREAD,
    text="reads an x that torch keeps negated (such as z.conj().imag) as if it were not",
)
_CHANGED = "the result of the first call changed after later calls"


def _what_is_raised(implementation: Implementation, case: Case) -> GuestError | None:
    """Return what the target raises for a case; None if it answers, however wrong."""
    inputs, _ = exact_of(replace(case, implementation=""))
    try:
        with torch.set_grad_enabled(case.direction is not Direction.FORWARD):
            run_once(implementation.function, case, inputs)
    except GuestError as ended:
        return ended
    except Unmet:
        exact_of.cache_clear()  # its inputs may be the very thing that was modified
    return None


def _as_source(options: CallOptions) -> str:
    """Write what the user said of a target as an argument of verify_case."""
    given = {
        "eps": options.eps,
        "normalized_dims": options.normalized_dims,
        "channels_first": options.channels_first or None,
        "init": dict(options.init) or None,
    }
    told = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
    return f", options=CallOptions({told})" if told else ""
