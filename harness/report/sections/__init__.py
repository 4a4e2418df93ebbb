"""The sections of the page, in order. To add one: a function, and its name in SECTIONS."""

from __future__ import annotations

from harness.report.content import Section
from harness.report.sections.account import all_cases, not_measured, warnings
from harness.report.sections.accuracy import error_against_condition
from harness.report.sections.backward import (
    error_of_the_gradients,
    where_native_itself_fails,
)
from harness.report.sections.choice import which_implementation_to_run
from harness.report.sections.cost import instructions, memory, speed_against_a_copy
from harness.report.sections.gate import gate_verdicts
from harness.report.sections.history import how_it_changed
from harness.report.sections.pareto import accuracy_against_speed
from harness.report.sections.provenance import environment_and_method
from harness.report.sections.speed import latency_against_size, speed_relative_to_native
from harness.report.sections.terms import terms

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
