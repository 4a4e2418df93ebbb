"""Cheats of benchmarks: targets that look fast or right without being it, and what is said of them.

Each is the source of a small file with a function ``norm``. ``run`` and ``verify`` are words of the
message that names the cheat; None says that the cheat gains nothing there. Where a cheat was
published, ``seen`` says by whom.
"""

from __future__ import annotations

from cheat import Cheat
from of_calls import OF_CALLS
from of_registrations import OF_REGISTRATIONS
from of_surroundings import OF_SURROUNDINGS

__all__ = ["CHEATS", "Cheat", "table"]

CHEATS = (*OF_SURROUNDINGS, *OF_REGISTRATIONS, *OF_CALLS)


def table() -> str:
    """Return the table of the documentation."""
    lines = ["| cheat | run says | verify says | published |", "|---|---|---|---|"]
    for cheat in CHEATS:
        run = cheat.run or "nothing: its inputs give the cheat no advantage"
        lines.append(f"| {cheat.name} | {run} | {cheat.verified} | {cheat.seen} |")
    return "\n".join(lines)
