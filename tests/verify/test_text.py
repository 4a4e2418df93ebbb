"""The words of verdicts, explanations and the self-test are those of the golden files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from golden import assert_golden
from verdict_examples import EXAMPLES

from harness.records import Case, Status
from harness.verify.explain import Explanation, Step, explanation_lines
from harness.verify.result import Outcome, verdict_lines
from harness.verify.self_test import MutantResult, SelfTest, self_test_lines

GOLDEN = Path(__file__).parent / "golden"
MEAN = Step(name="mean", shape=(3, 1), exact=(-0.25,), computed=(-0.2500001,))
EXPLANATION = Explanation(
    case=Case(implementation="norm", shape=(3, 2)),
    status=Status.OK,
    reason="",
    row=1,
    worst_element=0,
    worst_ulp=0.42,
    steps=(MEAN, Step(name="y", shape=(3, 2), exact=(1.0, -1.0), computed=(1.0, -1.0))),
)


def test_verdicts_in_words() -> None:
    parts = [
        "\n".join([f"# {name}", *verdict_lines(verdict)]) for name, verdict in EXAMPLES.items()
    ]
    assert_golden("\n\n".join(parts), GOLDEN / "verdicts.txt")


def test_explanations_in_words() -> None:
    wrong = replace(
        EXPLANATION,
        status=Status.WRONG,
        reason="y: 2 of 2 elements are NaN",
        worst_ulp=float("inf"),
        steps=(replace(MEAN, computed=None),),
    )
    parts = ["\n".join(explanation_lines(each)) for each in (EXPLANATION, wrong)]
    assert_golden("\n\n".join(parts), GOLDEN / "explanations.txt")


def test_self_tests_in_words() -> None:
    found, missed = (
        MutantResult(name="no_root", mistake="divides", dtype=dtype, is_found=dtype == "float32")
        for dtype in ("float32", "bfloat16")
    )
    results = (
        SelfTest(mutants=(found,), rejected=()),
        SelfTest(mutants=(found, missed), rejected=("module", "recentred")),
    )
    parts = ["\n".join(self_test_lines(each)) for each in results]
    assert_golden("\n\n".join(parts), GOLDEN / "self_tests.txt")


def test_there_is_an_example_of_every_outcome() -> None:
    assert {each.outcome for each in EXAMPLES.values()} == {*Outcome}
