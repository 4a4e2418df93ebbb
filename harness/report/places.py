"""Where cases ran: each machine, software and revision has a letter, and is shown by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from string import ascii_uppercase

from harness.records import Environment
from harness.store import Results

__all__ = ["apart_by_revision", "letters_of", "place_of"]


def apart_by_revision(results: Sequence[Results]) -> list[Results]:
    """Return results in which runs of several revisions on one machine have environments apart."""
    revisions: dict[str, set[tuple[str | None, bool | None]]] = {}
    for result in results:
        for name, each in result.environments.items():
            revisions.setdefault(name, set()).add((each.git_commit, each.git_dirty))
    several = {name for name, own in revisions.items() if len(own) > 1}
    return [_renamed(result, several) if several else result for result in results]


def _renamed(result: Results, several: set[str]) -> Results:
    new = {
        name: f"{name} at {each.git_commit or 'no commit'}{' changed' if each.git_dirty else ''}"
        for name, each in result.environments.items()
        if name in several
    }
    return replace(
        result,
        records=tuple(
            replace(record, environment=new.get(record.environment, record.environment))
            for record in result.records
        ),
        environments={new.get(name, name): each for name, each in result.environments.items()},
    )


def letters_of(names: Iterable[str]) -> dict[str, str]:
    """Give each environment a short name, in order of appearance."""
    return {
        name: f"{ascii_uppercase[place % 26]}{place // 26 or ''}"
        for place, name in enumerate(dict.fromkeys(names))
    }


def place_of(
    device: str, letter: str, own: Environment | None, every: Sequence[Environment]
) -> str:
    """Return the title of a place: its device, its letter and what no other environment shares.

    Args:
        device: kind of the device.
        letter: of the environment; empty if there is only one.
        own: the environment; None if the results do not hold it.
        every: all environments.
    """
    if not letter:
        return device
    parts: list[Callable[[Environment], str]] = [
        lambda each: ", ".join(gpu.name for gpu in each.gpus) if device == "cuda" else each.cpu,
        lambda each: " ".join(next(iter(each.packages), ())),
        lambda each: _revision(each),
    ]
    differing = [part for part in parts if len({part(each) for each in every}) > 1]
    words = [part(own) for part in differing] if own else []
    return f"{device}, environment {letter}" + "".join(f", {word}" for word in words if word)


def _revision(environment: Environment) -> str:
    if not environment.git_commit:
        return "no commit"
    return f"commit {environment.git_commit[:8]}{' changed' if environment.git_dirty else ''}"
