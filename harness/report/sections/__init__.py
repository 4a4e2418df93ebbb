"""The sections of the page, in order. To add one: a function, and its name in SECTIONS."""

from __future__ import annotations

from harness.report.comparison import gate_verdicts
from harness.report.document import Section
from harness.report.history import how_it_changed
from harness.report.sections.accuracy import error_against_condition, error_of_the_gradients
from harness.report.sections.provenance import (
    all_cases,
    environment_and_method,
    failures_and_warnings,
    terms,
)
from harness.report.sections.speed import (
    latency_against_size,
    memory,
    speed_relative_to_native,
    which_implementation_to_run,
)

__all__ = ["SECTIONS"]

SECTIONS: tuple[Section, ...] = (
    which_implementation_to_run,
    gate_verdicts,
    how_it_changed,
    error_against_condition,
    latency_against_size,
    speed_relative_to_native,
    error_of_the_gradients,
    memory,
    failures_and_warnings,
    all_cases,
    environment_and_method,
    terms,
)
