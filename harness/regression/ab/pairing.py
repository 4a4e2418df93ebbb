"""Which cases of a sweep two revisions have in common: decided before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.records import Measurement
from harness.regression.ab.ab import Lone, Pair
from harness.regression.ab.messages import Availability, LookupRequest, LookupResult
from harness.regression.ab.revision import (
    Checkout,
    RevisionError,
    is_unchanged,
    place_of,
    repository_of,
)
from harness.regression.changes import ChangeKind
from harness.run.fleet import EndedError, Fleet
from harness.run.process import START_S
from harness.run.session import cases_of
from harness.sweep import EVERY, PEERS, Sweep, SweepError, mistake_lines

__all__ = ["Pairing", "notes_of", "pair_up", "repository_of_sweep"]

_LISTINGS = {EVERY: "ALL", PEERS: "PEERS"}  # in the package, by what they are asked for as


@dataclass(frozen=True, slots=True)
class Pairing:
    """The cases of a sweep, sorted by whether they can be compared."""

    pairs: tuple[Pair, ...]
    lone: tuple[Lone, ...]
    has_cold: bool
    """Whether cold latencies were asked for, which are not compared."""


def repository_of_sweep(sweep: Sweep) -> Path:
    """Return the repository in which all implementations of a sweep are kept.

    Raises:
        RevisionError: one is in none, or they are in several.
    """
    found: dict[Path, str] = {}
    for target in _targets(sweep):
        place = place_of(target)
        if place is not None:
            found.setdefault(repository_of(place, target), target)
    if len(found) > 1:
        (first, one), (second, other), *_ = found.items()
        raise RevisionError(
            f"{one} is in the repository {first} and {other} in {second}: a revision is of one; "
            "compare them one after the other, with -i"
        )
    if not found:
        raise RevisionError(f"{', '.join(_targets(sweep))}: no such module; see `list`")
    return next(iter(found))


def pair_up(sweep: Sweep, fleet: Fleet, checkout: Checkout, name: str) -> Pairing:
    """Plan the cases of a sweep for both revisions.

    Args:
        sweep: what is asked for.
        fleet: a process that can say what exists.
        checkout: the base.
        name: of the base, for messages.

    Raises:
        RevisionError: the base cannot be imported.
        SweepError: a name exists in neither revision, or not on this machine.
    """
    asked = _targets(sweep)
    targets = tuple(each for each in asked if each not in _LISTINGS)
    listings = tuple(_LISTINGS[each] for each in asked if each in _LISTINGS)
    found_here = _look_up(fleet, LookupRequest(None, targets, listings), "the working copy")
    found_there = _look_up(fleet, LookupRequest(checkout, targets, listings), name)
    here = {each.target: each for each in found_here}
    base = {each.target: each for each in found_there}
    places = {name: place for place, name in reversed([*sweep.written("implementations")])}
    in_neither = [
        (places[each], here[each].reason)
        for each in targets
        if here[each].availability is base[each].availability is Availability.ABSENT
    ]
    if in_neither:
        raise SweepError("\n".join(mistake_lines(in_neither)))
    in_either = (*found_here, *found_there)
    planned = cases_of(
        sweep,
        fleet.info,
        _members(in_either, _LISTINGS[EVERY]),
        _members(in_either, _LISTINGS[PEERS]),
    )
    pairs, lone = [], []
    for case, wanted in ((each.case, each.measurements) for each in planned):
        target = case.implementation
        found = _why_lone(here.get(target), base.get(target), name)
        if found is None:
            pairs.append(Pair(case=case, measurements=wanted))
        else:
            kind, why = found
            lone.append(Lone(case=case, kind=kind, reason=why, measurements=wanted))
    cold = any(Measurement.COLD in each.measurements for each in planned)
    return Pairing(tuple(pairs), tuple(lone), cold)


def notes_of(pairing: Pairing, checkout: Checkout) -> tuple[str, ...]:
    """What is to be known of a comparison before it is made."""
    notes = []
    if is_unchanged(checkout):
        notes.append("the working copy is the base itself: what differs is noise")
    if pairing.has_cold:
        notes.append("cold latencies are not compared")
    return tuple(notes)


def _targets(sweep: Sweep) -> tuple[str, ...]:
    return tuple(sorted({name for grid in sweep.grids for name in grid.implementations}))


def _look_up(fleet: Fleet, request: LookupRequest, name: str) -> tuple[LookupResult, ...]:
    """Ask which targets a revision has.

    Raises:
        RevisionError: one of them cannot be imported.
    """
    try:
        found = fleet.ask(request, START_S)
    except EndedError as ended:
        raise RevisionError(f"{name}: importing it {ended}") from None
    broken = [
        f"{name}: {each.reason}" for each in found if each.availability is Availability.BROKEN
    ]
    if broken:
        raise RevisionError("\n".join(dict.fromkeys(broken)))
    return found


def _members(found: Iterable[LookupResult], listing: str) -> dict[str, frozenset[str]]:
    """Names listed in either revision, with the kinds of device that either is written for."""
    members: dict[str, frozenset[str]] = {}
    for each in found:
        if each.listing == listing:
            members[each.target] = members.get(each.target, frozenset()) | each.devices
    return members


def _why_lone(
    here: LookupResult | None, base: LookupResult | None, name: str
) -> tuple[ChangeKind, str] | None:
    """Return why a target has nothing to be compared with; None if it has."""
    if here is None or here.availability is Availability.ABSENT:
        return ChangeKind.GONE, f"in {name} only"
    if base is None or base.availability is Availability.ABSENT:
        return ChangeKind.NEW, f"not in {name}"
    if base.availability is Availability.INCOMPARABLE:
        return ChangeKind.NOT_COMPARABLE, base.reason
    return None
