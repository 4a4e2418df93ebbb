"""Suspects in many implementations, which mean that the machine changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from compared_runs import SHARED, STEADY, compared, confirming, make_cases, make_record, results_of

from harness.records import Status
from harness.regression.changes import ChangeKind

MANY = make_cases(36)


def many(*slow: int, ratios: Any = (1.0,), factor: float = 1.2) -> Any:
    """Return a run of 36 cases, in which those at the places ``slow`` take ``factor`` as long."""
    return results_of(
        *(
            make_record(case, [factor * each for each in ratios] if place in slow else ratios)
            for place, case in enumerate(MANY)
        )
    )


def places_of(implementation: str) -> list[int]:
    return [place for place, case in enumerate(MANY) if case.implementation == implementation]


def test_suspects_in_all_implementations_mean_that_the_machine_changed() -> None:
    found = compared(many(ratios=STEADY), many(*range(0, 36, 5)), confirm=confirming(*[1.2] * 5))
    assert not found.failed
    assert found.counts == {ChangeKind.INCONCLUSIVE: 36}
    assert any("8 of 36 cases" in note for note in found.notes)
    after = many(*range(36))
    wrong = replace(after.records[0], status=Status.WRONG)
    after = replace(after, records=(wrong, *after.records[1:]))
    assert compared(many(ratios=STEADY), after).failed  # a larger error is not excused


@pytest.mark.parametrize(
    "slow",
    [[0, 1, 2], places_of("two_pass"), [*places_of("two_pass"), places_of("one_pass")[0]]],
    ids=["few", "one implementation", "one implementation and one suspect by chance"],
)
def test_few_suspects_or_those_of_one_implementation_are_timed_again(slow: list[int]) -> None:
    found = compared(many(ratios=STEADY), many(*slow), confirm=confirming(*[1.2] * 5))
    assert found.counts == {ChangeKind.SLOWER: len(slow), ChangeKind.UNCHANGED: 36 - len(slow)}


def test_slow_shared_code_fails_if_no_machine_explains_it() -> None:
    slow = [*places_of("one_pass"), *places_of("two_pass")]
    after = many(*slow, factor=3.0)
    found = compared(many(ratios=STEADY), after, confirm=confirming(*[3.0] * 5))
    assert found.counts == {ChangeKind.SLOWER: len(slow), ChangeKind.INCONCLUSIVE: 36 - len(slow)}
    assert any("24 cases moved" in note for note in found.notes)


def test_if_the_machine_changed_a_suspect_has_to_be_slower_by_a_half() -> None:
    before, after = many(ratios=STEADY), many(*range(36), factor=1.49)
    compared(before, after, confirm=lambda cases: pytest.fail("it was timed again"))
    after = many(*range(36), factor=1.6)
    assert not compared(before, after, confirm=confirming(*[1.49] * 5)).failed
    assert compared(before, after, confirm=confirming(*[1.51] * 5)).failed
    assert not compared(before, after).failed


def test_noisy_cases_that_did_not_move_do_not_hide_a_machine_that_changed() -> None:
    steady = many(ratios=STEADY)
    noisy = [
        replace(record, warnings=(SHARED,)) if place >= 12 else record
        for place, record in enumerate(steady.records)
    ]
    found = compared(
        replace(steady, records=tuple(noisy)), many(0, 1, 2), confirm=confirming(*[1.2] * 5)
    )
    assert not found.failed
