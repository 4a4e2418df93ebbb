"""Targets of a base revision: what it declares, and which targets it has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories.git_repository import LAYER_NORM
from factories.two_revisions import CONTRACT, Open

import implementations
from harness.records import Allocation
from harness.regression.ab import missing_in_base
from harness.regression.revision import Checkout
from harness.regression.side_by_side import side_by_side
from harness.run.case import CaseRunner
from implementations.contract import Algorithm, Implementation

NATIVE = implementations.find("native")


LACKS, BROKEN = 0, 1


def missing(checkout: Checkout, target: str) -> tuple[int, str]:
    """Return why a target cannot be compared, after LACKS or BROKEN."""
    found = missing_in_base(CaseRunner("here", Allocation.DEFAULT), (checkout, (target,)))
    ((index, reason),) = ((index, part[target]) for index, part in enumerate(found) if part)
    return index, reason


# --- declarations --------------------------------------------------------------------------------


def test_the_declaration_of_an_older_class_is_converted(opened: Open) -> None:
    checkout = opened({"implementation.py": CONTRACT}, {"implementation.py": CONTRACT})
    found = side_by_side(checkout).find("implementation.py:mine")
    assert type(found) is Implementation
    assert found.algorithm is Algorithm.ONE_PASS
    assert (found.name, found.devices) == ("f", NATIVE.devices)


def test_a_declaration_unknown_to_this_revision_is_not_comparable(opened: Open) -> None:
    checkout = opened({"implementation.py": CONTRACT}, {"implementation.py": CONTRACT})
    kind, reason = missing(checkout, "implementation.py:unknown")
    assert kind == LACKS
    assert "the base declares the algorithm 'kahan'" in reason


def test_a_plain_function_declares_nothing(opened: Open) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {})
    assert side_by_side(checkout).find("implementation.py:layer_norm") == replace(
        NATIVE,
        name="implementation.py:layer_norm",
        source="implementation.py:layer_norm",
        function=side_by_side(checkout).find("implementation.py:layer_norm").function,
        declared=False,
    )


# --- what the base lacks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "kind", "reason"),
    [
        ("implementation.py:gone", LACKS, "implementation.py has no 'gone'"),
        ("gone.py:f", LACKS, "no file gone.py"),
        ("mine.gone:f", LACKS, "no module 'mine.gone'"),
        ("broken.py:f", BROKEN, "cannot import: ZeroDivisionError: division by zero"),
        ("lacks:f", BROKEN, "lacks: cannot import: ModuleNotFoundError: No module named"),
        ("typo.py:f", BROKEN, "cannot import: SyntaxError"),
        ("implementation.py:torch", BROKEN, "is of type module, not a function"),
        ("json:dumps", BROKEN, "json"),  # it is of no repository
        ("native", BROKEN, "module 'implementations' is not in the repository"),
    ],
)
def test_what_the_base_lacks_is_told_from_what_it_cannot_import(
    opened: Open, target: str, kind: int, reason: str
) -> None:
    files = {
        "implementation.py": LAYER_NORM,
        "broken.py": "1 / 0",
        "lacks.py": "import no_such_thing",
        "typo.py": "def f(:",
        "mine/__init__.py": "",
    }
    found, why = missing(opened(files, files), target)
    assert (found, reason in why) == (kind, True), why


def test_what_the_base_has_is_not_missing(opened: Open) -> None:
    files = {"implementation.py": LAYER_NORM}
    targets = ("implementation.py:layer_norm", "implementation:layer_norm")
    runner = CaseRunner("here", Allocation.DEFAULT)
    assert missing_in_base(runner, (opened(files, files), targets)) == ({}, {})
