"""The verification state: everything found of a target so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from harness.records.text import count
from harness.verify.case_results import CaseResults
from harness.verify.findings import (
    Coverage,
    Declined,
    Instead,
    Property,
    Remark,
    RemarkKind,
    Suspect,
    Trigger,
    Violation,
)
from harness.verify.grade import Grade
from harness.verify.scope import Scope

__all__ = ["VerificationState"]


@dataclass(slots=True)
class VerificationState:
    """Findings, as they accumulate; :class:`harness.verify.result.Verdict` describes the fields."""

    scope: Scope | None = None
    instead: Instead | None = None
    cases: CaseResults = field(default_factory=CaseResults)
    cases_left: int = 0
    coverage: Coverage | None = None
    left_out: list[Declined] = field(default_factory=list)
    """Cases that were not tried, or only beyond the catalogue."""
    violations: list[Violation] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    grades: list[Grade] = field(default_factory=list)
    properties: list[Property] = field(default_factory=list)
    suspects: tuple[Suspect, ...] = ()
    triggers: tuple[Trigger, ...] = ()

    def add(self, finding: Violation | Remark | Declined) -> None:
        """Add one finding; a remark that is known already gets the finding's dtypes."""
        if isinstance(finding, Violation):
            self.violations.append(finding)
        elif isinstance(finding, Declined):
            self.left_out.append(finding)
        else:
            for place, known in enumerate(self.remarks):
                if (known.kind, known.text) == (finding.kind, finding.text):
                    dtypes = tuple(dict.fromkeys((*known.dtypes, *finding.dtypes)))
                    self.remarks[place] = replace(known, dtypes=dtypes)
                    return
            self.remarks.append(finding)

    @property
    def declined(self) -> tuple[Declined, ...]:
        """All cases without a result."""
        return (*self.cases.declined(), *self.left_out)

    def all_remarks(self) -> tuple[Remark, ...]:
        """Return the remarks, with those that follow from the cases as a whole."""
        remarks = list(self.remarks)
        sums = self.cases.running_sums()
        if sums is not None:
            remarks.append(
                Remark(
                    kind=RemarkKind.LESS_ACCURATE,
                    text="is less accurate than PyTorch's own, as plain running sums are",
                    dtypes=sums.dtypes,
                )
            )
        if raised := [each for each in self.declined if each.raised]:
            example = f"{raised[0].what}: {raised[0].reason}"
            text = f"raises in {count(len(raised), 'case')}, such as {example}"
            remarks.append(Remark(kind=RemarkKind.RAISES, text=text))
        return tuple(remarks)
