"""What a person who read the source of a class says that it computes, and whether a verdict agrees.

readings/*.toml has one entry per distinct source, under the key that classes.py gives it: where
the source changes, the reading does not apply any more. Only verdicts that agree with a reading
are published.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Reading", "agreement", "load_readings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a class computes, as read from its source."""

    target: str
    """A class with that source, ``module:name``; other copies are in the results."""
    computes: str = ""
    """"LayerNorm", "RMSNorm" or the name of another function; empty if ``skip`` says why not."""
    axis: str = "last"
    """"last" or "channel" (axis 1)."""
    eps: float | None = None
    """Default of the argument; None if it has none, or no eps."""
    init: tuple[str, ...] = ()
    """Arguments of the constructor that the verifier is to be told, ``key=value``."""
    options: tuple[str, ...] = ()
    """Other options of the command."""
    wrap: str = ""
    """Class in constructors.py that builds it, where its own takes a configuration object."""
    note: str = ""
    """Facts for the table that the verifier does not see."""
    skip: str = ""
    """Why it is not verified."""
    wrong: str = ""
    """Where it computes a LayerNorm, but not within the bound: what was found by reading."""

    @property
    def kind(self) -> str:
        """Return which table it belongs to: "LayerNorm", "RMSNorm" or "other"."""
        kind = self.computes.removesuffix(" with 1 + weight")  # stored as an offset from 1
        return kind if kind in {"LayerNorm", "RMSNorm"} else "other"


def load_readings(folder: Path) -> dict[str, Reading]:
    """Return the readings of a folder by key."""
    readings: dict[str, Reading] = {}
    for path in sorted(folder.glob("*.toml")):
        for key, entry in tomllib.loads(path.read_text()).items():
            if key in readings:
                raise ValueError(f"{path}: {key} was read twice")
            target = entry.pop("class")
            lists = {name: tuple(entry.pop(name, ())) for name in ("init", "options")}
            readings[key] = Reading(target=target, **lists, **entry)
    return readings


def agreement(reading: Reading, verdict: Mapping[str, Any]) -> str:
    """Say where a verdict contradicts the reading; empty if it does not, or says nothing."""
    outcome, instead = verdict["outcome"], verdict["instead"]
    if outcome == "not_verified":
        return ""
    if reading.computes == "LayerNorm":
        wanted = "wrong" if reading.wrong else "right"
        if outcome != wanted:
            return f"read as a LayerNorm, the verdict is {outcome}"
        if reading.axis not in (verdict["axes"] or "").replace("trailing", "last"):
            return f"read as over the {reading.axis} axis, found {verdict['axes']}"
        if reading.eps is not None and verdict["default_eps"] not in {None, reading.eps}:
            return f"read a default eps of {reading.eps}, found {verdict['default_eps']}"
        return ""
    if outcome != "wrong":
        return f"read as {reading.computes}, the verdict is {outcome}"
    if instead and not _same(reading.computes, instead):
        return f"read as {reading.computes}, the verdict names {instead}"
    return ""


def _same(read: str, named: str) -> bool:
    """Whether the verifier's name is that of the reading, up to what it says of the weight."""
    if read == "RMSNorm":
        return named.startswith("RMSNorm")
    return named.lower() in read.lower() or read.lower() in named.lower()
