"""The section of the page that says which implementation to run, and how fast each one is."""

from __future__ import annotations

from harness.report.answer_tables import answer_tables
from harness.report.content import Block, Text
from harness.report.frame import Findings
from harness.selection.times import REFERENCE_NAME

__all__ = ["which_implementation_to_run"]


def which_implementation_to_run(findings: Findings) -> tuple[Block, ...]:
    """Return the choices, the time of native, and the speeds of the other candidates."""
    if not any(answer.choices for answer in findings.answers):
        return (
            Text(
                f"No time relative to {REFERENCE_NAME} was measured, so no implementation can be "
                "chosen. The sections below show the errors."
            ),
        )
    return tuple(answer_tables(findings))
