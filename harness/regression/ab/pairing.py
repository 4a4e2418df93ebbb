"""Pair the cases of a sweep that two revisions have in common, before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.records import Measurement
from harness.regression.ab.ab import PairedCase, UnpairedCase
from harness.regression.ab.availability import Availability, LookupResult
from harness.regression.ab.messages import LookupRequest
from harness.regression.ab.revision import (
    Checkout,
    RevisionError,
    is_unchanged,
    place_of,
    repository_of,
)
from harness.regression.changes import ChangeKind
from harness.run.fleet import EndedError, Fleet
from harness.run.plan import cases_on
from harness.run.process import START_S
from harness.sweep import EVERY, PEERS, Sweep, SweepError, mistake_lines

__all__ = ["Pairing", "notes_of", "pair_up", "repository_of_sweep"]

_LISTINGS = {EVERY: "ALL", PEERS: "PEERS"}  # tuples of the package, by their names in a sweep


@dataclass(frozen=True, slots=True)
class Pairing:
    """The cases of a sweep, sorted by whether they can be compared."""

    pairs: tuple[PairedCase, ...]
    unpaired: tuple[UnpairedCase, ...]
    has_cold: bool
    """Whether the sweep asks for cold latencies, which are not compared."""


def repository_of_sweep(sweep: Sweep) -> Path:
    """Return the repository of all implementations of a sweep.

    Raises:
        RevisionError: an implementation is in no repository, or they are in several.
    """
    found: dict[Path, str] = {}
    for target in _targets(sweep):
        place = place_of(target)
        if place is not None:
            found.setdefault(repository_of(place, target), target)
    if len(found) > 1:
        (first, one), (second, other), *_ = found.items()
        raise RevisionError(
            f"{one} is in the repository {first} and {other} in {second}, but --base names a "
            "revision of one repository; compare them one after the other, with -i"
        )
    if not found:
        raise RevisionError(f"{', '.join(_targets(sweep))}: no such module; see `list`")
    return next(iter(found))


def pair_up(sweep: Sweep, fleet: Fleet, checkout: Checkout, name: str) -> Pairing:
    """Plan the cases of a sweep for both revisions.

    Args:
        sweep: its implementations are looked up in both revisions.
        fleet: a worker process looks them up.
        checkout: files of the base.
        name: of the base, for messages.

    Raises:
        RevisionError: the base cannot be imported.
        SweepError: a name exists in neither revision, or not on this machine.
    """
    names = _targets(sweep)
    targets = tuple(each for each in names if each not in _LISTINGS)
    listings = tuple(_LISTINGS[each] for each in names if each in _LISTINGS)
    results_here = _look_up(fleet, LookupRequest(None, targets, listings), "the working copy")
    results_base = _look_up(fleet, LookupRequest(checkout, targets, listings), name)
    here = {each.target: each for each in results_here}
    base = {each.target: each for each in results_base}
    places = {target: place for place, target in reversed([*sweep.written("implementations")])}
    in_neither = [
        (places[target], here[target].reason)
        for target in targets
        if here[target].availability is base[target].availability is Availability.ABSENT
    ]
    if in_neither:
        raise SweepError("\n".join(mistake_lines(in_neither)))
    in_either = (*results_here, *results_base)
    planned = cases_on(
        sweep,
        fleet.info,
        _members(in_either, _LISTINGS[EVERY]),
        _members(in_either, _LISTINGS[PEERS]),
    )
    pairs, unpaired = [], []
    for plan in planned:
        target = plan.case.implementation
        why = _why_unpaired(here.get(target), base.get(target), name)
        if why is None:
            pairs.append(PairedCase(case=plan.case, measurements=plan.measurements))
        else:
            kind, reason = why
            wanted = plan.measurements
            unpaired.append(
                UnpairedCase(case=plan.case, kind=kind, reason=reason, measurements=wanted)
            )
    has_cold = any(Measurement.COLD in each.measurements for each in planned)
    return Pairing(tuple(pairs), tuple(unpaired), has_cold)


def notes_of(pairing: Pairing, checkout: Checkout) -> tuple[str, ...]:
    """Return the notes on a comparison that are known before anything is measured."""
    notes = []
    if is_unchanged(checkout):
        notes.append("the working copy equals the base: all differences are noise")
    if pairing.has_cold:
        notes.append("cold latencies are not compared")
    return tuple(notes)


def _targets(sweep: Sweep) -> tuple[str, ...]:
    return tuple(sorted({name for grid in sweep.grids for name in grid.implementations}))


def _look_up(fleet: Fleet, request: LookupRequest, name: str) -> tuple[LookupResult, ...]:
    """Look up which targets a revision has.

    Raises:
        RevisionError: one of them cannot be imported.
    """
    try:
        results = fleet.ask(request, START_S)
    except EndedError as ended:
        raise RevisionError(f"{name}: importing it {ended}") from None
    broken = [
        f"{name}: {each.reason}" for each in results if each.availability is Availability.BROKEN
    ]
    if broken:
        raise RevisionError("\n".join(dict.fromkeys(broken)))
    return results


def _members(results: Iterable[LookupResult], listing: str) -> dict[str, frozenset[str]]:
    """Return the names listed in either revision, with the devices that either supports."""
    members: dict[str, frozenset[str]] = {}
    for result in results:
        if result.listing == listing:
            known = members.get(result.target, frozenset())
            members[result.target] = known | result.devices
    return members


def _why_unpaired(
    here: LookupResult | None, base: LookupResult | None, name: str
) -> tuple[ChangeKind, str] | None:
    """Return why a target cannot be compared; None if it can."""
    if here is None or here.availability is Availability.ABSENT:
        return ChangeKind.GONE, f"in {name} only"
    if base is None or base.availability is Availability.ABSENT:
        return ChangeKind.NEW, f"not in {name}"
    if base.availability is Availability.NOT_COMPARABLE:
        return ChangeKind.NOT_COMPARABLE, base.reason
    return None
