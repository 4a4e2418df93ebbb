"""Mutants say what they do wrong, and are right wherever their mistake is not made.

test_self_test.py asks the verifier to find each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from harness import mutants
from harness.mutants import CONDITIONS, RIGHT, WRONG, Mutant, gradient, named
from harness.mutants.mutant import mutants_in
from harness.records import Case, Direction, Status
from harness.run.attempt import attempt
from harness.run.integrity import process_state_restored
from implementations import adopt, native

BACKWARD = Case(implementation="", shape=(6, 40), direction=Direction.BACKWARD)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Undo what the mutants that change the process have changed."""
    with process_state_restored():
        yield


def by_name(wrong: list[Mutant]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mutant", wrong, ids=lambda mutant: mutant.name)


def test_a_mutant_says_what_its_mistake_is() -> None:
    for mutant in WRONG:
        assert mutant.mistake[0].islower()
        assert not mutant.mistake.endswith(".")
        assert mutant.dtypes
        assert mutant.dtypes <= {"float16", "bfloat16", "float32", "float64"}


def test_a_fresh_mutant_remembers_nothing() -> None:
    mutant = named("output_of_the_first_call")
    first, second = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).unbind()
    used = mutant.fresh()
    once = used(first, (8,))
    assert torch.equal(used(second, (8,)), once)
    assert not torch.equal(mutant.fresh()(second, (8,)), once)


@by_name([*mutants_in(gradient)])
def test_a_mutant_of_the_backward_alone_is_right_forward(mutant: Mutant) -> None:
    forward = replace(BACKWARD, direction=Direction.FORWARD)
    assert attempt(adopt(mutant.fresh(), mutant.name), forward).status is Status.OK


@by_name([mutant for mutant in WRONG if mutant.name.endswith("_in_inference")])
def test_a_mutant_of_inference_is_right_where_gradients_are_recorded(mutant: Mutant) -> None:
    target = adopt(mutant.fresh(), mutant.name)
    for layout in ("contiguous", "transposed", "padded_rows"):
        assert attempt(target, replace(BACKWARD, layout=layout)).status is Status.OK


def test_a_mutant_under_conditions_is_wrong_where_all_hold_and_right_elsewhere() -> None:
    trigger = tuple(
        condition
        for condition in CONDITIONS
        if condition.text in {"N > 32", "x is not contiguous", "dy is finite"}
    )
    target = adopt(replace(named("dbias_zero"), where=trigger).fresh(), "target")
    wrong = replace(BACKWARD, layout="transposed")
    assert attempt(target, wrong).status is Status.WRONG
    for right in (
        BACKWARD,
        replace(wrong, shape=(6, 32)),
        replace(wrong, grad_output="nan_row"),
    ):
        assert attempt(target, right).status is Status.OK


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_most_mutants_change_is_right(dtype: str) -> None:
    unchanged = adopt(mutants.layer_norm_of(lambda rows: rows.y), "unchanged")
    for case in (BACKWARD, replace(BACKWARD, shape=(200, 3, 5), layout="padded_rows")):
        case = replace(case, dtype=dtype, param_dtype=dtype)
        assert attempt(unchanged, case).status is Status.OK
        assert attempt(native, case, is_judged=False).outputs is not None


def test_every_mutant_and_every_right_one_is_listed_once() -> None:
    listed = [known.name for known in (*WRONG, *RIGHT)]
    assert len(listed) == len({*listed})
    assert len({mutant.sentence for mutant in WRONG}) == len(WRONG)
