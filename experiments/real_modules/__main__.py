"""Find, verify and tabulate the normalisation classes of published packages.

    python -m real_modules                      everything
    python -m real_modules classes              one part: classes, kernels or findings
    python -m real_modules classes --only TEXT  again, what has TEXT in its name
    python -m real_modules --report             the page again, from the results

``tox run -e real-modules`` installs the packages and runs this. Results are kept in
results/published/real-modules.json; reports/published/real-modules.md is made from them alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from .classes import Group, find_classes, group_classes, requirements
from .readings import Reading, agreement, load_readings
from .table import page
from .verdicts import run_python, verify

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = HERE.relative_to(ROOT)  # targets are named from the root, where commands run
RESULTS = ROOT / "results" / "published" / "real-modules.json"
PAGE = ROOT / "reports" / "published" / "real-modules.md"
UNBUILT = Path(sys.prefix) / "unbuilt"
TIME_BUDGET = "20s"  # per class
KERNEL_TIME_BUDGET = "15s"
INTERPRETED = {"TRITON_INTERPRET": "1"}
UNLISTED = ("torch", "triton", "layernorm-bench", "conch-triton-kernels")
"""Distributions without a class of that name whose version matters."""
PARTS = ("classes", "kernels", "findings")


def main() -> None:
    """Parse the command line; write results after each part, and the page at the end."""
    parser = argparse.ArgumentParser(description="Verify published normalisation classes.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="classes, kernels, findings [all]")
    parser.add_argument("--only", default="", metavar="TEXT", help="what has TEXT[,TEXT] in it")
    parser.add_argument("--report", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part is named {', '.join(unknown)}: {', '.join(PARTS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    make = {"classes": _classes, "kernels": _kernels, "findings": _findings}
    for part in () if arguments.report else arguments.parts or PARTS:
        results |= make[part](arguments.only, results)
        results |= {"date": datetime.now(UTC).date().isoformat(), "python": python_version()}
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(results))


def _classes(only: str, old: Mapping[str, Any]) -> dict[str, Any]:
    """Find and verify the classes; of those left out by ``only``, keep the old verdicts."""
    readings = load_readings(HERE / "readings")
    found = find_classes(requirements(HERE / "packages.txt"))
    found += find_classes(requirements(HERE / "packages-no-deps.txt"))
    found += find_classes(requirements(HERE / "packages-unbuilt.txt"), UNBUILT)
    groups = group_classes(found)
    verdicts = {entry["key"]: entry["verdict"] for entry in old.get("classes", ())}
    verdicts |= _verdicts(groups, readings, only)
    return {
        "versions": {
            **{name: version(name) for name in UNLISTED},
            **{place.distribution: place.version for place, _, _ in found},
        },
        "classes": [
            _entry(group, readings.get(group.key), verdicts.get(group.key)) for group in groups
        ],
    }


def _verdicts(
    groups: list[Group], readings: Mapping[str, Reading], only: str
) -> dict[str, dict[str, Any]]:
    """Verify every class that was read and is not skipped."""
    by_options: dict[tuple[str, ...], dict[str, str]] = {}
    for group in groups:
        reading = readings.get(group.key)
        if reading is None or reading.skip or not _has(reading.target, only):
            continue
        target = f"{FOLDER}/constructors.py:{reading.wrap}" if reading.wrap else reading.target
        init = tuple(part for argument in reading.init for part in ("--init", argument))
        options = (*init, *reading.options)
        by_options.setdefault(options, {})[target] = group.key
    verdicts = {}
    for options, keys in by_options.items():
        found = verify(sorted(keys), options, time_budget=TIME_BUDGET)
        verdicts |= {keys[target]: verdict for target, verdict in found.items()}
    return verdicts


def _has(name: str, only: str) -> bool:
    """Whether a name has one of the texts, separated by commas, in it."""
    return any(text.lower() in name.lower() for text in only.split(","))


def _entry(group: Group, reading: Reading | None, verdict: dict[str, Any] | None) -> dict[str, Any]:
    contradiction = agreement(reading, verdict) if reading and verdict else ""
    if contradiction and reading:
        print(f"{reading.target}: {contradiction}", file=sys.stderr)  # noqa: T201 - to be looked at
    return {
        "key": group.key,
        "kind": group.kind,
        "copies": group.copies,
        "places": [asdict(place) for place in group.places],
        "reading": asdict(reading) if reading else None,
        "verdict": verdict,
        "contradiction": contradiction,
    }


def _kernels(only: str, old: Mapping[str, Any]) -> dict[str, Any]:
    """Compare each public kernel with its formula, and verify those of LayerNorm."""
    kernels = dict(old.get("kernels", {}))
    _, printed = run_python(["-m", "real_modules.kernel_check"], INTERPRETED)
    for name in json.loads(printed.splitlines()[-1]):
        if not _has(name, only):
            continue
        code, printed = run_python(["-m", "real_modules.kernel_check", name], INTERPRETED)
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        kernels[name] = {"check": json.loads(lines[-1]) if lines else {}, "exit_code": code}
        if "layer_norm" in name:
            target = f"{FOLDER}/kernels.py:{name}"
            found = verify([target], time_budget=KERNEL_TIME_BUDGET, environment=INTERPRETED)
            kernels[name]["verdict"] = found.get(target)
    return {"kernels": kernels}


def _findings(only: str, old: Mapping[str, Any]) -> dict[str, Any]:
    """Execute the code of each finding; keep what it prints."""
    printed_before = {finding["title"]: finding["printed"] for finding in old.get("findings", ())}
    findings = []
    for finding in tomllib.loads((HERE / "findings.toml").read_text())["finding"]:
        code = finding["code"].strip()
        if _has(finding["package"], only) or finding["title"] not in printed_before:
            _, printed = run_python(["-c", code], INTERPRETED if finding.get("kernel") else {})
        else:
            printed = printed_before[finding["title"]]
        findings.append({
            **finding,
            "code": code,
            "text": finding["text"].strip(),
            "printed": printed,
        })
    return {"findings": findings}


if __name__ == "__main__":
    main()
