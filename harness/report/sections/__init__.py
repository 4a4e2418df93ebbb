"""The sections of the page, in order. To add one: a function, and its name in SECTIONS."""

from __future__ import annotations

from harness.report.comparison import gate_verdicts
from harness.report.document import Section
from harness.report.history import how_it_changed
from harness.report.sections.accuracy import (
    error_against_condition,
    error_of_the_gradients,
    where_native_itself_fails,
)
from harness.report.sections.cost import instructions, memory, speed_against_a_copy
from harness.report.sections.provenance import (
    all_cases,
    environment_and_method,
    not_measured,
    terms,
    warnings,
)
from harness.report.sections.speed import (
    accuracy_against_speed,
    latency_against_size,
    speed_relative_to_native,
    which_implementation_to_run,
)

__all__ = ["SECTIONS"]

SECTIONS: tuple[Section, ...] = (
    which_implementation_to_run,
    gate_verdicts,
    how_it_changed,
    error_against_condition,
    accuracy_against_speed,
    latency_against_size,
    speed_against_a_copy,
    speed_relative_to_native,
    error_of_the_gradients,
    where_native_itself_fails,
    memory,
    instructions,
    all_cases,
    not_measured,
    warnings,
    environment_and_method,
    terms,
)
