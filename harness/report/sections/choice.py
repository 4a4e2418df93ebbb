"""Which implementation to run: the overall choices, and the speeds behind them."""

from __future__ import annotations

from harness.report.answer_tables import answer_tables
from harness.report.content import Block, Text
from harness.report.frame import Findings
from harness.selection.times import REFERENCE_NAME

__all__ = ["which_implementation_to_run"]


def which_implementation_to_run(findings: Findings) -> tuple[Block, ...]:
    """Name what to run, what the reader has now, and the price of the others."""
    if not any(answer.choices for answer in findings.answers):
        return (
            Text(
                f"No time relative to {REFERENCE_NAME} was measured, so nothing can be preferred. "
                "The sections below have the errors."
            ),
        )
    return tuple(answer_tables(findings))
