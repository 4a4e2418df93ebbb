"""What the verification of a target has found so far, and how long its largest case took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch

from harness.records import Case, Status
from harness.verify.catalogue import Group
from harness.verify.contract import broken_promises
from harness.verify.findings import (
    Count,
    Declined,
    Extent,
    Failure,
    Property,
    RunningSums,
)
from harness.verify.grade import Grade, grade
from harness.verify.huge import huge_findings
from harness.verify.identities import identities_of
from harness.verify.properties import properties_of
from harness.verify.trial import Trial, first_case, try_case
from implementations.contract import Implementation

__all__ = ["Tally"]

_LEAST_TIMED = 1 << 12  # ours: elements; the time of fewer is that of a call
_MOST_FAILURES = 200  # ours: enough to see a pattern, and a message that can be read


@dataclass(slots=True)
class Tally:
    """What was found so far."""

    ok: int = 0
    out_of_guarantee: int = 0
    oracle_s: float = 0.0
    guest_s: float = 0.0
    tried: set[Case] = field(default_factory=set)
    answered: dict[str, None] = field(default_factory=dict)
    """Dtypes in which it gave results, in the order tried."""
    failed: list[Trial] = field(default_factory=list)
    catches: dict[Case, str] = field(default_factory=dict)
    declined: list[Declined] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    """By dtype."""
    refusals: Counter[str] = field(default_factory=Counter)
    """By dtype: cases that the target declined."""
    mistakes: list[tuple[Group, list[Trial]]] = field(default_factory=list)
    """Groups of the dtype at hand in which every case raised what a mistake raises."""
    promises: list[str] = field(default_factory=list)
    grades: list[Grade] = field(default_factory=list)
    properties: list[Property] = field(default_factory=list)
    claims: tuple[Implementation, ...] = ()
    """What the target could have declared, strictest first."""
    left: dict[str, tuple[Implementation, ...]] = field(default_factory=dict)
    """Of these, by dtype, what explains every failure so far; all where there is none."""
    held: dict[str, Implementation] = field(default_factory=dict)
    """By dtype, what the target was taken for where that is not what it was held to first."""
    _largest: Trial | None = None
    """The largest case that was answered."""
    _was_repeated: bool = False
    """Whether its time is without what its first run had to compile."""

    def add(self, trial: Trial, group: Group) -> None:
        self.oracle_s += trial.oracle_s
        self.guest_s += trial.guest_s
        self.answers[trial.case.dtype] += 1
        if trial.status is Status.OK:
            self.ok += 1
        elif trial.status is Status.OUT_OF_GUARANTEE:
            self.out_of_guarantee += 1
        else:
            dtype = trial.case.dtype
            self.failed.append(trial)
            self.catches[trial.case] = group.catches
            self.left[dtype] = tuple(
                each for each in self.claims_left(dtype) if each.algorithm in trial.again
            )
            return
        self.answered[trial.case.dtype] = None

    def refuse(self, dtype: str, what: str, trials: Sequence[Trial]) -> None:
        """Add cases that the target declined, or raised in."""
        self.refusals[dtype] += len(trials)
        first = trials[0]
        self.declined.append(
            Declined(
                what=what,
                cases=len(trials),
                reason=first.reason,
                raised=first.status is Status.ERROR,
            )
        )

    def judge_mistakes(self, dtype: str) -> None:
        """Groups in which all raised as no refusal does fail, unless the whole dtype does so."""
        for group, trials in self.mistakes:
            if dtype in self.answered:
                for each in trials:
                    self.add(each, group)
            else:
                self.refuse(dtype, f"{dtype}: {group.catches}", trials)
        self.mistakes.clear()

    def extents(self, dtypes: Sequence[str]) -> tuple[Extent, ...]:
        return tuple(
            Extent(dtype=each, answered=self.answers[each], declined=self.refusals[each])
            for each in dtypes
        )

    def claims_left(self, dtype: str) -> tuple[Implementation, ...]:
        """Return what the target could have declared with nothing wrong in ``dtype`` so far."""
        return self.left.get(dtype, self.claims)

    @property
    def is_wrong(self) -> bool:
        """Whether something failed that no claim explains."""
        return any(not self.claims_left(each.case.dtype) for each in self.failed)

    def settle(self) -> RunningSums | None:
        """Take the target for running sums in the dtypes where these explain every failure."""
        explained = {dtype: claims[0] for dtype, claims in self.left.items() if claims}
        if not explained:
            return None
        claim = max(explained.values(), key=self.claims.index)
        taken = [each for each in self.failed if each.case.dtype in explained]
        self.failed = [each for each in self.failed if each.case.dtype not in explained]
        for each in taken:
            is_ok = each.again[claim.algorithm].status is Status.OK
            self.ok, self.out_of_guarantee = self.ok + is_ok, self.out_of_guarantee + (not is_ok)
            self.answered[each.case.dtype] = None
        self.held = dict.fromkeys(explained, claim)
        worst = max(taken, key=_beyond)
        return RunningSums(
            algorithm=claim.algorithm.value,
            dtypes=tuple(explained),
            cases=len(taken),
            worst=f"{worst.case.id}: {worst.reason}",
        )

    def counts(self) -> tuple[Count, ...]:
        """Cases tried, and those that failed, by dtype."""
        failed = Counter(each.case.dtype for each in self.failed)
        return tuple(
            Count(dtype=dtype, cases=cases, failed=failed[dtype])
            for dtype, cases in self.answers.items()
        )

    def keep_promises(
        self, implementation: Implementation, dtype: str, device: str, *, most: int | None
    ) -> None:
        """Look for what no single case shows, until so many promises are found broken."""
        case = first_case(implementation.name, dtype, device)
        held = self.held.get(dtype, implementation)
        self.promises += [f"{dtype}: {each}" for each in islice(broken_promises(held, case), most)]

    def ask_for_huge(self, implementation: Implementation, device: str, memory_bytes: int) -> None:
        """Look at more elements than 31 bits count, in the narrowest dtype that was answered."""
        dtype = min(self.answered, key=lambda each: getattr(torch, each).itemsize)
        case = first_case(implementation.name, dtype, device)
        held = self.held.get(dtype, implementation)
        for found in huge_findings(held, case, memory_bytes):
            if isinstance(found, Declined):
                self.declined.append(found)
            else:
                self.promises.append(f"{dtype}: {found}")

    def inspect(self, implementation: Implementation, dtype: str, device: str) -> None:
        """Add what is reported and never failed."""
        case = first_case(implementation.name, dtype, device)
        held = self.held.get(dtype, implementation)
        self.grades.append(grade(implementation, dtype, device))
        self.properties += [
            Property(name=name, dtype=dtype, holds=holds)
            for name, holds in properties_of(implementation, case).items()
        ]
        self.properties += [
            Property(name=name, dtype=dtype, holds=holds, is_identity=True)
            for name, holds in identities_of(held, case).items()
        ]

    def time(self, trial: Trial) -> None:
        """Remember how long the largest case so far took."""
        if trial.guest_s and (
            self._largest is None or _size(trial.case) >= _size(self._largest.case)
        ):
            self._largest, self._was_repeated = trial, False

    def time_again(self, implementation: Implementation) -> None:
        """Time that case a second time, unless that has been done."""
        if self._largest is None or self._was_repeated:
            return
        again = try_case(implementation, self._largest.case)
        if again.guest_s:
            self._largest = again
        self._was_repeated = True

    def predicted_s(self, case: Case) -> float:
        """Seconds that the target will take for a case larger than any before; else 0."""
        if self._largest is None:
            return 0.0
        if _size(self._largest.case) < _LEAST_TIMED:
            return 0.0
        larger = _size(case) / _size(self._largest.case)
        return self._largest.guest_s * larger if larger > 1 else 0.0

    def failures(self) -> tuple[Failure, ...]:
        smallest = sorted(self.failed, key=lambda each: _size(each.case))
        return tuple(
            Failure(
                case=each.case,
                status=each.status,
                reason=each.reason,
                catches=self.catches[each.case],
            )
            for each in smallest[:_MOST_FAILURES]
        )


def _beyond(trial: Trial) -> float:
    """How many times the bound the worst output is off."""
    outputs = trial.errors.outputs if trial.errors else ()
    return max((each.bound_ratio or 0.0 for each in outputs), default=0.0)


def _size(case: Case) -> int:
    """Elements of x."""
    return case.rows * case.hidden
