"""Look up which targets a revision has, in a worker, by importing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import implementations
from harness.regression.ab.messages import Availability, LookupRequest, LookupResult
from harness.regression.ab.side_by_side import (
    AbsentError,
    NotComparableTargetError,
    is_missing,
    side_by_side,
)
from implementations.contract import Implementation

__all__ = ["look_up"]


def look_up(request: LookupRequest) -> tuple[LookupResult, ...]:
    """Return a result for each member of the listings and for each target."""
    if request.checkout is None:
        return tuple(_results(_find_here, _names_here, request))
    base = side_by_side(request.checkout)
    return tuple(_results(base.find, base.names, request))


def _results(
    find: Callable[[str], Implementation],
    names: Callable[[str], Iterable[str]],
    request: LookupRequest,
) -> Iterator[LookupResult]:
    for listing in request.listings:
        try:
            members = names(listing)
        except implementations.TargetError as error:
            yield LookupResult(listing, Availability.BROKEN, str(error), listing=listing)
            continue
        yield from (replace(_result(find, name), listing=listing) for name in members)
    yield from (_result(find, target) for target in request.targets)


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
