"""Which wheels does a machine without network lack? List them, and download them here.

    python experiments/first_gpu/wheels.py --have have.txt --to wheels

``have.txt`` is what ``pip list --format=freeze`` prints there. On that machine:
``pip install --no-index --find-links wheels --no-deps wheels/*.whl``.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
FOR_TESTS = {"pytest", "pytest-xdist", "hypothesis"}  # of the extra dev
MOST_MIB = 64  # what is carried to a lent machine
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64")


def installed(freeze: str) -> dict[str, str]:
    """Return versions by name, without local parts such as +cu128."""
    lines = re.findall(r"^([\w.-]+)==([^\s+]+)", freeze, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def required() -> list[Requirement]:
    """Return what running and testing need."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    dev = map(Requirement, project["optional-dependencies"]["dev"])
    of_tests = [requirement for requirement in dev if requirement.name in FOR_TESTS]
    return [*map(Requirement, project["dependencies"]), *of_tests]


def lacking(have: dict[str, str], wanted: Iterable[Requirement]) -> list[Requirement]:
    """Return the requirements that are missing or too old."""
    return [
        requirement
        for requirement in wanted
        if (version := have.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(version, prereleases=True)
    ]


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = re.findall(r"^ERROR: .*", done.stderr, re.MULTILINE)
        raise click.ClickException("\n".join([f"pip {arguments[0]} failed", *errors]))
    return done.stdout


def resolved(missing: list[Requirement], have: dict[str, str], target: list[str]) -> list[str]:
    """Return name==version of what is missing and of its companions that are missing too."""
    names = {canonicalize_name(requirement.name) for requirement in missing}
    kept = [f"{name}=={version}\n" for name, version in have.items() if name not in names]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(kept)
        constraints.flush()
        asked = ("--dry-run", "--ignore-installed", "--quiet", "--report", "-", "--target", "none")
        limits = ("--constraint", constraints.name, *target)
        report = json.loads(pip("install", *asked, *limits, *map(str, missing)))
    found = [entry["metadata"] for entry in report["install"]]
    present = have.keys() - names
    return [
        f"{one['name']}=={one['version']}"
        for one in found
        if canonicalize_name(one["name"]) not in present
    ]


@click.command()
@click.option("--have", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--to", type=click.Path(path_type=Path), help="folder; without it, only list")
@click.option("--python", "python", default="3.12", show_default=True, help="version there")
@click.option("--platform", "platforms", multiple=True, default=PLATFORMS, show_default=True)
def main(have: Path, to: Path | None, python: str, platforms: tuple[str, ...]) -> None:
    """List and download the wheels that a machine lacks."""
    there = installed(have.read_text())
    missing = lacking(there, required())
    if not missing:
        click.echo("nothing is missing")
        return
    if "torch" in {requirement.name for requirement in missing}:
        raise click.ClickException("torch is missing or too old there, and too large to carry")
    target = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    target += [word for platform in platforms for word in ("--platform", platform)]
    wheels = resolved(missing, there, target)
    click.echo("\n".join(wheels))
    if to is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        total_bytes = 0
        for wheel in wheels:
            pip("download", "--quiet", "--no-deps", *target, "--dest", folder, wheel)
            total_bytes = sum(path.stat().st_size for path in Path(folder).iterdir())
            if total_bytes > MOST_MIB << 20:
                raise click.ClickException(
                    f"{total_bytes / (1 << 20):.1f} MiB with {wheel}; at most {MOST_MIB} are taken"
                )
        to.mkdir(parents=True, exist_ok=True)
        for path in Path(folder).iterdir():
            shutil.copy(path, to)
    click.echo(f"{len(wheels)} wheels, {total_bytes / (1 << 20):.1f} MiB, in {to}")


if __name__ == "__main__":
    main()
