"""Targets of a base revision: what it declares, and which targets it has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from git_repository import LAYER_NORM
from two_revisions import CONTRACT, Open

import implementations
from harness.regression.ab import Availability, LookupResult
from harness.regression.ab.side_by_side import look_up, side_by_side
from implementations.contract import Algorithm, Implementation

NATIVE = implementations.find("native")

# --- declarations --------------------------------------------------------------------------------


def test_the_declaration_of_an_older_class_is_converted(opened: Open) -> None:
    checkout = opened({"implementation.py": CONTRACT}, {"implementation.py": CONTRACT})
    found = side_by_side(checkout).find("implementation.py:mine")
    assert type(found) is Implementation
    assert found.algorithm is Algorithm.ONE_PASS
    assert (found.name, found.devices) == ("f", NATIVE.devices)


def test_a_declaration_unknown_to_this_revision_is_not_comparable(opened: Open) -> None:
    checkout = opened({"implementation.py": CONTRACT}, {"implementation.py": CONTRACT})
    (found,) = look_up(checkout, ("implementation.py:unknown",), ())
    assert found.availability is Availability.NOT_COMPARABLE
    assert "the base declares the algorithm 'kahan'" in found.reason


def test_a_plain_function_declares_nothing(opened: Open) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {})
    assert side_by_side(checkout).find("implementation.py:layer_norm") == replace(
        NATIVE,
        name="implementation.py:layer_norm",
        source="implementation.py:layer_norm",
        function=side_by_side(checkout).find("implementation.py:layer_norm").function,
        declared=False,
    )


# --- availability --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "availability", "reason"),
    [
        ("implementation.py:layer_norm", Availability.PRESENT, ""),
        ("implementation:layer_norm", Availability.PRESENT, ""),
        ("implementation.py:gone", Availability.ABSENT, "implementation.py has no 'gone'"),
        ("gone.py:f", Availability.ABSENT, "no file gone.py"),
        ("mine.gone:f", Availability.ABSENT, "no module 'mine.gone'"),
        ("broken.py:f", Availability.BROKEN, "cannot import: ZeroDivisionError: division by zero"),
        (
            "lacks:f",
            Availability.BROKEN,
            "lacks: cannot import: ModuleNotFoundError: No module named",
        ),
        ("typo.py:f", Availability.BROKEN, "cannot import: SyntaxError"),
        ("implementation.py:torch", Availability.BROKEN, "is of type module, not a function"),
    ],
)
@pytest.mark.parametrize("whose", ["base", "now"])
def test_a_target_is_looked_up_in_either_revision(
    opened: Open, whose: str, target: str, availability: Availability, reason: str
) -> None:
    files = {
        "implementation.py": LAYER_NORM,
        "broken.py": "1 / 0",
        "lacks.py": "import no_such_thing",
        "typo.py": "def f(:",
        "mine/__init__.py": "",
    }
    checkout = opened(files, files)
    (found,) = look_up(checkout if whose == "base" else None, (target,), ())
    if target == "implementation.py:torch" and whose == "now":
        availability = Availability.ABSENT  # a name that is no function any more is gone
    assert found.availability is availability, found
    assert reason in found.reason or whose == "now"
    assert bool(found.devices) is (availability is Availability.PRESENT)


@pytest.mark.parametrize(
    ("listing", "members"), [("ALL", implementations.ALL), ("PEERS", implementations.PEERS)]
)
def test_every_member_of_a_listing_is_looked_up(
    listing: str, members: tuple[Implementation, ...]
) -> None:
    assert look_up(None, (), (listing,)) == tuple(
        LookupResult(member.name, Availability.PRESENT, devices=member.devices, listing=listing)
        for member in members
    )


def test_a_listing_or_module_that_the_revision_does_not_hold_is_broken(opened: Open) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {})
    listing, module = look_up(checkout, ("json:dumps",), ("ALL",))
    assert listing.availability is module.availability is Availability.BROKEN
    assert "json" in module.reason  # it is of no repository
