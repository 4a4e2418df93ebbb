"""Metadata of the package: lower bounds are tested, licence and version agree."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
LOWEST = sorted((ROOT / "constraints").glob("lowest*.txt"))
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,.-]+\])?\s*(>=|==)?\s*([\w.]*)")


def bounds_of(requirements: Iterable[str]) -> dict[str, str]:
    """Return the lower bound of each requirement, which may be empty."""
    found = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        assert match, requirement
        found[match[1].lower()] = match[3]
    return found


def pins_of(path: Path) -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return bounds_of(line for line in lines if line)


def is_lowest(pin: str, bound: str) -> bool:
    """Whether a pin is the first version of a bound: 2.7.0 is the first of 2.7, 2.7.1 is not.

    Projects without a first version, such as 12.535.77 or 3.0.5.260730, only need the same start.
    """
    rest = pin.removeprefix(bound) if f"{pin}.".startswith(f"{bound}.") else "none"
    return re.fullmatch(r"(\.0)*|\.\d{2,}", rest) is not None


def untested(requirements: dict[str, str], pins: Iterable[dict[str, str]]) -> list[str]:
    """Return the requirements whose lowest version is pinned in no constraints file."""
    kept = list(pins)
    return [
        f"{name}>={bound}"
        for name, bound in requirements.items()
        if not any(name in pinned and is_lowest(pinned[name], bound) for pinned in kept)
    ]


GROUPS = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group or "dependencies")
def test_every_lower_bound_is_tested_by_a_tox_environment(group: str) -> None:
    bounds = bounds_of(GROUPS[group])
    bounds.pop("layernorm-bench", None)  # an extra that combines others
    assert all(bounds.values())
    assert untested(bounds, map(pins_of, LOWEST)) == []


def test_each_file_of_lowest_versions_has_a_tox_environment() -> None:
    (names,) = re.findall(r"^\[testenv:lowest-\{(.+)\}\]$", (ROOT / "tox.ini").read_text(), re.M)
    assert [path.stem for path in LOWEST] == sorted(f"lowest-{name}" for name in names.split(","))


@pytest.mark.parametrize(("pin", "left"), [("8.10", ["click>=8.1"]), ("8.1.0", [])])
def test_a_bound_is_tested_by_a_pin_of_its_first_version(pin: str, left: list[str]) -> None:
    assert untested({"click": "8.1"}, [{"click": pin}]) == left


def test_the_wheel_holds_every_package() -> None:
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == sorted(path.parent.name for path in ROOT.glob("*/py.typed"))
    assert packages == PYPROJECT["tool"]["mypy"]["packages"]
    assert packages == PYPROJECT["tool"]["importlinter"]["root_packages"]
