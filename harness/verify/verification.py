"""The verification of one target, step by step: scope, cases, contract checks, diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from harness.numerics.computed import ImplementationError
from harness.numerics.error_measurement import Outputs
from harness.records import Case, Status
from harness.records.text import count
from harness.verify.cases.catalogue import Group
from harness.verify.cases.plan import planned_cases
from harness.verify.checks.answers import is_same_answer
from harness.verify.checks.contract_checks import contract_findings
from harness.verify.checks.huge import huge_findings
from harness.verify.diagnosis import diagnose
from harness.verify.find_scope import find_scope
from harness.verify.findings import Declined, Instead, Property, Remark, RemarkKind, Violation
from harness.verify.grade import Grade, grade
from harness.verify.identify import meaning_of, what_is_raised
from harness.verify.identities import identities_of
from harness.verify.pace import Pace
from harness.verify.properties import properties_of
from harness.verify.result import Verdict
from harness.verify.scope import InScope, Scope, fitted
from harness.verify.state import State
from harness.verify.trial import Trial, first_case, outputs_of, try_case
from harness.verify.undeclared import running_sums
from implementations import CallOptions
from implementations.contract import Implementation, UnsupportedError
from implementations.targets.recognise import LAYER_NORM

__all__ = ["Verification"]

_USUAL_EPS = 1e-5  # of torch.nn.functional.layer_norm
_CASES_SHARE = 0.7  # of a time budget; the rest is for contract checks
_CALLS_TO_INSPECT = 100  # of about 64x257 elements, for grades, properties and identities
_FAILING_ENOUGH = 8  # cases of another known function: more of them say nothing new


class Verification:
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
        if meaning is not None and meaning.also_channels_first:
            self.remarks.append(
                Remark(
                    kind=RemarkKind.ALSO_CHANNELS_FIRST,
                    text="normalises axis 1 too, of an x with its channels there, which was not "
                    "verified: --channels-first verifies it",
                )
            )
        name = None if meaning is None else meaning.normalization
        # what drops its weight or bias is a LayerNorm with that mistake, or with another besides
        if name not in {None, LAYER_NORM} and "without its" not in str(name):
            self.instead = Instead(name=str(name), axes=scope.axes)
        return True

    def _what_is_raised(
        self, implementation: Implementation, case: Case
    ) -> ImplementationError | None:
        if case in self.crashed:
            return ImplementationError(Status.CRASHED, self.crashed[case])
        self.on_case(case)
        return what_is_raised(implementation, case)

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
        planned = planned_cases(
            self.implementation,
            groups,
            self.dtypes,
            self.device,
            without=self.crashed,
            in_turns=self.pace.left_s != float("inf"),
        )
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
            options=self.options.as_argument(),
            wall_s=perf_counter() - self.began,
            oracle_s=state.oracle_s,
            implementation_s=state.implementation_s,
        )


_NEGATED = Remark(
    kind=RemarkKind.NEGATED_MISREAD,
    text="reads an x that torch keeps negated (such as z.conj().imag) as if it were not",
)
_CHANGED = "the result of the first call changed after later calls"
