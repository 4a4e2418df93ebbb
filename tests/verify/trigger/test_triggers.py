"""The triggers of real mistakes, by output and dtype, in the verdict of a verification."""

from __future__ import annotations

from functools import partial

import pytest
from torch import Tensor
from verify_targets import layer_norm

from harness.cases import Condition, Relation
from harness.records import Case, Direction, Status
from harness.run.attempt import Judged, attempt
from harness.verify import verify
from harness.verify.case_results import CaseResults
from harness.verify.trigger import triggers_of
from implementations import two_pass

LONG = Condition(axis="hidden", relation=Relation.AT_LEAST, value=130)


def wrong_from_130(x: Tensor, *arguments: object) -> Tensor:
    """Doubles dx in rows of 130 elements or more."""
    if x.shape[-1] >= 130 and x.requires_grad:
        x = 2 * x - x.detach()
    return layer_norm(x, *arguments)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_catalogue")
def test_the_verdict_names_the_trigger_and_the_outputs() -> None:
    verdict = verify(wrong_from_130, quick=True, dtypes=("float32",), normalized_dims=1)
    (trigger,) = verdict.triggers
    assert trigger.conditions == (LONG,)
    assert trigger.outputs == ("dx",)
    assert trigger.further_cases


def trial_in(hidden: int, status: Status) -> Judged:
    case = Case(implementation="target", shape=(6, hidden), direction=Direction.FORWARD)
    if status is Status.CRASHED:
        return Judged(case=case, status=status, reason="was ended by SIGSEGV")
    return attempt(two_pass, case)


def test_nothing_is_tried_after_a_crash() -> None:
    results = CaseResults()
    for hidden in (16, 64, 100, 130, 200, 333, 4125):
        status = Status.CRASHED if hidden >= 130 else Status.OK
        results.add(trial_in(hidden, status), "a crash")
    tried: list[Case] = []
    (trigger,) = triggers_of(results, partial(_record, tried))
    assert not tried
    assert trigger.conditions == (LONG,)
    assert (trigger.failed, trigger.right, trigger.further_cases) == (4, 3, 0)


def _record(tried: list[Case], case: Case) -> None:
    tried.append(case)
