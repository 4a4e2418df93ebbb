"""Every mutant is caught by the check that it names, and no right LayerNorm is called wrong."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from catching import (
    catching_check,
    finding,
    is_caught_by_autograd,
    is_caught_by_repetition,
    is_caught_by_threads,
    undeclared,
)
from interactions import is_caught_by_interaction
from mutant_cases import DTYPES, cases_of_many_rows, contiguous_cases, other_layouts
from mutant_dtypes import two_dtypes
from side_effects import is_caught_by_effect

from harness.records import Direction
from harness.verify import mutants
from harness.verify.mutants import RIGHT, WRONG, CheckKind, Mutant
from harness.verify.mutants.arguments import layer_norm_of
from harness.verify.mutants.compound import BASES
from harness.verify.process_state import process_state_restored
from implementations import Implementation

MUTANTS = tuple(dict.fromkeys((*WRONG, *BASES)))
"""Every mutant; some are wrong only behind the triggers of compounds."""


def mutants_and_dtypes(*, shown: bool) -> pytest.MarkDecorator:
    """Every mutant with dtypes in which its mistake shows, or with the others."""
    chosen = two_dtypes(MUTANTS)
    return pytest.mark.parametrize(
        ("mutant", "dtype"),
        [
            (mutant, dtype)
            for mutant, dtype in product(MUTANTS, DTYPES)
            if (dtype in mutant.dtypes) == shown
            and (dtype in chosen[mutant.name] or len(mutant.dtypes) < len(DTYPES))
        ],
        ids=lambda each: each.name if isinstance(each, Mutant) else each,
    )


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Undo what the mutants that change the process have changed."""
    with process_state_restored():
        yield


# --- wrong ---------------------------------------------------------------------------------------


@mutants_and_dtypes(shown=True)
def test_a_mutant_is_caught_by_the_check_that_it_names(mutant: Mutant, dtype: str) -> None:
    assert catching_check(mutant, dtype) is mutant.caught_by, mutant.mistake


@mutants_and_dtypes(shown=False)
def test_a_mutant_is_right_in_the_dtypes_that_do_not_show_it(mutant: Mutant, dtype: str) -> None:
    assert catching_check(mutant, dtype) is None


def named(mutants: Iterable[Mutant]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mutant", list(mutants), ids=lambda each: each.name)


@named(each for each in WRONG if Direction.FORWARD not in each.directions)
def test_a_mutant_of_the_backward_alone_is_right_forward(mutant: Mutant) -> None:
    for case in contiguous_cases("float32"):
        forward = replace(case, direction=Direction.FORWARD)
        assert finding(mutant.fresh(), forward, undeclared(mutant.function)) is None


@named(each for each in WRONG if each.directions == {Direction.FORWARD})
def test_a_mutant_of_inference_is_right_where_gradients_are_recorded(mutant: Mutant) -> None:
    for case in (*contiguous_cases("bfloat16"), *other_layouts("bfloat16")):
        if case.direction is Direction.BACKWARD:
            assert finding(mutant.fresh(), case, undeclared(mutant.function)) is None


def test_a_mutant_says_what_its_mistake_is() -> None:
    for mutant in WRONG:
        assert mutant.mistake[0].islower()
        assert not mutant.mistake.endswith(".")
        assert mutant.dtypes
        assert mutant.dtypes <= set(DTYPES)


def test_a_fresh_mutant_remembers_nothing() -> None:
    mutant = next(each for each in WRONG if each.name == "output_of_the_first_call")
    first, second = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).unbind()
    used = mutant.fresh()
    once = used(first, (8,))
    assert torch.equal(used(second, (8,)), once)
    assert not torch.equal(mutant.fresh()(second, (8,)), once)
    assert not torch.equal(mutant(second, (8,)), once)


def test_every_check_has_a_mutant() -> None:
    assert {each.caught_by for each in WRONG} == set(CheckKind)


# --- right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "dtype"),
    [(right, dtype) for right in RIGHT for dtype in sorted(two_dtypes(RIGHT)[right.name])],
    ids=lambda each: each.name if isinstance(each, Implementation) else each,
)
def test_a_right_one_is_never_called_wrong(right: Implementation, dtype: str) -> None:
    for case in (*contiguous_cases(dtype), *other_layouts(dtype)):
        assert finding(right.function, case, right) is None, case.id
    assert not is_caught_by_repetition(right.function, dtype)
    assert not is_caught_by_threads(right.function, dtype)
    assert not is_caught_by_autograd(right.function, dtype)
    assert not is_caught_by_interaction(right.function, getattr(torch, dtype))
    assert not is_caught_by_effect(right.function, getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_most_mutants_change_is_right(dtype: str) -> None:
    unchanged = undeclared(layer_norm_of(lambda rows: rows.y))
    cases = (*contiguous_cases(dtype), *other_layouts(dtype), *cases_of_many_rows(dtype))
    for case in cases:
        assert finding(unchanged.function, case, unchanged) is None, case.id


# --- the lists -----------------------------------------------------------------------------------


def test_every_mutant_and_every_right_one_is_in_its_list_by_its_own_name() -> None:
    defined: dict[str, Mutant | Implementation] = {}
    for module in pkgutil.iter_modules(mutants.__path__):
        names = vars(importlib.import_module(f"{mutants.__name__}.{module.name}"))
        defined |= {
            name: value
            for name, value in names.items()
            if isinstance(value, Mutant | Implementation)
        }
    assert {each.name: each for each in (*MUTANTS, *RIGHT)} == defined
    assert len(MUTANTS) + len(RIGHT) == len(defined)


@pytest.mark.parametrize("family", sorted({each.function.__module__ for each in (*WRONG, *RIGHT)}))
def test_every_public_function_of_a_family_is_a_mutant(family: str) -> None:
    names = vars(importlib.import_module(family))
    public = {
        name
        for name, value in names.items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == names["__name__"]
    }
    assert public == set(), f"{family}: neither a mutant nor private"
