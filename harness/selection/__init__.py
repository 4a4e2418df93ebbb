"""Which implementation to run: the evidence, a ranking, choices per scenario and for several.

Workloads are imported when they are used: they alone need pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.records.lazy import names_in
from harness.selection.choice import (
    FILTERS,
    Answer,
    Choice,
    Choices,
    OverallChoice,
    Slice,
    Wanted,
    answers_of,
    choose,
    choose_overall,
)
from harness.selection.evidence import (
    DEFAULT_MAX_CONDITION,
    Accuracy,
    CandidateName,
    Disqualification,
    DisqualificationKind,
    Requirements,
    Scenario,
    is_required,
    requirement_levels,
)
from harness.selection.ranking import (
    CLOSE_RATIO,
    LONG_FLOOR,
    NATIVE,
    REFERENCE_NAME,
    SHORT_FLOOR,
    Candidate,
    Decider,
    cost_of,
    geometric_mean,
    has_valid_time,
    is_close,
    label_of,
    rank,
    scaled,
    speed_of,
    worst_in_common,
)

if TYPE_CHECKING:
    from harness.selection.workload import (
        Call,
        Workload,
        WorkloadChoice,
        choose_for_workload,
        find_workload,
        workload_names,
    )

__all__ = [
    "CLOSE_RATIO",
    "DEFAULT_MAX_CONDITION",
    "FILTERS",
    "LONG_FLOOR",
    "NATIVE",
    "REFERENCE_NAME",
    "SHORT_FLOOR",
    "Accuracy",
    "Answer",
    "Call",
    "Candidate",
    "CandidateName",
    "Choice",
    "Choices",
    "Decider",
    "Disqualification",
    "DisqualificationKind",
    "OverallChoice",
    "Requirements",
    "Scenario",
    "Slice",
    "Wanted",
    "Workload",
    "WorkloadChoice",
    "answers_of",
    "choose",
    "choose_for_workload",
    "choose_overall",
    "cost_of",
    "find_workload",
    "geometric_mean",
    "has_valid_time",
    "is_close",
    "is_required",
    "label_of",
    "rank",
    "requirement_levels",
    "scaled",
    "speed_of",
    "workload_names",
    "worst_in_common",
]

__getattr__ = names_in(__name__, __file__)
