"""Look up which targets a revision has, in a worker, by importing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import implementations
from harness.regression.ab.availability import Availability, LookupResult
from harness.regression.ab.revision import Checkout
from harness.regression.ab.side_by_side import (
    AbsentError,
    NotComparableTargetError,
    is_missing,
    side_by_side,
)
from implementations.contract import Implementation

__all__ = ["look_up"]


def look_up(
    checkout: Checkout | None, targets: Sequence[str], listings: Sequence[str]
) -> tuple[LookupResult, ...]:
    """Return a result for each member of the listings and for each target.

    Args:
        checkout: files of the base revision; None looks up the targets in the working copy.
        targets: looked up by name.
        listings: names of tuples such as ``ALL``, whose members are looked up.
    """
    find: Callable[[str], Implementation] = _find_here
    names: Callable[[str], Iterable[str]] = _names_here
    if checkout is not None:
        base = side_by_side(checkout)
        find, names = base.find, base.names
    results = []
    for listing in listings:
        try:
            members = names(listing)
        except implementations.TargetError as error:
            broken = LookupResult(listing, Availability.BROKEN, str(error), listing=listing)
            results.append(broken)
            continue
        results += [replace(_result(find, name), listing=listing) for name in members]
    return (*results, *(_result(find, target) for target in targets))


def _result(find: Callable[[str], Implementation], target: str) -> LookupResult:
    try:
        return LookupResult(target, Availability.PRESENT, devices=find(target).devices)
    except AbsentError as error:
        return LookupResult(target, Availability.ABSENT, str(error))
    except NotComparableTargetError as error:
        return LookupResult(target, Availability.NOT_COMPARABLE, str(error))
    except implementations.TargetError as error:
        return LookupResult(target, Availability.BROKEN, str(error))


def _names_here(listing: str) -> list[str]:
    return [each.name for each in getattr(implementations, listing)]


def _find_here(target: str) -> Implementation:
    """Find a target in this revision.

    Raises:
        AbsentError: there is no such target.
        TargetError: it cannot be imported, or is no LayerNorm.
    """
    try:
        return implementations.find(target)
    except implementations.TargetError as error:
        place, cause = target.rpartition(":")[0], error.__cause__
        no_file = place.endswith(".py") and not Path(place).is_file()
        no_module = isinstance(cause, ModuleNotFoundError) and is_missing(place, cause)
        if cause is None or no_file or no_module:
            raise AbsentError(str(error)) from error
        raise
